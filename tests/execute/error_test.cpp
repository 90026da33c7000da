// A throw anywhere: one error with its coordinates reaches the caller, nothing hangs, and the next step is as good as
// new.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <optional>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "gpipe/schedule/registry.h"
#include "tests/execute/plain_chain.h"

namespace gpipe {
namespace {

using test::expect_same_bits;
using ::testing::HasSubstr;
using torch::nn::Linear;

// Where the next throw happens, and how many layers are at work. Set between steps.
struct Saboteur {
  void strike(const Action& here) {
    if (target && *target == here) hit();
  }

  std::optional<Action> target;
  std::function<void()> hit = [] { throw std::domain_error("this layer failed"); };
  std::atomic<int> num_at_work{0};
};

struct AtWork {
  explicit AtWork(Saboteur& saboteur_) : saboteur(saboteur_) { ++saboteur.num_at_work; }
  ~AtWork() { --saboteur.num_at_work; }
  Saboteur& saboteur;
};

struct StrikeInBackward : torch::autograd::Function<StrikeInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, Saboteur* saboteur,
                            std::int64_t stage, std::int64_t micro_batch) {
    context->saved_data["saboteur"] = reinterpret_cast<std::int64_t>(saboteur);
    context->saved_data["stage"] = stage;
    context->saved_data["micro_batch"] = micro_batch;
    return input.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors grads) {
    auto* saboteur = reinterpret_cast<Saboteur*>(context->saved_data["saboteur"].toInt());
    const AtWork at_work(*saboteur);
    saboteur->strike({ActionKind::kBackward, static_cast<int>(context->saved_data["stage"].toInt()),
                      static_cast<int>(context->saved_data["micro_batch"].toInt())});
    return {grads[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// The only layer of its stage.
struct FragileImpl : torch::nn::Module {
  FragileImpl(Saboteur* saboteur_, int stage_, double p)
      : saboteur(saboteur_), stage(stage_), dropout(register_module("dropout", torch::nn::Dropout(p))) {}
  at::Tensor forward(const at::Tensor& input) {
    const AtWork at_work(*saboteur);
    const int micro_batch = LayerScope::current()->micro_batch;
    const at::Tensor output = norm(dropout(linear(input)));
    saboteur->strike({is_recomputing() ? ActionKind::kRecompute : ActionKind::kForward, stage, micro_batch});
    return StrikeInBackward::apply(output, saboteur, stage, micro_batch);
  }
  Saboteur* const saboteur;
  const int stage;
  Linear linear = register_module("linear", Linear(4, 4));
  torch::nn::Dropout dropout;
  nn::DeferredBatchNorm1d norm = register_module("norm", nn::DeferredBatchNorm1d(4));
};
TORCH_MODULE(Fragile);

LayerChain make_chain(Saboteur& saboteur, int num_stages, double p) {
  LayerChain chain;
  for (int stage = 0; stage < num_stages; ++stage) chain.add<Fragile>(std::to_string(stage), &saboteur, stage, p);
  return chain;
}

struct Batch {
  Batch() {
    at::set_num_threads(1);
    torch::manual_seed(9);
    input = torch::randn({8, 4});
    target = torch::arange(8).div(2, "floor").unsqueeze(1).expand({8, 4}).to(at::kFloat);  // the micro-batch
  }
  at::Tensor input;
  at::Tensor target;
};

const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved"};

// Three workers, four micro-batches, every one recomputed where the schedule can.
struct Fixture {
  explicit Fixture(const char* schedule_name, double dropout = 0)
      : p(dropout), schedule(with_recompute(make_schedule(schedule_name, 3, 4), Recompute::kAlways)), options(3) {
    options.num_micro_batches(4).schedule(schedule_name).recompute(Recompute::kAlways);
  }

  Pipeline make() { return Pipeline(make_chain(saboteur, schedule.num_stages, p), options); }
  at::Tensor train(Pipeline& pipeline) {
    pipeline->zero_grad();
    return pipeline->train_step(batch.input, batch.target, torch::nn::MSELoss()).loss;
  }

  const double p;
  Saboteur saboteur;
  Schedule schedule;
  PipelineOptions options;
  Batch batch;
};

void clear_gradients(Pipeline& pipeline) {
  for (at::Tensor& parameter : pipeline->parameters()) parameter.mutable_grad() = at::Tensor();
}

TEST(StepError, AThrowInAnyActionOfAnyScheduleIsOneErrorWithItsCoordinates) {
  for (const char* schedule_name : kSchedules) {
    Fixture run(schedule_name);
    Pipeline pipeline = run.make();
    for (int worker = 0; worker < 3; ++worker) {
      for (const Action& action : run.schedule.workers[worker]) {
        SCOPED_TRACE(std::string(schedule_name) + " " + to_string(action));
        run.saboteur.target = action;
        try {
          run.train(pipeline);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const ActionError& error) {
          EXPECT_EQ(error.action(), action) << to_string(error.action());
          EXPECT_EQ(error.worker(), worker);
          EXPECT_THAT(error.what(), HasSubstr("this layer failed"));
          EXPECT_THROW(std::rethrow_exception(error.cause()), std::domain_error);
        }
        EXPECT_EQ(run.saboteur.num_at_work, 0);
      }
    }
  }
}

TEST(StepError, AThrowInTheLossHasTheCoordinatesOfItsForward) {
  for (const char* schedule_name : kSchedules) {
    Fixture run(schedule_name);
    Pipeline pipeline = run.make();
    for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
      SCOPED_TRACE(std::string(schedule_name) + " " + std::to_string(micro_batch));
      const auto loss = [&](const at::Tensor& output, const at::Tensor& target) {
        if (target[0][0].item<int>() == micro_batch) throw std::domain_error("the loss failed");
        return torch::mse_loss(output, target);
      };
      try {
        pipeline->train_step(run.batch.input, run.batch.target, loss);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const ActionError& error) {
        const Action expected{ActionKind::kForward, run.schedule.num_stages - 1, micro_batch};
        EXPECT_EQ(error.action(), expected) << to_string(error.action());
        EXPECT_THAT(error.what(), HasSubstr("the loss failed"));
      }
      EXPECT_EQ(run.saboteur.num_at_work, 0);
    }
  }
}

// A step that fails at `action` leaves no trace in the one after it.
void expect_fresh_after_throw(Fixture& run, const Action& action, const Pipeline& fresh, const at::Tensor& expected) {
  Pipeline pipeline = run.make();
  run.saboteur.target = action;
  EXPECT_THROW(run.train(pipeline), ActionError);
  run.saboteur.target = std::nullopt;
  clear_gradients(pipeline);
  expect_same_bits(run.train(pipeline), expected, "loss");
  expect_same_bits(*pipeline, *fresh);
}

TEST(StepError, AfterAThrowAnywhereTheNextStepIsThatOfANewPipeline) {
  for (const char* schedule_name : kSchedules) {
    Fixture run(schedule_name);
    Pipeline fresh = run.make();
    const at::Tensor expected = run.train(fresh);
    for (const auto& actions : run.schedule.workers) {
      for (const Action& action : actions) {
        SCOPED_TRACE(std::string(schedule_name) + " " + to_string(action));
        expect_fresh_after_throw(run, action, fresh, expected);
      }
    }
  }
}

TEST(StepError, AfterAThrowInTheLossTheNextStepIsThatOfANewPipeline) {
  Fixture run("1f1b");
  Pipeline fresh = run.make();
  run.train(fresh);
  Pipeline pipeline = run.make();
  const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
    if (target[0][0].item<int>() == 3) throw std::domain_error("the loss failed");
    return torch::mse_loss(output, target);
  };
  EXPECT_THROW(pipeline->train_step(run.batch.input, run.batch.target, loss), ActionError);
  clear_gradients(pipeline);
  run.train(pipeline);
  expect_same_bits(*pipeline, *fresh);
}

TEST(StepError, AnythingMayBeThrown) {
  Fixture run("1f1b");
  Pipeline pipeline = run.make();
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kRecompute, ActionKind::kBackward}) {
    SCOPED_TRACE(name(kind));
    run.saboteur.target = Action{kind, 0, 1};
    run.saboteur.hit = [] { throw 42; };
    try {
      run.train(pipeline);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const ActionError& error) {
      EXPECT_EQ(error.action(), *run.saboteur.target);
      EXPECT_THAT(error.what(), HasSubstr("not a std::exception"));
      EXPECT_THROW(std::rethrow_exception(error.cause()), int);
    }
  }
  run.saboteur.target = std::nullopt;
  EXPECT_NO_THROW(run.train(pipeline));
}

TEST(StepError, AnErrorOutlivesItsPipeline) {
  Fixture run("1f1b");
  std::optional<ActionError> kept;
  {
    Pipeline pipeline = run.make();
    run.saboteur.target = Action{ActionKind::kBackward, 1, 2};
    try {
      run.train(pipeline);
    } catch (const ActionError& error) {
      kept = error;
    }
  }
  ASSERT_TRUE(kept.has_value());
  EXPECT_THAT(kept->what(), HasSubstr("micro-batch 2 on stage 1"));
  EXPECT_THROW(std::rethrow_exception(kept->cause()), std::domain_error);
}

TEST(StepError, TheDropInForwardThrowsTheErrorItself) {
  Fixture run("1f1b");
  Pipeline pipeline = run.make();
  for (const bool with_grad : {true, false}) {
    const at::AutoGradMode grad_mode(with_grad);
    for (int stage = 0; stage < 3; ++stage) {
      for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
        run.saboteur.target = Action{ActionKind::kForward, stage, micro_batch};
        try {
          pipeline->forward(run.batch.input);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const ActionError& error) {
          EXPECT_EQ(error.action(), *run.saboteur.target);
        }
        EXPECT_EQ(run.saboteur.num_at_work, 0);
      }
    }
    run.saboteur.target = std::nullopt;
    EXPECT_NO_THROW(pipeline->forward(run.batch.input));
  }
}

TEST(StepError, TheDropInBackwardThrowsTheErrorItself) {
  Fixture run("1f1b");
  Pipeline pipeline = run.make();
  for (const ActionKind kind : {ActionKind::kRecompute, ActionKind::kBackward}) {
    for (int stage = 0; stage < 2; ++stage) {
      for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
        const Action action{kind, stage, micro_batch};
        SCOPED_TRACE(to_string(action));
        const at::Tensor loss = pipeline->forward(run.batch.input).sum();
        run.saboteur.target = action;
        try {
          loss.backward({}, /*retain_graph=*/true);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const ActionError& error) {
          EXPECT_EQ(error.action(), action) << to_string(error.action());
          EXPECT_THROW(std::rethrow_exception(error.cause()), std::domain_error);
        }
        EXPECT_EQ(run.saboteur.num_at_work, 0);
        run.saboteur.target = std::nullopt;
        EXPECT_THROW(loss.backward(), Error);
        EXPECT_NO_THROW(pipeline->forward(run.batch.input).sum().backward());
      }
    }
  }
}

TEST(StepError, AFailedBackwardLeavesAnotherStepInFlightWhole) {
  Fixture run("1f1b");
  Pipeline alone = run.make();
  run.saboteur.target = std::nullopt;
  alone->forward(run.batch.input).sum().backward();
  Pipeline pipeline = run.make();
  const at::Tensor first = pipeline->forward(run.batch.input).sum();
  const at::Tensor second = pipeline->forward(run.batch.input).sum();
  run.saboteur.target = Action{ActionKind::kBackward, 2, 0};
  EXPECT_THROW(second.backward(), ActionError);
  run.saboteur.target = std::nullopt;
  clear_gradients(pipeline);
  first.backward();
  for (const auto& parameter : alone->named_parameters()) {
    expect_same_bits(pipeline->named_parameters()[parameter.key()].grad(), parameter.value().grad(), parameter.key());
  }
}

TEST(StepError, AStepThatIsNeverTakenBackLeavesNothingBehind) {
  Fixture run("1f1b");
  Pipeline pipeline = run.make();
  const at::Tensor input = run.batch.input.clone().requires_grad_(true);
  const auto before = input.use_count();
  { const at::Tensor output = pipeline->forward(input); }
  EXPECT_EQ(input.use_count(), before);
  EXPECT_NO_THROW(run.train(pipeline));
}

TEST(StepError, AFailedStepDoesNotCount) {
  // Dropout draws by step.
  for (const Action& action : {Action{ActionKind::kForward, 0, 0}, Action{ActionKind::kBackward, 1, 2}}) {
    Fixture run("1f1b", 0.5);
    Pipeline fresh = run.make();
    const at::Tensor expected = run.train(fresh);
    expect_fresh_after_throw(run, action, fresh, expected);
  }
}

TEST(StepError, ABackwardAfterThePipelineIsGoneWorksOrSaysSo) {
  Fixture run("1f1b");
  at::Tensor output;
  Tensors parameters;
  {
    Pipeline pipeline = run.make();
    parameters = pipeline->parameters();
    output = pipeline->forward(run.batch.input);
  }
  try {
    output.sum().backward();
  } catch (const Error&) {
    return;
  }
  for (const at::Tensor& parameter : parameters) EXPECT_TRUE(parameter.grad().defined());
}

}  // namespace
}  // namespace gpipe

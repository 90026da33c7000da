// Schedules that split the backward, on real tensors: what the grid of the bitwise test does not cover.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/profiler.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/report/chrome_trace.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulate/schedule_search.h"
#include "tests/execute/training.h"

namespace gpipe::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SplitScheduleTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(SplitScheduleTest, WhichWeightsAreDeferredChangesNothing) {
  for (const char* const name : {"transformer", "cnn"}) {
    const TestModel model = make_model(name);
    const Trained plain = train_plainly(model, 13);
    for (const DeferredWeights which : {DeferredWeights::kMatrices, DeferredWeights::kAll, DeferredWeights::kNone}) {
      SCOPED_TRACE(testing::Message() << name << ", deferred " << static_cast<int>(which));
      expect_same_bits(train_pipelined(model, 13, options_for(model, 2, "zb-v").deferred_weights(which)), plain);
    }
  }
}

// The weight gradients are in order; the input gradients, in which small parameters would be finished, are not.
TEST_F(SplitScheduleTest, InputGradientsInAnotherOrderChangeNothing) {
  const TestModel model = make_model("transformer");
  const Trained plain = train_plainly(model, 16);
  for (const std::string line : {"F0 F1 F2 F3 I3 I2 I1 I0 W0 W1 W2 W3\n", "F0 F1 F2 F3 I1 I2 B0 W1 W2 B3\n"}) {
    SCOPED_TRACE(line);
    const Schedule schedule = parse_text(line + line);
    expect_same_bits(train_pipelined(model, 16, options_for(model, 2, "1f1b").custom_schedule(schedule)), plain);
  }
}

TEST_F(SplitScheduleTest, ASmallBatchLeavesOutTheMicroBatchesThatItDoesNotMake) {
  const TestModel model = make_model("transformer");
  const Schedule schedule = parse_text("F0 F1 F2 F3 I0 I1 W0 W1 B2 B3\nF0 I0 F1 I1 F2 I2 W0 W1 W2 F3 B3\n");
  for (const std::int64_t num_samples : {1, 3, 16}) {
    SCOPED_TRACE(num_samples);
    expect_same_bits(train_pipelined(model, num_samples, options_for(model, 2, "1f1b").custom_schedule(schedule)),
                     train_plainly(model, num_samples));
  }
}

TEST_F(SplitScheduleTest, SchedulesInPyTorchsFormTrainAsThePlainModelDoes) {
  const TestModel model = make_model("mlp");
  const Trained plain = train_plainly(model, 13, 10);
  for (const std::string name : {"zb-v", "dualpipe-v"}) {
    SCOPED_TRACE(name);
    std::ifstream file(std::string(GPIPE_TEST_DATA_DIR) + "/schedules/" + name + "_4_workers_10_micro_batches.csv");
    const Schedule schedule =
        parse_csv(std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
    const PipelineOptions options =
        PipelineOptions(4).num_micro_batches(10).custom_schedule(schedule).balance(even_balance(model.chain.size(), 8));
    expect_same_bits(train_pipelined(model, 13, options), plain);
  }
}

TEST_F(SplitScheduleTest, ASearchedScheduleTrainsAsThePlainModelDoes) {
  for (const char* const name : {"transformer", "unet", "cnn"}) {
    const TestModel model = make_model(name);
    for (const std::int64_t num_samples : {3, 13}) {
      const Trained plain = train_plainly(model, num_samples);
      for (const Recompute recompute : {Recompute::kNever, Recompute::kAlways, Recompute::kAuto}) {
        SCOPED_TRACE(testing::Message() << name << ", " << num_samples << " samples, " << gpipe::name(recompute));
        PipelineOptions options(3);
        options.num_micro_batches(kNumMicroBatches).schedule("search").search_seconds(0.05).recompute(recompute);
        expect_same_bits(train_pipelined(model, num_samples, options), plain);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

// A plan of a search, through a file, is what the pipeline runs.
TEST_F(SplitScheduleTest, ThePlanOfASearchRunsAsItIs) {
  const TestModel model = make_model("transformer");
  PlanOptions options;
  options.num_stages = 2;
  options.num_micro_batches = kNumMicroBatches;
  options.search_seconds = 0.05;
  const Plan plan = search_schedules(profile(model.chain, model.input.narrow(0, 0, 4)), options).best;
  Pipeline pipeline(model.chain, PipelineOptions(parse_plan(to_json(plan))).seed(kSeed));
  const StepResult result = pipeline->train_step(model.input, model.target, model.loss);
  for (int worker = 0; worker < 2; ++worker) {
    std::vector<Action> ran;
    for (const Span& span : result.timeline.workers[worker].spans) ran.push_back(span.action);
    EXPECT_EQ(ran, plan.order->workers[worker]);
  }
  EXPECT_EQ(pipeline->layers_per_stage(), plan.layers_per_stage);
}

// With one sample, the gradient of the shift is a view of that of the output, which others still read.
struct ShiftImpl : torch::nn::Module {
  ShiftImpl() {
    weight = register_parameter("weight", torch::randn({4, 4}));
    shift = register_parameter("shift", torch::randn({4}));
  }
  at::Tensor forward(const at::Tensor& input) { return input.matmul(weight) + shift.unsqueeze(0); }
  at::Tensor weight, shift;
};
TORCH_MODULE(Shift);

struct OnlyShiftImpl : torch::nn::Module {
  OnlyShiftImpl() { shift = register_parameter("shift", torch::randn({1, 4})); }
  at::Tensor forward(const at::Tensor& input) { return input + shift; }
  at::Tensor shift;
};
TORCH_MODULE(OnlyShift);

TEST_F(SplitScheduleTest, GradientsThatAreViewsOfOthersAreNotAddedToWhileTheseAreRead) {
  const auto make = [] {
    torch::manual_seed(1);
    return torch::nn::Sequential(Shift(), OnlyShift(), Shift(), Shift(), OnlyShift(), Shift());
  };
  torch::manual_seed(2);
  const at::Tensor input = torch::randn({4, 4});
  const at::Tensor target = torch::randn({4, 4});
  torch::nn::Sequential plain = make();
  for (int sample = 0; sample < 4; ++sample) {
    (torch::mse_loss(plain->forward(input.narrow(0, sample, 1)), target.narrow(0, sample, 1)) * 0.25).backward();
  }
  const auto expect_plain = [&](const PipelineOptions& options, const std::string& what) {
    Pipeline pipeline(make(), options);
    pipeline->train_step(input, target, torch::nn::MSELoss());
    for (std::size_t index = 0; index < plain->parameters().size(); ++index) {
      EXPECT_TRUE(same_bits(pipeline->parameters()[index].grad(), plain->parameters()[index].grad()))
          << what << " " << index;
    }
  };
  for (const char* const schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) {
    expect_plain(PipelineOptions(2).num_micro_batches(4).schedule(schedule).balance({3, 3}), schedule);
  }
  expect_plain(PipelineOptions(3).num_micro_batches(4).schedule("zb-v").balance({1, 1, 1, 1, 1, 1}), "zb-v");
  const Schedule late = parse_text(
      "F0 F1 F2 F3 I0 I1 I2 I3 W0 W1 W2 W3\n"
      "F0 F1 F2 F3 I0 I1 I2 I3 W0 W1 W2 W3\n");
  expect_plain(PipelineOptions(2).num_micro_batches(4).custom_schedule(late).balance({3, 3}), "late");
}

TEST_F(SplitScheduleTest, ADropInForwardAndBackwardHaveTheSameBits) {
  const auto make = [] {
    torch::manual_seed(11);
    return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 6), torch::nn::Tanh(),
                                 torch::nn::Linear(6, 3));
  };
  const auto train = [](const torch::nn::Module& module, const std::function<at::Tensor(const at::Tensor&)>& forward) {
    torch::manual_seed(12);
    torch::optim::SGD optimizer(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    Tensors of_inputs;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const at::Tensor input = torch::randn({8, 4}).requires_grad_();
      torch::mse_loss(forward(input), torch::randn({8, 3})).backward();
      optimizer.step();
      of_inputs.push_back(input.grad());
    }
    for (const at::Tensor& parameter : module.parameters()) of_inputs.push_back(parameter.detach());
    return of_inputs;
  };
  torch::nn::Sequential model = make();
  const Tensors expected = train(*model, [&](const at::Tensor& input) { return model->forward(input); });
  for (const char* const schedule : {"zb-h1", "zb-v", "dualpipe-v"}) {
    const std::vector<int> balance =
        std::string(schedule) == "zb-h1" ? std::vector<int>{2, 3} : std::vector<int>{1, 1, 1, 2};
    Pipeline pipeline(make(), PipelineOptions(2).num_micro_batches(1).schedule(schedule).balance(balance));
    const Tensors got = train(*pipeline, [&](const at::Tensor& input) { return pipeline->forward(input); });
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t index = 0; index < got.size(); ++index) {
      EXPECT_TRUE(same_bits(got[index], expected[index])) << schedule << " " << index;
    }
  }
}

TEST_F(SplitScheduleTest, FrozenParametersGetNoGradient) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                              torch::nn::Linear(4, 2));
  // All of the first stage, and a weight of the third.
  for (const std::size_t index : {std::size_t{0}, std::size_t{1}, std::size_t{4}}) {
    model->parameters()[index].set_requires_grad(false);
  }
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2).schedule("zb-v").balance({1, 1, 1, 1}));
  pipeline->train_step(torch::randn({4, 4}), torch::randn({4, 2}), torch::nn::MSELoss());
  const Tensors parameters = pipeline->parameters();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    EXPECT_EQ(parameters[index].grad().defined(), index > 1 && index != 4) << index;
  }
}

TEST_F(SplitScheduleTest, NothingIsHeldAfterTheStep) {
  const TestModel model = make_model("transformer");
  const auto live_bytes = [&](const char* schedule) {
    Pipeline pipeline(model.chain, options_for(model, 2, schedule).measure_memory(true));
    std::vector<std::int64_t> bytes;
    for (int step = 0; step < 2; ++step) {
      const StepResult result = pipeline->train_step(model.input.clone(), model.target, model.loss);
      for (const StageMemory& stage : result.memory) bytes.push_back(stage.live_bytes);
    }
    return bytes;
  };
  EXPECT_EQ(live_bytes("zb-h1"), live_bytes("1f1b"));
}

// A product with its own backward.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight) {
    context->save_for_backward({input, weight});
    return input.matmul(weight);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& grads) {
    const Tensors saved = context->get_saved_variables();
    return {grads[0].matmul(saved[1].t()), saved[0].t().matmul(grads[0])};
  }
};

struct OwnLinearImpl : torch::nn::Module {
  OwnLinearImpl() { weight = register_parameter("weight", torch::randn({4, 4})); }
  at::Tensor forward(const at::Tensor& input) { return OwnProduct::apply(input, weight); }
  at::Tensor weight;
};
TORCH_MODULE(OwnLinear);

TEST_F(SplitScheduleTest, TheResultAndTheTraceSayOnceWhichBackwardCannotBeSplit) {
  torch::manual_seed(1);
  const torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), OwnLinear(), OwnLinear());
  const auto step = [&](const char* schedule) {
    Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(4).schedule(schedule).balance({2, 2}));
    return pipeline->train_step(torch::randn({4, 4}), torch::randn({4, 4}), torch::nn::MSELoss());
  };
  const StepResult result = step("zb-h1");
  EXPECT_THAT(result.timeline.notes, ElementsAre(HasSubstr("stage 1: the backward of ")));
  EXPECT_THAT(result.timeline.notes.front(), HasSubstr("OwnProduct"));
  EXPECT_THAT(to_chrome_trace(result.timeline), HasSubstr("OwnProduct"));
  EXPECT_THAT(step("1f1b").timeline.notes, IsEmpty());
}

TEST_F(SplitScheduleTest, ABackwardThatCannotBeSplitIsRefusedWhereItsOrderWouldBeWrong) {
  torch::manual_seed(1);
  const torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), OwnLinear(), OwnLinear());
  const Schedule schedule = parse_text("F0 F1 I1 I0 W0 W1\nF0 F1 I1 I0 W0 W1\n");
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2).custom_schedule(schedule).balance({2, 2}));
  try {
    pipeline->train_step(torch::randn({4, 4}), torch::randn({4, 4}), torch::nn::MSELoss());
    FAIL() << "no error";
  } catch (const ActionError& error) {
    EXPECT_THAT(error.what(), HasSubstr("OwnProduct"));
    EXPECT_THAT(error.what(), HasSubstr("ascending order"));
  }
}

TEST_F(SplitScheduleTest, AnErrorInAWeightGradientNamesItsAction) {
  struct BadBackward : torch::autograd::Function<BadBackward> {
    static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& weight) {
      return weight.clone();
    }
    static Tensors backward(torch::autograd::AutogradContext* /*context*/, const Tensors& /*grads*/) {
      throw std::domain_error("no such gradient");
    }
  };
  struct BadLayerImpl : torch::nn::Module {
    BadLayerImpl() { weight = register_parameter("weight", torch::randn({4, 4})); }
    at::Tensor forward(const at::Tensor& input) { return input.matmul(BadBackward::apply(weight)); }
    at::Tensor weight;
  };
  torch::nn::Sequential model;
  model->push_back(torch::nn::Linear(4, 4));
  model->push_back(BadLayerImpl());
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2).schedule("zb-h1").balance({1, 1}));
  try {
    pipeline->train_step(torch::randn({4, 4}), torch::randn({4, 4}), torch::nn::MSELoss());
    FAIL() << "no error";
  } catch (const ActionError& error) {
    EXPECT_EQ(error.action().kind, ActionKind::kWeightGrad);
    EXPECT_EQ(error.action().stage, 1);
    EXPECT_THAT(error.what(), HasSubstr("no such gradient"));
  }
}

}  // namespace
}  // namespace gpipe::test

// What a training step does besides its bits: losses, batches of any size, several pipelines, frozen parts, input
// gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <thread>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/dropout.h"
#include "gpipe/schedule/registry.h"
#include "tests/execute/plain_chain.h"

namespace gpipe {
namespace {

using test::expect_same_bits;
using test::expect_transparent;
using test::Problem;
using ::testing::ElementsAre;
using torch::nn::Linear;
using torch::nn::Tanh;

at::Tensor squared_error(const Tensors& outputs, const Tensors& targets) {
  return torch::mse_loss(outputs.front(), targets.front());
}

LayerChain make_chain() {
  return LayerChain()
      .add<Linear>("0", 4, 6)
      .add<Tanh>("1")
      .add<torch::nn::Dropout>("2", 0.2)
      .add<Linear>("3", 6, 6)
      .add<nn::Dropout>("4", 0.2)
      .add<Linear>("5", 6, 4);
}

Tensors random_batch(int num_samples) { return {torch::randn({num_samples, 4})}; }

Problem make_problem(std::function<LayerChain()> make = make_chain, int num_samples = 13) {
  torch::manual_seed(9);
  return {std::move(make), random_batch(num_samples), random_batch(num_samples), squared_error};
}

// Notes what its layer run looked like.
struct WitnessImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    const LayerRun& run = *LayerScope::current();
    const std::lock_guard<std::mutex> lock(mutex);
    (is_recomputing() ? recomputes : forwards)[run.micro_batch] += 1;
    rows[run.micro_batch] = input.size(0);
    return input * 1.0;
  }
  std::mutex mutex;
  std::map<int, int> forwards;  // by micro-batch
  std::map<int, int> recomputes;
  std::map<int, std::int64_t> rows;
};
TORCH_MODULE(Witness);

TEST(TrainStep, ASumLossIsNotWeighted) {
  Problem problem = make_problem();
  problem.options.loss_reduction(LossReduction::kSum);
  problem.loss = [](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs.front(), targets.front(), at::Reduction::Sum);
  };
  expect_transparent(problem);
}

TEST(TrainStep, GradientsAccumulateOverSeveralStepsUntilTheOptimizersStep) {
  at::set_num_threads(1);
  const Problem problem = make_problem();
  test::PlainChain plain(make_chain(), problem.options);
  Pipeline pipeline(make_chain(), PipelineOptions(3).num_micro_batches(4).recompute(Recompute::kAlways));
  torch::optim::Adam plain_optimizer(plain.model().parameters(), 1e-2);
  torch::optim::Adam optimizer(pipeline->parameters(), 1e-2);
  for (int update = 0; update < 3; ++update) {
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
    for (int step = 0; step < 3; ++step) {
      const Tensors inputs = random_batch(8 + step);
      const Tensors targets = random_batch(8 + step);
      expect_same_bits(pipeline->train_step(inputs, targets, squared_error).loss,
                       plain.train_step(inputs, targets, squared_error), "loss");
    }
    plain_optimizer.step();
    optimizer.step();
    expect_same_bits(*pipeline, plain.model());
  }
}

TEST(TrainStep, BatchesMayChangeTheirShapeFromStepToStep) {
  at::set_num_threads(1);
  const auto make = [] {
    return LayerChain().add<torch::nn::Embedding>("0", 9, 4).add<Linear>("1", 4, 4).add<Tanh>("2").add<Linear>("3", 4,
                                                                                                               2);
  };
  torch::manual_seed(9);
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    const PipelineOptions options = PipelineOptions(2).num_micro_batches(4).recompute(recompute);
    test::PlainChain plain(make(), options);
    Pipeline pipeline(make(), options);
    for (const auto& [rows, length] :
         std::vector<std::pair<int, int>>{{8, 5}, {3, 5}, {13, 1}, {1, 7}, {8, 6}, {4, 5}}) {
      const Tensors inputs = {torch::randint(9, {rows, length})};
      const Tensors targets = {torch::randn({rows, length, 2})};
      expect_same_bits(pipeline->train_step(inputs, targets, squared_error).loss,
                       plain.train_step(inputs, targets, squared_error), "loss");
      expect_same_bits(*pipeline, plain.model());
    }
  }
}

TEST(TrainStep, SixRowsInFourMicroBatchesMakeFour) {
  Witness witness;
  torch::nn::Sequential model(Linear(4, 4), witness, Linear(4, 4));
  Pipeline pipeline(LayerChain(model), PipelineOptions(2).num_micro_batches(4));
  const StepResult step = pipeline->train_step(random_batch(6), random_batch(6), squared_error);
  EXPECT_THAT(witness->rows, ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 1), std::pair(3, 1)));
  EXPECT_EQ(step.timeline.num_micro_batches, 4);
}

TEST(TrainStep, IsRecomputingIsSeenExactlyInTheRecomputesOfTheSchedule) {
  for (const char* schedule_name : {"gpipe", "1f1b", "interleaved"}) {
    for (const Recompute recompute : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
      SCOPED_TRACE(std::string(schedule_name) + " " + name(recompute));
      const Schedule schedule = with_recompute(make_schedule(schedule_name, 2, 4), recompute);
      std::vector<Witness> witnesses(schedule.num_stages);
      torch::nn::Sequential model;
      for (const Witness& witness : witnesses) {
        model->push_back(Linear(4, 4));
        model->push_back(witness);
      }
      Pipeline pipeline(LayerChain(model), PipelineOptions(2)
                                               .num_micro_batches(4)
                                               .schedule(schedule_name)
                                               .recompute(recompute)
                                               .balance(std::vector<int>(schedule.num_stages, 2)));
      for (int step = 0; step < 2; ++step) {  // the first has a trial before it
        for (Witness& witness : witnesses) witness->forwards.clear();
        for (Witness& witness : witnesses) witness->recomputes.clear();
        pipeline->train_step(random_batch(8), random_batch(8), squared_error);
      }
      std::vector<std::map<int, int>> forwards(schedule.num_stages);
      std::vector<std::map<int, int>> recomputes(schedule.num_stages);
      for (const auto& actions : schedule.workers) {
        for (const Action& action : actions) {
          if (action.kind == ActionKind::kForward) forwards[action.stage][action.micro_batch] = 1;
          if (action.kind == ActionKind::kRecompute) recomputes[action.stage][action.micro_batch] = 1;
        }
      }
      for (int stage = 0; stage < schedule.num_stages; ++stage) {
        EXPECT_EQ(witnesses[stage]->forwards, forwards[stage]) << "stage " << stage;
        EXPECT_EQ(witnesses[stage]->recomputes, recomputes[stage]) << "stage " << stage;
      }
    }
  }
}

TEST(TrainStep, TheTimelineHoldsTheActionsOfTheSchedule) {
  for (const char* schedule_name : {"gpipe", "1f1b", "interleaved", "looped-bfs"}) {
    SCOPED_TRACE(schedule_name);
    const Schedule schedule = with_recompute(make_schedule(schedule_name, 2, 4), Recompute::kAlways);
    Pipeline pipeline(make_chain(),
                      PipelineOptions(2).num_micro_batches(4).schedule(schedule_name).recompute(Recompute::kAlways));
    const Timeline timeline = pipeline->train_step(random_batch(8), random_batch(8), squared_error).timeline;
    ASSERT_EQ(timeline.workers.size(), schedule.workers.size());
    for (std::size_t worker = 0; worker < schedule.workers.size(); ++worker) {
      std::vector<Action> actions;
      for (const Span& span : timeline.workers[worker].spans) actions.push_back(span.action);
      EXPECT_EQ(actions, schedule.workers[worker]) << "worker " << worker;
    }
  }
}

TEST(TrainStep, TwoPipelinesInTurnTrainAsEachAlone) {
  at::set_num_threads(1);
  const Problem problem = make_problem();
  const PipelineOptions options_a = PipelineOptions(2).num_micro_batches(4).seed(1);
  const PipelineOptions options_b = PipelineOptions(3).num_micro_batches(2).seed(2).recompute(Recompute::kAlways);
  Pipeline alone_a(make_chain(), options_a);
  for (int step = 0; step < 3; ++step) alone_a->train_step(problem.inputs, problem.targets, squared_error);
  Pipeline alone_b(make_chain(), options_b);
  for (int step = 0; step < 3; ++step) alone_b->train_step(problem.inputs, problem.targets, squared_error);
  Pipeline a(make_chain(), options_a);
  Pipeline b(make_chain(), options_b);
  for (int step = 0; step < 3; ++step) {
    a->train_step(problem.inputs, problem.targets, squared_error);
    b->train_step(problem.inputs, problem.targets, squared_error);
  }
  expect_same_bits(*a, *alone_a);
  expect_same_bits(*b, *alone_b);
}

TEST(TrainStep, TwoPipelinesInTwoThreadsTrainAsEachAlone) {
  at::set_num_threads(1);
  const Problem problem = make_problem();
  const PipelineOptions options = PipelineOptions(2).num_micro_batches(4).recompute(Recompute::kAlways);
  const auto train = [&](Pipeline pipeline) {
    for (int step = 0; step < 20; ++step) pipeline->train_step(problem.inputs, problem.targets, squared_error);
  };
  Pipeline alone(make_chain(), options);
  train(alone);
  Pipeline a(make_chain(), options);
  Pipeline b(make_chain(), options);
  std::thread other([&] { train(b); });
  train(a);
  other.join();
  expect_same_bits(*a, *alone);
  expect_same_bits(*b, *alone);
}

TEST(TrainStep, ADropInBackwardMayFollowAStepOfAnotherPipeline) {
  at::set_num_threads(1);
  const Problem problem = make_problem();
  const PipelineOptions options = PipelineOptions(2).num_micro_batches(4).recompute(Recompute::kAlways);
  Pipeline alone(make_chain(), options);
  alone->forward_tensors(problem.inputs)[0].sum().backward();
  Pipeline a(make_chain(), options);
  Pipeline b(make_chain(), options);
  const at::Tensor output = a->forward_tensors(problem.inputs)[0];
  b->train_step(problem.inputs, problem.targets, squared_error);
  output.sum().backward();
  expect_same_bits(*a, *alone);
}

TEST(TrainStep, OnePipelinesOutputMayBeAnothersInput) {
  at::set_num_threads(1);
  const Problem problem = make_problem();
  const PipelineOptions options = PipelineOptions(2).num_micro_batches(1);
  test::PlainChain plain_a(make_chain(), options);
  test::PlainChain plain_b(make_chain(), options);
  plain_b.forward(plain_a.forward(problem.inputs, {}), {})[0].sum().backward();
  Pipeline a(make_chain(), options);
  Pipeline b(make_chain(), options);
  b->forward_tensors(a->forward_tensors(problem.inputs))[0].sum().backward();
  expect_same_bits(*a, plain_a.model());
  expect_same_bits(*b, plain_b.model());
}

// Freezes the layers for which `frozen` says so.
Problem frozen_problem(const std::function<bool(int)>& frozen) {
  return make_problem([frozen] {
    torch::manual_seed(5);
    torch::nn::Sequential model(Linear(4, 4), Tanh(), Linear(4, 4), Tanh(), Linear(4, 4), Linear(4, 4));
    for (std::size_t layer = 0; layer < model->size(); ++layer) {
      for (at::Tensor& parameter : model[layer]->parameters())
        parameter.requires_grad_(!frozen(static_cast<int>(layer)));
    }
    return LayerChain(model);
  });
}

TEST(TrainStep, TheFirstLayersMayBeFrozen) {
  expect_transparent(frozen_problem([](int layer) { return layer < 4; }));
}

TEST(TrainStep, AMiddleLayerMayBeFrozen) {
  expect_transparent(frozen_problem([](int layer) { return layer == 2; }));
}

TEST(TrainStep, TheLastLayersMayBeFrozen) {
  expect_transparent(frozen_problem([](int layer) { return layer > 1; }));
}

TEST(TrainStep, OnlyTheLastLayerMayBeTrained) {
  expect_transparent(frozen_problem([](int layer) { return layer < 5; }));
}

TEST(TrainStep, AStageMayBeFrozenAndThawedBetweenSteps) {
  at::set_num_threads(1);
  const Problem problem = make_problem();
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    const PipelineOptions options = PipelineOptions(3).num_micro_batches(4).recompute(recompute);
    test::PlainChain plain(make_chain(), options);
    Pipeline pipeline(make_chain(), options);
    for (const bool trained : {true, false, true}) {
      for (auto* model : {static_cast<torch::nn::Module*>(pipeline.get()), &plain.model()}) {
        for (auto& parameter : model->named_parameters()) {
          if (parameter.key()[0] == '0') parameter.value().requires_grad_(trained);
        }
      }
      plain.train_step(problem.inputs, problem.targets, squared_error);
      pipeline->train_step(problem.inputs, problem.targets, squared_error);
      expect_same_bits(*pipeline, plain.model());
    }
  }
}

TEST(TrainStep, ACastPipelineTrainsInItsNewType) {
  at::set_num_threads(1);
  Problem problem = make_problem();
  problem.inputs[0] = problem.inputs[0].to(at::kDouble);
  problem.targets[0] = problem.targets[0].to(at::kDouble);
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    const PipelineOptions options = PipelineOptions(3).num_micro_batches(4).recompute(recompute);
    test::PlainChain plain(make_chain(), options);
    Pipeline pipeline(make_chain(), options);
    plain.model().to(torch::kFloat64);
    pipeline->to(torch::kFloat64);
    const at::Tensor loss = pipeline->train_step(problem.inputs, problem.targets, squared_error).loss;
    EXPECT_EQ(loss.scalar_type(), at::kDouble);
    expect_same_bits(loss, plain.train_step(problem.inputs, problem.targets, squared_error), "loss");
    expect_same_bits(*pipeline, plain.model());
  }
}

TEST(TrainStep, TheLossIsDetachedAndItsGraphGone) {
  Pipeline pipeline(make_chain(), PipelineOptions(2).num_micro_batches(4));
  const at::Tensor loss = pipeline->train_step(random_batch(8), random_batch(8), squared_error).loss;
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_FALSE(loss.grad_fn());
}

TEST(TrainStep, AnInputThatRequiresAGradientGetsIt) {
  Problem problem = make_problem();
  problem.inputs[0].requires_grad_(true);
  expect_transparent(problem);
}

TEST(TrainStep, BatchNormCountsAMicroBatchOnceEvenIfItIsRecomputed) {
  expect_transparent(make_problem([] {
    return LayerChain()
        .add<Linear>("0", 4, 6)
        .add<torch::nn::BatchNorm1d>("1", 6)
        .add<Tanh>("2")
        .add<Linear>("3", 6, 6)
        .add<torch::nn::BatchNorm1d>("4", torch::nn::BatchNorm1dOptions(6).momentum(c10::nullopt))
        .add<Linear>("5", 6, 4);
  }));
}

}  // namespace
}  // namespace gpipe

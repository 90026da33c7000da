// Optimizers of the stages: the same bits as one optimizer over all parameters, and used like it. The grids of
// bitwise_test.cpp and the checkpoints of tests/checkpoint/ train with them, too.
#include "gpipe/execute/stage_optimizers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/checkpoint/checkpoint.h"
#include "gpipe/model/memory_account.h"
#include "tests/execute/training.h"
#include "tests/os/temporary_folder.h"

namespace gpipe::test {
namespace {

// Matrices and vectors have options of their own.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> groups_of(const Tensors& parameters, const Options& of_matrices,
                                                         const Options& of_vectors) {
  Tensors matrices;
  Tensors vectors;
  for (const at::Tensor& parameter : parameters) (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(of_matrices));
  groups.emplace_back(vectors, std::make_unique<Options>(of_vectors));
  return groups;
}

// The rate falls, as with a scheduler.
void change_rates(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(group.options().get_lr() * 0.9);
}

template <typename Step>
Trained train(torch::nn::Module& model, torch::optim::Optimizer& optimizer, const Step& step) {
  Trained trained;
  for (int number = 0; number < kNumSteps; ++number) {
    optimizer.zero_grad();
    trained.tensors["loss" + std::to_string(number)] = step();
    change_rates(optimizer);
    optimizer.step();
  }
  add_state(model, trained);
  return trained;
}

// With two groups, for every K and with two stages a worker.
template <typename Optimizer, typename Options>
void expect_same_bits_as_one(const TestModel& model, const Options& of_matrices, const Options& of_vectors) {
  at::set_num_threads(1);
  PlainChain plain(model.chain, options_for(model, 1));
  Optimizer one(groups_of(plain.model().parameters(), of_matrices, of_vectors), of_vectors);
  const Trained expected =
      train(plain.model(), one, [&] { return plain.train_step({model.input}, {model.target}, loss_of(model)); });
  for (const auto& [num_workers, schedule] :
       std::vector<std::pair<int, std::string>>{{1, "gpipe"}, {2, "1f1b"}, {3, "zb-v"}, {4, "1f1b"}}) {
    SCOPED_TRACE(testing::Message() << model.name << ", " << num_workers << " workers, " << schedule);
    Pipeline pipeline(model.chain, options_for(model, num_workers, schedule));
    StageOptimizers<Optimizer> optimizer(pipeline, groups_of(pipeline->parameters(), of_matrices, of_vectors),
                                         of_vectors);
    expect_same_bits(
        train(*pipeline, optimizer, [&] { return pipeline->train_step(model.input, model.target, model.loss).loss; }),
        expected);
    EXPECT_EQ(optimizer.state().size(), one.state().size());
  }
}

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

TEST(StageOptimizersTest, TrainAsOneSgdDoes) {
  const auto of_matrices = SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01);
  for (const char* name : {"mlp", "unet"}) {
    expect_same_bits_as_one<torch::optim::SGD>(make_model(name), of_matrices, SGDOptions(0.05));
  }
}

TEST(StageOptimizersTest, TrainAsOneAdamDoes) {
  const auto of_matrices = AdamOptions(0.01).amsgrad(true).weight_decay(0.1);
  for (const char* name : {"cnn", "padded"}) {
    expect_same_bits_as_one<torch::optim::Adam>(make_model(name), of_matrices, AdamOptions(0.02));
  }
}

TEST(StageOptimizersTest, TrainAsOneAdamWDoes) {
  const auto of_matrices = AdamWOptions(0.01).betas(std::make_tuple(0.8, 0.9)).weight_decay(0.1);
  for (const char* name : {"transformer", "unet"}) {
    expect_same_bits_as_one<torch::optim::AdamW>(make_model(name), of_matrices, AdamWOptions(0.02));
  }
}

TEST(StageOptimizersTest, TrainAsOneRmsPropDoes) {
  const auto of_matrices = RMSpropOptions(0.01).momentum(0.5).centered(true);
  expect_same_bits_as_one<torch::optim::RMSprop>(make_model("mlp"), of_matrices, RMSpropOptions(0.01));
}

TEST(StageOptimizersTest, TrainAsOneAdagradDoes) {
  const auto of_matrices = AdagradOptions(0.05).lr_decay(0.1);
  expect_same_bits_as_one<torch::optim::Adagrad>(make_model("mlp"), of_matrices, AdagradOptions(0.05));
}

// Notes in which thread each parameter is updated.
class NotingSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    const std::lock_guard lock(mutex());
    for (const auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        threads()[parameter.unsafeGetTensorImpl()] = std::this_thread::get_id();
      }
    }
    return SGD::step(std::move(closure));
  }
  static std::map<const void*, std::thread::id>& threads() {
    static std::map<const void*, std::thread::id> threads;
    return threads;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
};

TEST(StageOptimizersTest, UpdateEachStageOnItsOwnWorker) {
  const TestModel model = make_model("mlp");
  Pipeline pipeline(model.chain, options_for(model, 3));
  at::Tensor extra = torch::ones({2}, torch::requires_grad());
  Tensors parameters = pipeline->parameters();
  parameters.push_back(extra);
  StageOptimizers<NotingSgd> optimizer(pipeline, {torch::optim::OptimizerParamGroup(parameters)}, SGDOptions(0.1));
  extra.mutable_grad() = torch::ones({2});
  pipeline->train_step(model.input, model.target, model.loss);
  NotingSgd::threads().clear();
  optimizer.step();

  std::set<std::thread::id> of_stages;
  int layer = 0;
  for (const int count : pipeline->layers_per_stage()) {
    std::set<std::thread::id> of_stage;
    for (const int end = layer + count; layer < end; ++layer) {
      for (const auto& item : pipeline->named_parameters()) {
        if (item.key().rfind(pipeline->layer_name(layer) + ".", 0) != 0) continue;
        of_stage.insert(NotingSgd::threads().at(item.value().unsafeGetTensorImpl()));
      }
    }
    EXPECT_EQ(of_stage.size(), 1u);
    of_stages.insert(of_stage.begin(), of_stage.end());
  }
  EXPECT_EQ(of_stages.size(), 3u);
  EXPECT_EQ(of_stages.count(std::this_thread::get_id()), 0u);
  EXPECT_EQ(NotingSgd::threads().at(extra.unsafeGetTensorImpl()), std::this_thread::get_id());
  EXPECT_TRUE(same_bits(extra, torch::full({2}, 1 - 0.1F)));
}

TEST(StageOptimizersTest, BeforeTheCutIsMadeUpdateInTheCallersThread) {
  const TestModel model = make_model("mlp");
  Pipeline pipeline(model.chain, PipelineOptions(2).num_micro_batches(kNumMicroBatches));  // cut by the first batch
  StageOptimizers<NotingSgd> optimizer(pipeline, SGDOptions(0.1));
  const at::Tensor weight = pipeline->parameters().front();
  const at::Tensor before = weight.detach().clone();
  weight.mutable_grad() = torch::ones_like(weight);
  NotingSgd::threads().clear();
  optimizer.step();
  EXPECT_EQ(NotingSgd::threads().at(weight.unsafeGetTensorImpl()), std::this_thread::get_id());
  EXPECT_TRUE(same_bits(weight.detach(), before.sub(torch::ones_like(before), 0.1)));
  optimizer.zero_grad();
  pipeline->train_step(model.input, model.target, model.loss);
  optimizer.step();
  for (const auto& item : NotingSgd::threads()) EXPECT_NE(item.second, std::this_thread::get_id());
}

TEST(StageOptimizersTest, TakeAClosureAndGroupsThatAreAddedLater) {
  at::set_num_threads(1);
  const TestModel model = make_model("mlp");
  const auto frozen_first = [](const Tensors& parameters) { return Tensors(parameters.begin() + 2, parameters.end()); };
  const auto first = [](const Tensors& parameters) { return Tensors(parameters.begin(), parameters.begin() + 2); };
  PlainChain plain(model.chain, options_for(model, 1));
  Pipeline pipeline(model.chain, options_for(model, 2));
  torch::optim::SGD one(frozen_first(plain.model().parameters()), SGDOptions(0.1).momentum(0.9));
  StageOptimizers<torch::optim::SGD> optimizer(
      pipeline, {torch::optim::OptimizerParamGroup(frozen_first(pipeline->parameters()))},
      SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {  // thawed
      one.add_param_group(torch::optim::OptimizerParamGroup(first(plain.model().parameters())));
      optimizer.add_param_group(torch::optim::OptimizerParamGroup(first(pipeline->parameters())));
    }
    one.zero_grad();
    optimizer.zero_grad();
    const at::Tensor expected =
        one.step([&] { return plain.train_step({model.input}, {model.target}, loss_of(model)); });
    const at::Tensor loss =
        optimizer.step([&] { return pipeline->train_step(model.input, model.target, model.loss).loss; });
    EXPECT_TRUE(same_bits(loss, expected)) << step;
  }
  expect_same_bits(*pipeline, plain.model());
}

TEST(StageOptimizersTest, AreSavedAndResumedOnOtherStagesAndByOneOptimizer) {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  const TestModel model = make_model("padded");
  const auto train_on = [&](Pipeline& pipeline, torch::optim::Optimizer& optimizer, int count) {
    for (; count > 0; --count) {
      optimizer.zero_grad();
      pipeline->train_step(model.input, model.target, model.loss);
      optimizer.step();
    }
  };
  Pipeline pipeline(model.chain, options_for(model, 2));
  StageOptimizers<torch::optim::AdamW> optimizer(pipeline, AdamWOptions(0.01));
  train_on(pipeline, optimizer, 2);
  save_checkpoint(folder.path(), pipeline, optimizer, {});
  train_on(pipeline, optimizer, 2);

  Pipeline on_four(model.chain, options_for(model, 4));
  StageOptimizers<torch::optim::AdamW> of_four(on_four, AdamWOptions(1));
  load_checkpoint(folder.path(), on_four, of_four);
  train_on(on_four, of_four, 2);
  expect_same_bits(*on_four, *pipeline);

  Pipeline on_one(model.chain, options_for(model, 1));
  torch::optim::AdamW plain(on_one->parameters(), AdamWOptions(1));
  load_checkpoint(folder.path(), on_one, plain);
  train_on(on_one, plain, 2);
  expect_same_bits(*on_one, *pipeline);
}

TEST(StageOptimizersTest, BookTheirStateOnTheStages) {
  const TestModel model = make_model("mlp");
  Pipeline pipeline(model.chain, options_for(model, 2).measure_memory(true));
  StageOptimizers<torch::optim::Adam> optimizer(pipeline, AdamOptions(0.01));
  pipeline->train_step(model.input, model.target, model.loss);
  EXPECT_EQ(pipeline->memory()[0].optimizer_bytes, 0);
  optimizer.step();
  for (const StageMemory& memory : pipeline->memory()) {
    EXPECT_EQ(memory.optimizer_bytes, 2 * memory.parameter_bytes);
  }
}

// The second stage's fails.
class FailingSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (fails() && param_groups().front().params().front().size(0) == 5) throw std::runtime_error("no room");
    return SGD::step(std::move(closure));
  }
  static bool& fails() {
    static bool fails = false;
    return fails;
  }
};

TEST(StageOptimizersTest, AnErrorOfOneIsThrownAndNoStateIsLost) {
  at::set_num_threads(1);
  TestModel model = make_model("mlp");
  Pipeline pipeline(model.chain, options_for(model, 2).balance({model.chain.size() - 1, 1}));
  StageOptimizers<FailingSgd> optimizer(pipeline, SGDOptions(0.1).momentum(0.9));
  pipeline->train_step(model.input, model.target, model.loss);
  optimizer.step();
  const std::size_t num_states = optimizer.state().size();
  FailingSgd::fails() = true;
  EXPECT_THROW(optimizer.step(), std::runtime_error);
  FailingSgd::fails() = false;
  EXPECT_EQ(optimizer.state().size(), num_states);
  for (const auto& item : optimizer.state()) EXPECT_NE(item.second, nullptr);
  EXPECT_NO_THROW(optimizer.step());
}

TEST(StageOptimizersTest, GradientsAreClippedToTheSameBitsOnTheStagesWorkers) {
  const TestModel model = make_model("transformer");
  for (const int num_threads : {1, 2}) {  // with 2, other than a stage has, the norms are taken in this thread
    for (const double max_norm : {0.01, 1e9}) {
      at::set_num_threads(1);
      PlainChain plain(model.chain, options_for(model, 1));
      plain.train_step({model.input}, {model.target}, loss_of(model));
      Pipeline pipeline(model.chain, options_for(model, 3));
      pipeline->train_step(model.input, model.target, model.loss);
      at::set_num_threads(num_threads);
      const double norm = torch::nn::utils::clip_grad_norm_(plain.model().parameters(), max_norm);
      EXPECT_EQ(clip_grad_norm_(pipeline, max_norm), norm);
      for (std::size_t index = 0; index < pipeline->parameters().size(); ++index) {
        EXPECT_TRUE(same_bits(pipeline->parameters()[index].grad(), plain.model().parameters()[index].grad()));
      }
    }
  }
  at::set_num_threads(1);
}

// What train_step of the optimizers leaves, for every schedule: the bits of a step and an update one after the other.
class UpdatesInTheStepTest : public ::testing::TestWithParam<std::string> {};

TEST_P(UpdatesInTheStepTest, TrainAsUpdatesBehindIt) {
  at::set_num_threads(1);
  const TestModel model = make_model(GetParam());
  const Trained plain = train_plainly(model, 13);
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    for (const int workers : {1, 2, 4}) {
      for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
        SCOPED_TRACE(testing::Message() << schedule << ", " << workers << " workers, recompute " << name(recompute));
        Pipeline pipeline(model.chain, options_for(model, workers, schedule, recompute));
        StageOptimizers<torch::optim::Adam> optimizer(pipeline, adam_options());
        Trained trained;
        for (int step = 0; step < kNumSteps; ++step) {
          optimizer.zero_grad();
          const StepResult result =
              optimizer.train_step(model.input.narrow(0, 0, 13).clone(), model.target.narrow(0, 0, 13), model.loss);
          trained.tensors["loss" + std::to_string(step)] = result.loss;
          int num_updates = 0;
          for (const WorkerTimeline& worker : result.timeline.workers) {
            for (const Span& span : worker.spans) num_updates += span.action.kind == ActionKind::kUpdate ? 1 : 0;
          }
          EXPECT_EQ(num_updates, static_cast<int>(pipeline->layers_per_stage().size()));
        }
        add_state(*pipeline, trained);
        expect_same_bits(trained, plain);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, UpdatesInTheStepTest, ::testing::Values("mlp", "padded"),
                         [](const auto& test) { return test.param; });

TEST(StageOptimizersTest, UpdateAtTheEndOfAStepThatMayBeTakenBack) {
  at::set_num_threads(1);
  const TestModel model = make_model("mlp");
  Pipeline pipeline(model.chain, options_for(model, 2).check_loss(true));
  StageOptimizers<torch::optim::SGD> optimizer(pipeline, SGDOptions(0.1));
  const StepResult result = optimizer.train_step(model.input, model.target, model.loss);
  for (const WorkerTimeline& worker : result.timeline.workers) {
    for (const Span& span : worker.spans) EXPECT_NE(span.action.kind, ActionKind::kUpdate);
  }
  Tensors before;
  for (const at::Tensor& parameter : pipeline->parameters()) before.push_back(parameter.detach().clone());
  optimizer.zero_grad();
  EXPECT_THROW(optimizer.train_step(model.input * std::numeric_limits<float>::quiet_NaN(), model.target, model.loss),
               NonFiniteLossError);
  Tensors after;
  for (const at::Tensor& parameter : pipeline->parameters()) after.push_back(parameter.detach());
  EXPECT_TRUE(same_bits(after, before));
  optimizer.train_step(model.input, model.target, model.loss);
  EXPECT_FALSE(same_bits(pipeline->parameters().front().detach(), before.front()));
}

TEST(StageOptimizersTest, UpdateWhereACustomScheduleSaysSo) {
  at::set_num_threads(1);
  const TestModel model = make_model("mlp");
  const Schedule schedule = parse_schedule("F0 F1 B0 B1 U\nF0 B0 F1 B1 U\n");
  Pipeline pipeline(model.chain, PipelineOptions(2).custom_schedule(schedule).seed(kSeed).balance(
                                     even_balance(model.chain.size(), 2)));
  Pipeline other(model.chain, options_for(model, 2).num_micro_batches(2));
  StageOptimizers<torch::optim::SGD> optimizer(pipeline, SGDOptions(0.1));
  StageOptimizers<torch::optim::SGD> of_other(other, SGDOptions(0.1));
  optimizer.train_step(model.input, model.target, model.loss);  // an update in each
  other->train_step(model.input, model.target, model.loss);
  of_other.step();
  expect_same_bits(*pipeline, *other);
  pipeline->train_step(model.input, model.target, model.loss);  // without an optimizer there is none
  other->train_step(model.input, model.target, model.loss);
  expect_same_bits(*pipeline, *other);
}

TEST(StageOptimizersTest, AreRefusedWhileThePipelineIsAtWork) {
  at::set_num_threads(1);
  const TestModel model = make_model("mlp");
  Pipeline pipeline(model.chain, options_for(model, 2));
  StageOptimizers<torch::optim::SGD> optimizer(pipeline, SGDOptions(0.1).momentum(0.9));
  optimizer.train_step(model.input, model.target, model.loss);
  EXPECT_THROW(optimizer.train_step(model.input, model.target,
                                    [&](const at::Tensor& output, const at::Tensor& target) {
                                      optimizer.train_step(model.input, model.target, model.loss);
                                      return cross_entropy(output, target);
                                    }),
               ActionError);
  for (const auto& item : optimizer.state()) EXPECT_NE(item.second, nullptr);
  EXPECT_NO_THROW(optimizer.train_step(model.input, model.target, model.loss));
}

}  // namespace
}  // namespace gpipe::test

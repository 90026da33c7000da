// The first promise: the same bits for every number of stages, schedule and recompute mode, and for every timing.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <random>
#include <thread>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/micro_batch.h"
#include "tests/execute/test_models.h"

namespace gpipe::test {
namespace {

constexpr int kNumSteps = 5;
constexpr int kNumMicroBatches = 4;
constexpr std::uint64_t kSeed = 7;

// Everything that training leaves.
struct Trained {
  std::map<std::string, at::Tensor> tensors;  // parameters, buffers and the losses
};

void expect_same_bits(const Trained& got, const Trained& expected) {
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    ASSERT_TRUE(got.tensors.count(name)) << name;
    EXPECT_TRUE(torch::equal(got.tensors.at(name), tensor))
        << name << " differs by " << (got.tensors.at(name) - tensor).abs().max().item<double>();
  }
}

std::unique_ptr<torch::optim::Optimizer> adam(const Tensors& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
}

// Plain gradient accumulation in this thread. Knows nothing of stages: it runs the chain's layers one after the other, and
// for a tied weight it adds up the gradients of its layers at the end of the step.
Trained train_plainly(const TestModel& model, std::int64_t num_samples, int num_micro_batches = kNumMicroBatches) {
  std::vector<Layer> layers;
  std::map<std::string, at::Tensor> parameters;
  std::map<std::string, at::Tensor> buffers;
  for (int index = 0; index < model.chain.size(); ++index) {
    layers.push_back(model.chain.build(index, kSeed));
    for (const auto& item : layers.back().module->named_parameters()) {
      parameters[model.chain.name(index) + "." + item.key()] = item.value();
    }
    for (const auto& item : layers.back().module->named_buffers()) {
      buffers[model.chain.name(index) + "." + item.key()] = item.value();
    }
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> ties;
  for (const TieNames& tie : model.chain.ties()) {
    ties.emplace_back(parameters.at(tie.owner), parameters.at(tie.user));
    parameters.erase(tie.user);
    ties.back().second.set_data(ties.back().first.detach());
  }
  Tensors values;
  for (const auto& [name, parameter] : parameters) values.push_back(parameter);
  const auto optimizer = adam(values);

  Trained trained;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer->zero_grad();
    at::Tensor total;
    int micro_batch = 0;
    for (const MicroBatch& part : split_batch(
             {model.input.narrow(0, 0, num_samples), model.target.narrow(0, 0, num_samples)}, num_micro_batches)) {
      LayerRun run;
      run.seed = kSeed;
      run.step = step;
      run.micro_batch = micro_batch++;
      run.first_sample = part.first_sample;
      Tensors tensors{part.tensors[0].clone()};
      for (const Layer& layer : layers) {
        const LayerScope scope(run);
        tensors = layer.forward(std::move(tensors));
        ++run.layer;
      }
      const double weight = static_cast<double>(part.num_samples) / static_cast<double>(num_samples);
      const at::Tensor loss = model.loss(tensors.front(), part.tensors[1]) * weight;
      loss.backward();
      total = total.defined() ? total + loss.detach() : loss.detach();
    }
    for (const Layer& layer : layers) {
      if (auto* listener = dynamic_cast<StepListener*>(layer.module.get())) listener->end_step();
    }
    for (auto& [owner, user] : ties) {
      owner.mutable_grad().add_(user.grad());
      user.mutable_grad().reset();
    }
    optimizer->step();
    trained.tensors["loss" + std::to_string(step)] = total;
  }
  trained.tensors.insert(parameters.begin(), parameters.end());
  trained.tensors.insert(buffers.begin(), buffers.end());
  return trained;
}

Trained train_pipelined(const TestModel& model, std::int64_t num_samples, PipelineOptions options) {
  Pipeline pipeline(model.chain, options.seed(kSeed));
  const auto optimizer = adam(pipeline->parameters());
  Trained trained;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer->zero_grad();
    const StepResult result = pipeline->train_step(model.input.narrow(0, 0, num_samples).clone(),
                                                   model.target.narrow(0, 0, num_samples), model.loss);
    optimizer->step();
    trained.tensors["loss" + std::to_string(step)] = result.loss;
  }
  for (const auto& item : pipeline->named_parameters()) trained.tensors[item.key()] = item.value();
  for (const auto& item : pipeline->named_buffers()) trained.tensors[item.key()] = item.value();
  return trained;
}

std::vector<int> even_balance(int num_layers, int num_stages) {
  std::vector<int> balance;
  for (int stage = 0; stage < num_stages; ++stage) {
    balance.push_back(num_layers / num_stages + (stage < num_layers % num_stages ? 1 : 0));
  }
  return balance;
}

TestModel make_model(const std::string& name) {
  torch::manual_seed(1);
  if (name == "mlp") return mlp();
  if (name == "cnn") return cnn();
  if (name == "transformer") return transformer();
  return unet();
}

class BitwiseTest : public ::testing::TestWithParam<std::string> {
 protected:
  // The reference runs with as many intra-op threads as a stage.
  void SetUp() override { at::set_num_threads(1); }
};

TEST_P(BitwiseTest, EveryNumberOfStagesScheduleAndRecomputeModeTrainsAsThePlainModelDoes) {
  const TestModel model = make_model(GetParam());
  for (const std::int64_t num_samples : {16, 13, 3}) {
    const Trained plain = train_plainly(model, num_samples);
    for (const int workers : {1, 2, 3, 4, 8}) {
      for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
        const int num_stages = schedule == "interleaved" ? 2 * workers : workers;
        for (const Recompute recompute : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
          SCOPED_TRACE(testing::Message() << model.name << ", " << num_samples << " samples, " << workers
                                          << " workers, " << schedule << ", recompute " << name(recompute));
          expect_same_bits(train_pipelined(model, num_samples,
                                           PipelineOptions(workers)
                                               .num_micro_batches(kNumMicroBatches)
                                               .schedule(schedule)
                                               .recompute(recompute)
                                               .balance(even_balance(model.chain.size(), num_stages))),
                           plain);
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
}

TEST_P(BitwiseTest, ThePartitionFoundByProfilingTrainsAsThePlainModelDoes) {
  const TestModel model = make_model(GetParam());
  expect_same_bits(train_pipelined(model, 13, PipelineOptions(3).num_micro_batches(kNumMicroBatches)),
                   train_plainly(model, 13));
}

// While it lives, some of libtorch's operations, in every thread, forward and backward, take longer, each time others.
class RandomDelays {
 public:
  RandomDelays()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                                        thread_local std::mt19937 random{std::random_device()()};
                                        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
                                        return std::unique_ptr<at::ObserverContext>();
                                      }).samplingProb(0.02))) {}
  ~RandomDelays() { at::removeCallback(handle_); }

 private:
  at::CallbackHandle handle_;
};

TEST_P(BitwiseTest, RandomDelaysChangeNothing) {
  const TestModel model = make_model(GetParam());
  const Trained plain = train_plainly(model, 13);
  const RandomDelays delays;
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
    const int num_stages = schedule == "interleaved" ? 8 : 4;
    for (int repeat = 0; repeat < 20; ++repeat) {
      SCOPED_TRACE(testing::Message() << schedule << ", repeat " << repeat);
      expect_same_bits(train_pipelined(model, 13,
                                       PipelineOptions(4)
                                           .num_micro_batches(kNumMicroBatches)
                                           .schedule(schedule)
                                           .recompute(Recompute::kExceptLast)
                                           .balance(even_balance(model.chain.size(), num_stages))),
                       plain);
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BitwiseTest, ::testing::Values("mlp", "cnn", "transformer", "unet"),
                         [](const auto& test) { return test.param; });

class FullBatchTest : public ::testing::TestWithParam<TestModel (*)(bool by_sample)> {};

TEST_P(FullBatchTest, WithDropoutBySampleThePipelineTrainsAsTheFullBatchDoes) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const TestModel model = GetParam()(/*by_sample=*/true);
  const Trained whole = train_plainly(model, 13, 1);
  for (const int num_micro_batches : {1, 4, 13}) {
    const Trained split = train_pipelined(
        model, 13, PipelineOptions(3).num_micro_batches(num_micro_batches).recompute(Recompute::kAlways));
    for (const auto& [name, tensor] : whole.tensors) {
      at::Tensor difference = (split.tensors.at(name) - tensor).detach().abs();
      // The attention does not depend on the bias of its keys, the middle third: its gradient is rounding, which Adam blows up.
      if (name.find("in_proj_bias") != std::string::npos) difference.chunk(3)[1].zero_();
      EXPECT_LT(difference.max().item<double>(), 1e-5) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FullBatchTest, ::testing::Values(mlp, transformer, unet),
                         [](const auto& test) { return test.param(true).name; });

}  // namespace
}  // namespace gpipe::test

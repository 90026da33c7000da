// gpipe::verify: models that train to the same bits are verified, and each way to break that is named.
#include "gpipe/verify/verify.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "gpipe/model/layer_scope.h"
#include "tests/execute/training.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using torch::nn::Linear;

PipelineImpl::Loss squared_error() {
  return [](const Tensors& outputs, const Tensors& targets) { return torch::mse_loss(outputs[0], targets[0]); };
}

VerifyBatch rows_of_six() {
  torch::manual_seed(3);
  return {{torch::randn({16, 6})}, {torch::randn({16, 6})}};
}

// Six features in and out: linear, the layer, linear, tanh.
template <typename Layer>
LayerChain around() {
  return LayerChain()
      .add<Linear>("in", 6, 6)
      .template add<Layer>("suspect")
      .template add<Linear>("middle", 6, 6)
      .template add<torch::nn::Tanh>("tanh")
      .template add<Linear>("out", 6, 6);
}

VerifyOptions few_runs() {
  return VerifyOptions().num_steps(2).stages({1, 2}).schedules({"1f1b"}).recompute(
      {Recompute::kNever, Recompute::kAlways});
}

template <typename Layer>
Verification verify_around(const VerifyOptions& options = few_runs()) {
  return verify(around<Layer>(), rows_of_six(), squared_error(), options);
}

Verification verify_model(const std::string& name) {
  const test::TestModel model = test::make_model(name);
  const test::TestModel& made = model;
  return verify(made.chain, {{model.input}, {model.target}}, test::loss_of(model),
                VerifyOptions()
                    .num_steps(2)
                    .stages({1, 2, 4})
                    .schedules({"1f1b", "zb-v"})
                    .recompute({Recompute::kNever, Recompute::kAlways}));
}

void expect_finding(const Verification& verification, LikelyCause cause, const std::string& layer) {
  EXPECT_FALSE(verification.is_verified());
  ASSERT_THAT(verification.findings, SizeIs(1)) << to_text(verification);
  EXPECT_STREQ(name(verification.findings[0].cause), name(cause)) << to_text(verification);
  EXPECT_THAT(verification.findings[0].layer, HasSubstr(layer)) << to_text(verification);
}

TEST(Verify, ModelsWithSkipsTiesWeightedLossesAndBatchNormsAreVerified) {
  for (const char* name : {"mlp", "cnn", "padded", "unet"}) {
    const Verification verification = verify_model(name);
    EXPECT_TRUE(verification.is_verified()) << name << "\n" << to_text(verification);
    EXPECT_THAT(verification.runs, SizeIs(13)) << name;
    for (const VerifiedRun& run : verification.runs) {
      EXPECT_EQ(run.num_steps, 2) << run.name;
      EXPECT_EQ(run.num_losses, 2) << run.name;
      EXPECT_GT(run.num_gradients, 0) << run.name;
      EXPECT_GT(run.num_weights, run.num_gradients) << run.name;  // those before the first step, too
      EXPECT_GT(run.num_crossings, 0) << run.name;
    }
  }
}

TEST(Verify, TheModulesOfASequentialAreAsBefore) {
  torch::manual_seed(1);
  torch::nn::Sequential model(Linear(6, 6), torch::nn::Tanh(), Linear(6, 6));
  const at::Tensor before = model->parameters()[0].detach().clone();
  model->parameters()[0].mutable_grad() = torch::ones({6, 6});
  const Verification verification = verify(model, rows_of_six(), squared_error(), few_runs());
  EXPECT_TRUE(verification.is_verified()) << to_text(verification);
  EXPECT_TRUE(torch::equal(model->parameters()[0], before));
  EXPECT_TRUE(torch::equal(model->parameters()[0].grad(), torch::ones({6, 6})));
}

TEST(Verify, AFactoryMakesANewChainForEachRun) {
  int num_chains = 0;
  std::vector<std::string> told;
  VerifyOptions options = few_runs();
  options.on_progress([&](const std::string& run, int number, int num_runs) {
    told.push_back(std::to_string(number) + "/" + std::to_string(num_runs) + " " + run);
  });
  const auto make = [&] {
    ++num_chains;
    return around<torch::nn::ReLU>();
  };
  EXPECT_TRUE(verify(make, rows_of_six(), squared_error(), options).is_verified());
  EXPECT_EQ(num_chains, 7);  // to count its layers, the reference, and five runs
  EXPECT_THAT(told, ElementsAre("1/5 a plain loop over the layers, again", "2/5 1 stage, 1f1b, recompute never",
                                "3/5 1 stage, 1f1b, recompute always", "4/5 2 stages, 1f1b, recompute never",
                                "5/5 2 stages, 1f1b, recompute always"));
}

TEST(Verify, SaysWhatTheModelHasTooFewLayersFor) {
  VerifyOptions options = few_runs();
  options.stages({1, 4}).schedules({"zb-v"});
  const Verification verification = verify(around<torch::nn::ReLU>(), rows_of_six(), squared_error(), options);
  EXPECT_TRUE(verification.is_verified());
  EXPECT_THAT(to_text(verification), AllOf(HasSubstr("4 stages, zb-v: needs 8 layers, and the model has 5"),
                                           HasSubstr("not possible"), HasSubstr("\nverified\n")));
}

TEST(Verify, OtherOptimizersAreCompared) {
  VerifyOptions options = few_runs();
  options.optimizer([](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
  });
  EXPECT_TRUE(verify(around<torch::nn::ReLU>(), rows_of_six(), squared_error(), options).is_verified());
}

// Each of these layers breaks the training in a way of its own.

struct OwnTorchGeneratorImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input * at::bernoulli(at::full_like(input, 0.5), generator); }
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
};
TORCH_MODULE(OwnTorchGenerator);

struct OwnEngineImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    const float scale = std::uniform_real_distribution<float>(0.5, 1.5)(engine);
    return input * scale;
  }
  std::mt19937 engine{5};
};
TORCH_MODULE(OwnEngine);

struct UnseededImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    return input * std::uniform_real_distribution<float>(0.5, 1.5)(engine);
  }
  std::mt19937 engine{std::random_device()()};
};
TORCH_MODULE(Unseeded);

struct CounterImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input * (1 + 0.01 * ++num_calls); }
  int num_calls = 0;
};
TORCH_MODULE(Counter);

struct EverySecondCallImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return ++num_calls % 3 == 0 ? input * 2 : input.clone(); }
  int num_calls = 0;
};
TORCH_MODULE(EverySecondCall);

struct ClockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return input.abs() * (1 + 1e-3 * std::chrono::duration<double>(now).count());
  }
};
TORCH_MODULE(Clock);

TEST(Verify, ALayerWithItsOwnGeneratorIsNamed) {
  expect_finding(verify_around<OwnTorchGenerator>(), LikelyCause::kOwnGenerator,
                 "layer 1 (suspect, OwnTorchGenerator)");
  expect_finding(verify_around<OwnEngine>(), LikelyCause::kOwnGenerator, "layer 1 (suspect, OwnEngine)");
}

TEST(Verify, AnUnseededGeneratorIsNamedAndSeenInTheSecondPlainLoop) {
  const Verification verification = verify_around<Unseeded>();
  expect_finding(verification, LikelyCause::kOwnGenerator, "layer 1 (suspect, Unseeded)");
  EXPECT_EQ(verification.findings[0].run, "a plain loop over the layers, again");
  EXPECT_EQ(verification.findings[0].micro_batch, 0);
}

TEST(Verify, ACounterOutsideOfTheBuffersIsNamed) {
  const Verification verification = verify_around<Counter>();
  expect_finding(verification, LikelyCause::kHiddenState, "layer 1 (suspect, Counter)");
  // A pipeline runs each layer once for a trial before its first step.
  EXPECT_EQ(verification.findings[0].run, "1 stage, 1f1b, recompute never");
  EXPECT_EQ(verification.findings[0].tensor, "what layer 1 (suspect, Counter) returned");
  expect_finding(verify_around<EverySecondCall>(), LikelyCause::kHiddenState, "layer 1 (suspect, EverySecondCall)");
}

TEST(Verify, ALayerThatReadsTheClockIsNamed) {
  expect_finding(verify_around<Clock>(), LikelyCause::kClock, "layer 1 (suspect, Clock)");
}

struct UnregisteredImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input * weight; }
  at::Tensor weight = torch::ones({6}, torch::requires_grad());
};
TORCH_MODULE(Unregistered);

TEST(Verify, AWeightThatIsNotRegisteredIsNamed) {
  const Verification verification = verify_around<Unregistered>();
  expect_finding(verification, LikelyCause::kUnregisteredWeight, "layer 1 (suspect, Unregistered)");
  EXPECT_THAT(verification.findings[0].tensor, HasSubstr("a weight of [6] of Float"));
}

TEST(Verify, AWeightOfTheLossIsOnlyNoted) {
  const at::Tensor temperature = torch::ones({}, torch::requires_grad());
  const PipelineImpl::Loss loss = [&](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs[0] * temperature, targets[0]);
  };
  const Verification verification = verify(around<torch::nn::ReLU>(), rows_of_six(), loss, few_runs());
  EXPECT_TRUE(verification.is_verified()) << to_text(verification);
  EXPECT_THAT(verification.notes, ElementsAre(HasSubstr("the loss function uses a weight of [] of Float")));
}

// A mean over the tokens that count, of which each row has another number.
TEST(Verify, ALossWithAMeanOverTokensIsNamedThoughItIsTheSameForAllStages) {
  const test::TestModel model = test::make_model("padded");
  const PipelineImpl::Loss mean_over_tokens = [](const Tensors& outputs, const Tensors& targets) {
    // Without a row that counts, a mean would be none.
    const auto options = torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-1).reduction(torch::kSum);
    const at::Tensor sum =
        torch::nn::functional::cross_entropy(outputs[0].flatten(0, 1), targets[0].flatten(), options);
    return sum / targets[0].ne(-1).sum().clamp_min(1);
  };
  const Verification verification = verify(model.chain, {{model.input}, {model.target}}, mean_over_tokens, few_runs());
  expect_finding(verification, LikelyCause::kLossIsNoMean, "the loss function");
  EXPECT_THAT(verification.runs, Each(Field(&VerifiedRun::outcome, VerifyOutcome::kSame)));
  EXPECT_THAT(verification.findings[0].detail, HasSubstr("both computed as Double"));
}

TEST(Verify, RoundingIsNoWrongLoss) {
  torch::manual_seed(3);
  const VerifyBatch batch = {{torch::randn({15, 6}) * 1e3}, {torch::randn({15, 6})}};
  EXPECT_TRUE(verify(around<torch::nn::ReLU>(), batch, squared_error(), few_runs()).is_verified());
  // A sum over rows, and one that takes no doubles.
  VerifyOptions of_sums = few_runs();
  of_sums.pipeline(PipelineOptions(1).num_micro_batches(4).loss_reduction(LossReduction::kSum));
  const at::Tensor scale = torch::full({6}, 0.5);
  const PipelineImpl::Loss sum = [&](const Tensors& outputs, const Tensors& targets) {
    if (outputs[0].scalar_type() != at::kFloat) throw InvalidArgument("floats only");
    return ((outputs[0] - targets[0]) * scale).square().sum();
  };
  const Verification verification = verify(around<torch::nn::ReLU>(), batch, sum, of_sums);
  EXPECT_TRUE(verification.is_verified()) << to_text(verification);
}

// A transport of the user's own: Send puts bytes into the one slot there is, from which Receive takes them.
struct Slot {
  std::array<float, 64 * 6> bytes{};
  std::atomic<int> micro_batch{-1};
};
Slot& slot() {
  static Slot the_slot;
  return the_slot;
}

struct SendImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    std::memcpy(slot().bytes.data(), input.data_ptr(), input.nbytes());
    slot().micro_batch = LayerScope::current()->micro_batch;
    return input.clone();
  }
};
TORCH_MODULE(Send);

struct ReceiveImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    // The race is seeded: for a while it waits for the sender to be ahead.
    const int own = LayerScope::current()->micro_batch;
    for (int wait = 0; wait < 50 && slot().micro_batch == own; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    at::Tensor received = at::empty_like(input);
    std::memcpy(received.data_ptr(), slot().bytes.data(), received.nbytes());
    return input + received;
  }
};
TORCH_MODULE(Receive);

VerifyOptions without_recompute() {
  VerifyOptions options = few_runs();
  options.num_steps(1).recompute({Recompute::kNever});
  return options;
}

TEST(Verify, ARaceInATransportOfTheUsersIsNamed) {
  const LayerChain chain = LayerChain()
                               .add<Linear>("in", 6, 6)
                               .add<Send>("send")
                               .add<Linear>("middle", 6, 6)
                               .add<Receive>("receive")
                               .add<Linear>("out", 6, 6);
  const Verification verification = verify(chain, rows_of_six(), squared_error(), without_recompute());
  expect_finding(verification, LikelyCause::kRace, "layer 3 (receive, Receive)");
  EXPECT_EQ(verification.findings[0].run, "2 stages, 1f1b, recompute never");
  EXPECT_EQ(verification.findings[0].stage, 1);
}

// Hands over memory that it uses again for the next micro-batch, behind autograd's back.
struct ReusesMemoryImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (!memory.defined()) memory = at::empty_like(input);
    std::memcpy(memory.data_ptr(), input.data_ptr(), input.nbytes());
    return memory;
  }
  at::Tensor memory;
};
TORCH_MODULE(ReusesMemory);

struct SlowImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return input.clone();
  }
};
TORCH_MODULE(Slow);

TEST(Verify, ATensorThatChangesOnItsWayToTheNextStageIsNamed) {
  const LayerChain chain =
      LayerChain().add<torch::nn::Tanh>("in").add<ReusesMemory>("reuses").add<Slow>("slow").add<Linear>("out", 6, 6);
  VerifyOptions options = without_recompute();
  const Verification verification = verify(chain, rows_of_six(), squared_error(), options.schedules({"gpipe"}));
  expect_finding(verification, LikelyCause::kRace, "layer 1 (reuses, ReusesMemory)");
  EXPECT_EQ(verification.findings[0].tensor,
            "what layer 1 (reuses, ReusesMemory) returned, on its way to layer 2 (slow, Slow)");
}

// The gradient only: its sign depends on the number of the call.
struct OddBackward : torch::autograd::Function<OddBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& input) {
    return input.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext* /*context*/, Tensors grads) {
    static std::atomic<int> num_calls{0};
    return {grads[0] * (1 + 0.01 * ++num_calls)};
  }
};
struct OddGradientImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return OddBackward::apply(input); }
};
TORCH_MODULE(OddGradient);

TEST(Verify, TheLayerWhoseBackwardDiffersIsNamed) {
  const Verification verification = verify_around<OddGradient>();
  expect_finding(verification, LikelyCause::kBackward, "layer 1 (suspect, OddGradient)");
  EXPECT_EQ(verification.findings[0].action, "backward");
  EXPECT_THAT(verification.findings[0].tensor, HasSubstr("the gradient of what layer 0 (in, Linear) returned"));
}

struct RandomWeightImpl : torch::nn::Module {
  RandomWeightImpl() {
    static float num_built = 0;
    weight = register_parameter("weight", torch::full({6}, ++num_built));
  }
  at::Tensor forward(const at::Tensor& input) { return input * weight; }
  at::Tensor weight;
};
TORCH_MODULE(RandomWeight);

TEST(Verify, UnseededWeightsAreNamed) {
  const Verification verification = verify_around<RandomWeight>();
  expect_finding(verification, LikelyCause::kUnseededWeights, "layer 1 (suspect, RandomWeight)");
  EXPECT_EQ(verification.findings[0].tensor, "weight suspect.weight");
}

class NoisySGD : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    static int num_steps = 0;
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : param_groups()[0].params()) parameter.add_(1e-3 * ++num_steps);
    return SGD::step(std::move(closure));
  }
};

TEST(Verify, AnOptimizerThatDoesNotRepeatItselfIsNamed) {
  VerifyOptions options = few_runs();
  options.optimizer([](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<NoisySGD>(parameters, torch::optim::SGDOptions(0.1));
  });
  const Verification verification = verify(around<torch::nn::ReLU>(), rows_of_six(), squared_error(), options);
  expect_finding(verification, LikelyCause::kOptimizer, "in");
  EXPECT_EQ(verification.findings[0].step, 1);
}

TEST(Verify, APipelineThatCannotBeMadeIsNoProof) {
  torch::manual_seed(1);
  const Linear shared(6, 6);
  torch::nn::Sequential model(shared, torch::nn::Tanh(), shared);
  const Verification verification = verify(model, rows_of_six(), squared_error(), without_recompute());
  EXPECT_FALSE(verification.is_verified());
  EXPECT_THAT(verification.findings, IsEmpty());
  EXPECT_EQ(verification.runs.back().outcome, VerifyOutcome::kFailed);
  EXPECT_THAT(verification.runs.back().note, HasSubstr("are the same tensor"));
}

TEST(Verify, TheReportIsJsonToo) {
  const std::string json = to_json(verify_around<Counter>());
  EXPECT_THAT(json, AllOf(HasSubstr("\"verified\": false"), HasSubstr("\"cause\": \"hidden-state\""),
                          HasSubstr("\"outcome\": \"DIFFERS\"")));
}

}  // namespace
}  // namespace gpipe

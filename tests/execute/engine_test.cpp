// The five parts of a pipeline, each by itself, and the step that is a transaction over them.
#include "gpipe/execute/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "gpipe/error.h"
#include "gpipe/execute/group/local_group.h"
#include "gpipe/execute/step/step.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/transport/wire_record.h"
#include "tests/model/same_bits.h"

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Tanh;

// Fails as often as it is told to.
struct FragileImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tensor) {
    if (fails) throw std::runtime_error("out of luck");
    return tensor * 1;
  }
  bool fails = false;
};
TORCH_MODULE(Fragile);

LayerChain small_chain() {
  return LayerChain()
      .add<Linear>("first", 3, 4)
      .add<BatchNorm1d>("norm", 4)
      .add<Tanh>("tanh")
      .add<Linear>("last", 4, 2);
}

const Model::IsOwn kAll = [](int) { return true; };

TEST(LocalGroup, IsAWorldOfOneInWhichEveryCallReturnsAtOnce) {
  LocalGroup group;
  EXPECT_EQ(group.world().size, 1);
  EXPECT_EQ(group.world().num_replicas, 1);
  EXPECT_TRUE(group.runs_worker(7));
  EXPECT_EQ(group.num_own_workers(8), 8);
  WireRecord own;
  own.add("number", 5);
  const std::vector<WireRecord> of_rank = group.gather(own);
  ASSERT_EQ(of_rank.size(), 1U);
  EXPECT_EQ(WireReader(of_rank.front(), "").integer("number"), 5);
  EXPECT_EQ(group.gather_replicas(own).size(), 1U);
  EXPECT_EQ(group.collect(own).size(), 1U);
  const at::Tensor tensor = torch::ones(2);
  EXPECT_TRUE(group.broadcast(3, Tensors{tensor}).front().is_same(tensor));
  group.compare({{"anything", "goes"}});
  bool has_run = false;
  group.begin([&](Fingerprint* fingerprint) {
    EXPECT_EQ(fingerprint, nullptr);
    has_run = true;
  });
  EXPECT_TRUE(has_run);
  group.leave({});
  EXPECT_FALSE(group.has_failed());
}

TEST(LocalGroup, AnErrorIsThrownAsItIs) {
  LocalGroup group;
  EXPECT_THAT([&] { group.failing([]() -> int { throw SkipError("as it is"); }); },
              ThrowsMessage<SkipError>("as it is"));
  EXPECT_EQ(group.failing([] { return 3; }), 3);
}

TEST(LocalGroup, ACallWithUnequalRowsIsRefused) {
  LocalGroup group;
  StepCall call;
  EXPECT_THAT(
      [&] {
        group.agree(
            call,
            [](StepCall& own) {
              own.input_rows = 3;
              own.target_rows = 4;
            },
            nullptr);
      },
      ThrowsMessage<InvalidArgument>("the inputs have 3 rows, but the targets have 4"));
}

TEST(Model, RegistersItsLayersAndLetsGoOfThoseOfOtherRanks) {
  torch::nn::Module face;
  Model model(face, small_chain(), /*seed=*/1, kAll, Model::Sharing::kRefused);
  EXPECT_THAT(model.layer_names(), ElementsAre("first", "norm", "tanh", "last"));
  EXPECT_EQ(face.named_parameters().size(), 6U);
  EXPECT_EQ(model.shapes([](int layer) { return layer == 0; }),
            (Fingerprint{{"first.weight", "[4, 3] of Float"}, {"first.bias", "[4] of Float"}}));
  const at::Tensor others = face.named_parameters()["last.weight"];
  model.keep_own([](int layer) { return layer < 2; });
  EXPECT_EQ(face.named_parameters().size(), 4U);
  EXPECT_EQ(others.numel(), 0);  // so that nobody takes it for a trained one
  EXPECT_EQ(model.built_layers().size(), 2U);
  EXPECT_EQ(model.num_layers(), 4);
}

TEST(Model, LayersThatShareAParameterAreRefusedOnlyIfTheyMayNot) {
  const Linear shared(3, 3);
  LayerChain chain;
  chain.add("one", shared).add("two", shared);
  torch::nn::Module face;
  EXPECT_THAT([&] { Model(face, chain, 1, kAll, Model::Sharing::kRefused); },
              ThrowsMessage<InvalidArgument>(HasSubstr("are the same tensor")));
  EXPECT_NO_THROW(Model(face, chain, 1, kAll, Model::Sharing::kAllowed));
}

TEST(Model, PutsBackTheBuffersThatAForwardHasChanged) {
  torch::nn::Module face;
  Model model(face, small_chain(), 1, kAll, Model::Sharing::kRefused);
  const at::Tensor mean = face.named_buffers()["norm.running_mean"];
  const BufferCopies snapshot = model.snapshot_buffers();
  mean.fill_(5);
  model.put_back_buffers(snapshot);
  EXPECT_TRUE(test::same_bits(mean, torch::zeros(4)));
}

class EngineTest : public ::testing::Test {
 protected:
  explicit EngineTest(PipelineOptions options = PipelineOptions(2).num_micro_batches(2).balance({2, 2}))
      : options_(checked(options)), engine_(face_, small_chain(), options_) {}

  MiniBatch batch() {
    StepCall call = engine_.make_call("train_step");
    call.needs_grad = true;
    return engine_.make_batch(call, {torch::ones({4, 3})}, nullptr, nullptr);
  }
  Runner::Lease lease(StepMode mode) {
    const MiniBatch ready = batch();
    return engine_.lease({2, mode, true}, ready, {}, CallerState(true));
  }

  torch::nn::Module face_;
  const PipelineOptions options_;
  Engine engine_;
};

TEST_F(EngineTest, HasASplitAsSoonAsTheCutIsMade) {
  EXPECT_NE(engine_.split(), nullptr);
  EXPECT_TRUE(engine_.cut().is_made());
  torch::nn::Module face;
  const PipelineOptions open = checked(PipelineOptions(2));
  const Engine later(face, small_chain(), open);
  EXPECT_EQ(later.split(), nullptr);
  EXPECT_FALSE(later.cut().is_made());
}

TEST_F(EngineTest, AnAssemblyIsReturnedWhenItsLeaseEndsAndUsedAgain) {
  int first = 0;
  {
    const auto one = lease(StepMode::kTogether);
    const auto two = lease(StepMode::kTogether);
    first = one->number();
    EXPECT_NE(two->number(), first);
    EXPECT_THAT(engine_.runner().idle(), IsEmpty());
  }
  EXPECT_EQ(engine_.runner().idle().size(), 2U);
  const auto again = lease(StepMode::kTogether);
  EXPECT_LE(again->number(), first + 1);
  EXPECT_EQ(engine_.runner().idle().size(), 1U);
}

TEST_F(EngineTest, EachKindOfStepHasItsSchedule) {
  Runner& runner = engine_.runner();
  EXPECT_FALSE(runner.make_schedule({3, StepMode::kForwardOnly, true}, engine_.cut()).has_backward());
  const Schedule apart = runner.make_schedule({3, StepMode::kApart, true}, engine_.cut());
  for (const auto& actions : apart.workers) {
    for (int index = 0; index < 3; ++index) EXPECT_EQ(actions[index].kind, ActionKind::kForward);
  }
  EXPECT_TRUE(runner.make_schedule({3, StepMode::kTogether, true}, engine_.cut()).has_backward());
}

TEST_F(EngineTest, TheRoutesOfASplitAreItsSkipsAndTies) {
  SkipProfile skip;
  skip.name = "long";
  skip.from = 0;
  skip.to = 3;
  const Routes routes = engine_.split()->routes({skip});
  ASSERT_EQ(routes.skips.size(), 1U);
  EXPECT_EQ(routes.skips[0].from_stage, 0);
  EXPECT_EQ(routes.skips[0].to_stage, 1);
  EXPECT_THAT(routes.ties, IsEmpty());
}

TEST_F(EngineTest, AStepTakesANumberAndCommits) {
  Step step(engine_, batch(), StepMode::kApart);
  EXPECT_EQ(engine_.step(), 1);
  step.run(Phase::kForward);
  EXPECT_EQ(engine_.step(), 1);
  EXPECT_FALSE(test::same_bits(face_.named_buffers()["norm.running_mean"], torch::zeros(4)));
}

TEST_F(EngineTest, AStepThatIsRolledBackLeavesBuffersAndNumberAsTheyWere) {
  const at::Tensor mean = face_.named_buffers()["norm.running_mean"];
  Step step(engine_, batch(), StepMode::kApart);
  step.run(Phase::kForward);
  step.roll_back();
  EXPECT_EQ(engine_.step(), 0);
  EXPECT_TRUE(test::same_bits(mean, torch::zeros(4)));
}

TEST(EngineStep, AStepThatFailsRollsBackByItself) {
  Fragile fragile;
  LayerChain chain;
  chain.add("norm", BatchNorm1d(3)).add("fragile", fragile);
  torch::nn::Module face;
  const PipelineOptions options = checked(PipelineOptions(2).num_micro_batches(2).balance({1, 1}));
  Engine engine(face, chain, options);
  const auto batch = [&] {
    StepCall call = engine.make_call("forward");
    call.needs_grad = true;
    return engine.make_batch(call, {torch::randn({4, 3})}, nullptr, nullptr);
  };
  Step(engine, batch(), StepMode::kApart).run(Phase::kForward);
  const at::Tensor mean = face.named_buffers()["norm.running_mean"].clone();
  fragile->fails = true;
  EXPECT_THROW(Step(engine, batch(), StepMode::kApart).run(Phase::kForward), ActionError);
  EXPECT_EQ(engine.step(), 1);
  EXPECT_TRUE(test::same_bits(face.named_buffers()["norm.running_mean"], mean));
}

TEST_F(EngineTest, NothingIsCalledAfterLeave) {
  engine_.leave();
  engine_.leave();
  EXPECT_THAT([&] { engine_.make_call("train_step"); }, ThrowsMessage<CallError>(HasSubstr("train_step")));
}

}  // namespace
}  // namespace gpipe::detail

// The promise: the same bits whatever the number of stages, the schedule and the recompute mode.
#include "gpipe/execute/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gpipe/error.h"
#include "gpipe/model/autocast.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "gpipe/model/dropout.h"
#include "gpipe/os/processors.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/validate.h"
#include "tests/execute/plain_chain.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using detail::most_threads;

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNumMicroBatches = 4;
constexpr int kNumSteps = 5;

torch::nn::Sequential make_mlp() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Dropout(0.1),
                               torch::nn::Linear(16, 16), torch::nn::Tanh(), torch::nn::Dropout(0.1),
                               torch::nn::Linear(16, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
}

struct Batch {
  explicit Batch(int num_samples) {
    torch::manual_seed(9);
    input = torch::randn({num_samples, 8});
    target = torch::randint(4, {num_samples});
  }
  at::Tensor input;
  at::Tensor target;
};

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

// Parameters and losses after some steps of Adam.
struct Outcome {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> losses;
};

Outcome train_plain(const Batch& batch) {
  test::PlainChain plain(LayerChain(make_mlp()), PipelineOptions(1).num_micro_batches(kNumMicroBatches));
  torch::optim::Adam optimizer(plain.model().parameters(), 1e-2);
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return LossValue(cross_entropy(outputs.front(), targets.front()));
  };
  Outcome outcome;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    outcome.losses.push_back(plain.train_step({batch.input}, {batch.target}, loss));
    optimizer.step();
  }
  outcome.parameters = plain.model().parameters();
  return outcome;
}

Outcome train_pipeline(const Batch& batch, const PipelineOptions& options) {
  Pipeline pipeline(LayerChain(make_mlp()), options);
  torch::optim::Adam optimizer(pipeline->parameters(), 1e-2);
  Outcome outcome;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    outcome.losses.push_back(pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss()).loss);
    optimizer.step();
  }
  outcome.parameters = pipeline->parameters();
  return outcome;
}

// A layer that throws at a chosen micro-batch, forward or backward.
struct FailingImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (fail_forward && LayerScope::current()->micro_batch == micro_batch && is_recomputing() == in_recompute) {
      throw std::domain_error("this layer failed");
    }
    return input * scale;
  }
  bool fail_forward = false;
  bool in_recompute = false;
  int micro_batch = 0;
  at::Tensor scale = register_parameter("scale", torch::ones({}));
};
TORCH_MODULE(Failing);

class PipelineTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(PipelineTest, TrainsTheSameBitsForEveryNumberOfStagesScheduleAndRecomputeMode) {
  for (const int num_samples : {16, 13, 3}) {
    const Batch batch(num_samples);
    const Outcome plain = train_plain(batch);
    for (const int num_stages : {1, 2, 3, 4}) {
      for (const char* schedule : {"gpipe", "1f1b", "interleaved", "looped-bfs"}) {
        for (const Recompute recompute : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
          SCOPED_TRACE(std::string(schedule) + " K=" + std::to_string(num_stages) +
                       " N=" + std::to_string(num_samples) + " recompute " + name(recompute));
          const Outcome outcome = train_pipeline(
              batch,
              PipelineOptions(num_stages).num_micro_batches(kNumMicroBatches).schedule(schedule).recompute(recompute));
          EXPECT_TRUE(test::same_bits(outcome.losses, plain.losses));
          EXPECT_TRUE(test::same_bits(outcome.parameters, plain.parameters));
        }
      }
    }
  }
}

TEST_F(PipelineTest, DeferredBatchNormMovesOnceAStepForEveryScheduleAndRecomputeMode) {
  const Batch batch(13);
  const auto make_model = [] {
    torch::manual_seed(5);
    return torch::nn::Sequential(torch::nn::Linear(8, 6), nn::DeferredBatchNorm1d(6), torch::nn::ReLU(),
                                 nn::Dropout(0.1), torch::nn::Linear(6, 6), nn::DeferredBatchNorm1d(6),
                                 torch::nn::Linear(6, 4));
  };
  std::vector<at::Tensor> first;
  for (const int num_stages : {1, 2, 3}) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
      for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
        SCOPED_TRACE(std::string(schedule) + " K=" + std::to_string(num_stages) + " recompute " + name(recompute));
        Pipeline pipeline(
            LayerChain(make_model()),
            PipelineOptions(num_stages).num_micro_batches(kNumMicroBatches).schedule(schedule).recompute(recompute));
        torch::optim::Adam optimizer(pipeline->parameters(), 1e-2);
        std::vector<at::Tensor> result;
        for (int step = 0; step < kNumSteps; ++step) {
          optimizer.zero_grad();
          result.push_back(pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss()).loss);
          optimizer.step();
        }
        for (const at::Tensor& parameter : pipeline->parameters()) result.push_back(parameter);
        for (const at::Tensor& buffer : pipeline->buffers()) result.push_back(buffer);
        EXPECT_EQ(pipeline->named_buffers()["1.num_batches_tracked"].item<std::int64_t>(), kNumSteps);
        if (first.empty()) first = result;
        EXPECT_TRUE(test::same_bits(result, first));
      }
    }
  }
}

TEST_F(PipelineTest, RunsAScheduleOfTheUsers) {
  const Batch batch(16);
  const Outcome plain = train_plain(batch);
  const Schedule schedule = parse_schedule("0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n1F0 1B0 1F1 1F2 1B1 1B2 1F3 1B3\n");
  const Outcome outcome = train_pipeline(batch, PipelineOptions(2).custom_schedule(schedule));
  EXPECT_TRUE(test::same_bits(outcome.parameters, plain.parameters));
}

TEST_F(PipelineTest, TheDropInForwardTrainsTheSameBitsAndPipelinesTheBackward) {
  const Batch batch(13);
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    std::vector<at::Tensor> first;
    for (const int num_stages : {1, 2, 4}) {
      Pipeline pipeline(LayerChain(make_mlp()),
                        PipelineOptions(num_stages).num_micro_batches(kNumMicroBatches).recompute(recompute));
      at::Tensor input = batch.input.clone().requires_grad_(true);
      at::Tensor loss = cross_entropy(pipeline->forward(input), batch.target);
      loss.backward();
      std::vector<at::Tensor> result = {loss.detach(), input.grad()};
      for (const at::Tensor& parameter : pipeline->parameters()) result.push_back(parameter.grad());
      if (first.empty()) first = result;
      EXPECT_TRUE(test::same_bits(result, first));
    }
  }
}

TEST_F(PipelineTest, TheDropInForwardEqualsThePlainModelForOneMicroBatch) {
  const Batch batch(8);
  test::PlainChain plain(LayerChain(make_mlp()), PipelineOptions(1));
  const at::Tensor expected = plain.forward({batch.input}, {}).front();
  cross_entropy(expected, batch.target).backward();
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(3).num_micro_batches(1));
  const at::Tensor output = pipeline->forward(batch.input);
  EXPECT_TRUE(test::same_bits(output, expected));
  cross_entropy(output, batch.target).backward();
  test::expect_same_bits(*pipeline, plain.model());
}

TEST_F(PipelineTest, ASecondBackwardIsRefusedByName) {
  const Batch batch(8);
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(2).num_micro_batches(2));
  at::Tensor loss = cross_entropy(pipeline->forward(batch.input), batch.target);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.backward(), Error);
}

TEST_F(PipelineTest, TwoForwardsMayBeInFlight) {
  const Batch batch(8);
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(2).num_micro_batches(2));
  const at::Tensor a = pipeline->forward(batch.input);
  const at::Tensor b = pipeline->forward(batch.input);
  EXPECT_NO_THROW(a.sum().backward());
  EXPECT_NO_THROW(b.sum().backward());
}

TEST_F(PipelineTest, EvaluationUsesNoGradientAndEqualsThePlainModel) {
  const Batch batch(10);
  torch::nn::Sequential model = make_mlp();
  model->eval();
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(3).num_micro_batches(1));
  pipeline->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor output = pipeline->forward(batch.input);
  EXPECT_FALSE(output.requires_grad());
  EXPECT_TRUE(test::same_bits(output, model->forward(batch.input)));
}

TEST_F(PipelineTest, KeepsThePlainModelsNames) {
  torch::nn::Sequential model = make_mlp();
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(3));
  const auto expected = model->named_parameters();
  const auto got = pipeline->named_parameters();
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t index = 0; index < got.size(); ++index) EXPECT_EQ(got[index].key(), expected[index].key());
}

TEST_F(PipelineTest, ThrowsInAnyStageReachTheCallerOnceAndLeaveThePipelineUsable) {
  const Batch batch(8);
  for (int at_layer = 0; at_layer < 3; ++at_layer) {
    for (int micro_batch = 0; micro_batch < kNumMicroBatches; ++micro_batch) {
      for (const bool in_recompute : {false, true}) {
        SCOPED_TRACE(std::to_string(at_layer) + " " + std::to_string(micro_batch) + (in_recompute ? " recompute" : ""));
        std::vector<Failing> failing(3);
        torch::nn::Sequential model(failing[0], failing[1], torch::nn::Linear(8, 4), failing[2]);
        Pipeline pipeline(
            LayerChain(model),
            PipelineOptions(2).num_micro_batches(kNumMicroBatches).schedule("gpipe").recompute(Recompute::kAlways));
        failing[at_layer]->fail_forward = true;
        failing[at_layer]->in_recompute = in_recompute;
        failing[at_layer]->micro_batch = micro_batch;
        try {
          pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss());
          ADD_FAILURE() << "nothing was thrown";
        } catch (const ActionError& error) {
          EXPECT_THAT(error.what(), HasSubstr("this layer failed"));
          EXPECT_EQ(error.action().micro_batch, micro_batch);
          EXPECT_THROW(std::rethrow_exception(error.cause()), std::domain_error);
        }
        failing[at_layer]->fail_forward = false;
        EXPECT_NO_THROW(pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss()));
      }
    }
  }
}

TEST_F(PipelineTest, AThrowInTheLossReachesTheCaller) {
  const Batch batch(8);
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(2).num_micro_batches(2));
  const auto loss = [](const at::Tensor&, const at::Tensor&) -> at::Tensor { throw std::domain_error("bad loss"); };
  EXPECT_THROW(pipeline->train_step(batch.input, batch.target, loss), ActionError);
  EXPECT_NO_THROW(pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss()));
}

TEST_F(PipelineTest, FrozenStagesAndInputsWithoutGradientWork) {
  const Batch batch(8);
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    torch::nn::Sequential model = make_mlp();
    for (at::Tensor& parameter : model[0]->parameters()) parameter.requires_grad_(false);
    Pipeline pipeline(LayerChain(model), PipelineOptions(3).num_micro_batches(4).recompute(recompute));
    EXPECT_NO_THROW(pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss()));
    EXPECT_FALSE(model[0]->parameters()[0].grad().defined());
    EXPECT_TRUE(model[8]->parameters()[0].grad().defined());
  }
}

TEST_F(PipelineTest, DrawsOutsideThePipelineAreUntouched) {
  const Batch batch(8);
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(2).num_micro_batches(4));
  torch::manual_seed(1);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(1);
  pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss());
  EXPECT_TRUE(test::same_bits(torch::rand({4}), expected));
}

TEST_F(PipelineTest, AutocastOfTheCallerReachesTheStages) {
  struct DtypeImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) {
      seen = torch::mm(input, input.t()).scalar_type();
      return input;
    }
    at::ScalarType seen = at::kFloat;
  };
  auto probe = std::make_shared<DtypeImpl>();
  torch::nn::Sequential model;
  model->push_back(torch::nn::Linear(8, 8));
  model->push_back(probe);
  Pipeline pipeline(LayerChain(model), PipelineOptions(2).num_micro_batches(2));
  autocast::set_enabled(at::kCPU, true);
  autocast::set_dtype(at::kCPU, at::kBFloat16);
  const torch::NoGradGuard no_grad;
  pipeline->forward(torch::randn({4, 8}));
  autocast::set_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(probe->seen, at::kBFloat16);
}

TEST_F(PipelineTest, BadInputIsRefusedWithItsValues) {
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(2).num_micro_batches(4));
  const Batch batch(8);
  const auto message = [&](const at::Tensor& input, const at::Tensor& target) -> std::string {
    try {
      pipeline->train_step(input, target, torch::nn::CrossEntropyLoss());
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(batch.input.narrow(0, 0, 0), batch.target.narrow(0, 0, 0)), HasSubstr("0 rows"));
  EXPECT_THAT(message(batch.input, batch.target.narrow(0, 0, 5)),
              HasSubstr("the inputs have 8 rows, but the targets have 5"));
  for (const at::Tensor& parameter : pipeline->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST_F(PipelineTest, AScheduleThatIsNotCanonicalIsRefusedUnlessItIsAllowed) {
  const Schedule schedule = schedules::gpipe(2, 4, gpipe::schedules::BackwardOrder::kDescending);
  const PipelineOptions options = PipelineOptions(2).custom_schedule(schedule).balance({4, 5});
  try {
    Pipeline pipeline(LayerChain(make_mlp()), options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("stage 0 accumulates 0B3 before 0B2"), HasSubstr("allow_noncanonical(true)")));
  }
  const Batch batch(8);
  Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(options).allow_noncanonical(true));
  EXPECT_TRUE(std::isfinite(
      pipeline->train_step(batch.input, batch.target, torch::nn::CrossEntropyLoss()).loss.item<double>()));
}

TEST_F(PipelineTest, ADeviceThatIsNotThereIsRefusedWhenThePipelineIsMade) {
  const auto message = [&](const torch::Device& device) -> std::string {
    try {
      Pipeline pipeline(LayerChain(make_mlp()), PipelineOptions(2).balance({4, 5}).devices({torch::kCPU, device}));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(torch::Device(torch::kXLA, 0)),
              AllOf(HasSubstr("xla:0"), HasSubstr("no code for xla devices"), HasSubstr("name cpu")));
  if (!torch::cuda::is_available()) {
    EXPECT_THAT(message(torch::Device(torch::kCUDA, 0)), AllOf(HasSubstr("cuda:0"), HasSubstr("name cpu")));
  }
  // A device that no stage is on is not missed.
  EXPECT_NO_THROW(
      Pipeline(LayerChain(make_mlp()), PipelineOptions(1).devices({torch::kCPU, torch::kXLA}).balance({9})));
}

TEST_F(PipelineTest, BadOptionsAreRefusedWithTheirValues) {
  const auto message = [&](const PipelineOptions& options) -> std::string {
    try {
      Pipeline pipeline(LayerChain(make_mlp()), options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(PipelineOptions(0)), HasSubstr("num_stages is 0"));
  EXPECT_THAT(message(PipelineOptions(2).num_micro_batches(-1)), HasSubstr("num_micro_batches is -1"));
  EXPECT_THAT(message(PipelineOptions(10)), HasSubstr("10 stages for 9 layers"));
  EXPECT_THAT(message(PipelineOptions(2).balance({4, 4})), HasSubstr("adds up to 8 layers, but the model has 9"));
  EXPECT_THAT(message(PipelineOptions(2).balance({9})), HasSubstr("balance has 1 entries, but there are 2 stages"));
  EXPECT_THAT(message(PipelineOptions(2).balance({9, 0})), HasSubstr("gives a stage 0 layers"));
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_THAT(message(PipelineOptions(3).balance({kMost, kMost, 11})),
              HasSubstr("adds up to 4294967305 layers, but the model has 9"));
  EXPECT_THAT(message(PipelineOptions(kMost)), HasSubstr("num_stages is 2147483647; the limit is 65536"));
  EXPECT_THAT(message(PipelineOptions(2).num_micro_batches(kMost)), HasSubstr("2147483647 micro-batches"));
  EXPECT_THAT(message(PipelineOptions(2).schedule("interleaved").chunks_per_worker(kMost)), HasSubstr("2147483647"));
  EXPECT_THAT(message(PipelineOptions(2).threads_per_stage(1000000)),
              AllOf(HasSubstr("threads_per_stage is 1000000"), HasSubstr("can have at most")));
  EXPECT_THAT(message(PipelineOptions(2).threads_per_stage(most_threads())),
              AllOf(HasSubstr("x 2 stages is " + std::to_string(2 * most_threads())), HasSubstr("can have at most")));
  EXPECT_THAT(message(PipelineOptions(2).schedule("1fb")), HasSubstr("did you mean 1f1b"));
  EXPECT_THAT(message(PipelineOptions(3).custom_schedule(schedules::gpipe(2, 4))), HasSubstr("for 2 workers"));
  EXPECT_THAT(message(PipelineOptions(2).custom_schedule(parse_schedule("F0 B0 F1 B1\nF0 F1 B0 B1\n"))),
              HasSubstr("rule 3 (no deadlock)"));
}

}  // namespace
}  // namespace gpipe

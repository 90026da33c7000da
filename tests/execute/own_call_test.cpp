// Calls of a pipeline that could never return: from inside its own step, and in a forked process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/stage_optimizers.h"
#include "tests/execute/forked_child.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const at::Tensor& input() {
  static const at::Tensor tensor = torch::arange(24, torch::kFloat).view({8, 3}).sin();
  return tensor;
}
const at::Tensor& target() {
  static const at::Tensor tensor = torch::arange(16, torch::kFloat).view({8, 2}) / 16;
  return tensor;
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& wanted) { return (output - wanted).square().mean(); }

// Calls `hook` in its forward, if there is one.
struct HookedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& given) {
    if (hook) hook();
    return given.tanh();
  }
  std::function<void()> hook;
};
TORCH_MODULE(Hooked);

struct Fixture {
  Fixture() : Fixture(PipelineOptions(2)) {}
  explicit Fixture(PipelineOptions options)
      : hooked(),
        pipeline(torch::nn::Sequential(torch::nn::Linear(3, 4), hooked, torch::nn::Linear(4, 2)),
                 options.num_micro_batches(2).balance({1, 2})) {}

  double train() {
    pipeline->zero_grad();
    return pipeline->train_step(input(), target(), mean_square).loss.item<double>();
  }

  // What a step says whose loss makes that call.
  std::string message(const std::function<void()>& call) {
    try {
      pipeline->train_step(input(), target(), [&](const at::Tensor& output, const at::Tensor& wanted) {
        call();
        return mean_square(output, wanted);
      });
      return "";
    } catch (const ActionError& error) {
      EXPECT_THROW(std::rethrow_exception(error.cause()), CallError);
      return error.what();
    }
  }

  Hooked hooked;
  Pipeline pipeline;
};

TEST(OwnCall, OfALossIsAnErrorThatSaysSoAndThePipelineStaysUsable) {
  Fixture run;
  const double before = run.train();
  at::Tensor earlier = run.pipeline->forward(input());
  StageOptimizers<torch::optim::SGD> optimizer(run.pipeline, 0.1);
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"train_step", [&] { run.train(); }},
      {"forward", [&] { run.pipeline->forward(input()); }},
      {"backward", [&] { earlier.sum().backward(); }},
      {"clip_grad_norm_", [&] { clip_grad_norm_(run.pipeline, 1); }},
      {"step of the optimizers", [&] { optimizer.step(); }},
      {"book", [&] { run.pipeline->book(optimizer); }}};
  for (const auto& [name, call] : calls) {
    EXPECT_THAT(run.message(call), AllOf(HasSubstr(std::string(name) + " was called while train_step of the same "),
                                         HasSubstr("the loss"), HasSubstr("use another pipeline")))
        << name;
    EXPECT_EQ(run.train(), before) << name;
  }
  EXPECT_NO_THROW(earlier.sum().backward());  // it was refused, not used up
}

TEST(OwnCall, OfALossIsRefusedWhileTheFirstBatchIsProfiled) {
  Pipeline pipeline(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)),
                    PipelineOptions(2).num_micro_batches(2));
  const auto loss = [&](const at::Tensor& output, const at::Tensor& wanted) {
    pipeline->forward(input());
    return mean_square(output, wanted);
  };
  EXPECT_THROW(pipeline->train_step(input(), target(), loss), ActionError);
}

TEST(OwnCall, OfALayerIsAnError) {
  Fixture run;
  const double before = run.train();
  run.hooked->hook = [&] { run.pipeline->forward(input()); };
  EXPECT_THROW(run.train(), ActionError);
  EXPECT_THROW(run.pipeline->forward(input()), ActionError);
  run.hooked->hook = nullptr;
  EXPECT_EQ(run.train(), before);
}

TEST(OwnCall, OfAHookInTheBackwardIsAnError) {
  Fixture run;
  const double before = run.train();
  const at::Tensor weight = run.pipeline->parameters().front();
  const auto hook = weight.register_hook([&](const at::Tensor&) { clip_grad_norm_(run.pipeline, 1); });
  EXPECT_THROW(run.train(), ActionError);
  weight.remove_hook(hook);
  EXPECT_EQ(run.train(), before);
}

TEST(OwnCall, ByWayOfAnotherPipelineIsAnError) {
  Fixture run;
  Fixture other;
  other.hooked->hook = [&] { run.pipeline->forward(input()); };
  EXPECT_THROW(
      {
        run.pipeline->train_step(input(), target(), [&](const at::Tensor& output, const at::Tensor& wanted) {
          other.pipeline->forward(input());
          return mean_square(output, wanted);
        });
      },
      ActionError);
}

TEST(OwnCall, OfAnotherPipelineInALossWorks) {
  Fixture run;
  Fixture teacher;
  teacher.pipeline->eval();
  const auto loss = [&](const at::Tensor& output, const at::Tensor&) {
    const torch::NoGradGuard no_grad;
    const at::Tensor wanted = teacher.pipeline->forward(input().narrow(0, 0, output.size(0)));
    const torch::AutoGradMode grad_mode(true);
    return mean_square(output, wanted);
  };
  EXPECT_GT(run.pipeline->train_step(input(), target(), loss).loss.item<double>(), 0);
}

TEST(OwnCall, InputsThatComeOutOfTheSamePipelineGetTheirGradients) {
  Pipeline pipeline(torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3)),
                    PipelineOptions(2).num_micro_batches(2).balance({1, 1}));
  const at::Tensor once = pipeline->forward(input());
  pipeline->train_step(once, input(), mean_square);
  const at::Tensor gradient = pipeline->parameters().front().grad().clone();
  pipeline->zero_grad();
  pipeline->train_step(once.detach(), input(), mean_square);
  EXPECT_FALSE(same_bits(pipeline->parameters().front().grad(), gradient));
}

void expect_call_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const CallError& error) {
    if (std::string(error.what()).find("was forked") != std::string::npos) return;
  }
  throw Error("this is no error about a forked process");
}

// Its autograd does not work in a forked process either, and says so before it comes to the pipeline.
void expect_refusal_by_libtorch(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error&) {
    return;
  }
  throw Error("libtorch did not refuse it");
}

TEST(ForkedProcess, EveryCallOfItsParentsPipelineIsAnErrorThatSaysSo) {
  Fixture run;
  const double before = run.train();
  at::Tensor earlier = run.pipeline->forward(input());
  torch::optim::SGD optimizer(run.pipeline->parameters(), 0.1);
  EXPECT_EQ(run_forked([&] {
              expect_call_error([&] { run.train(); });
              expect_call_error([&] { run.pipeline->forward(input()); });
              expect_refusal_by_libtorch([&] { earlier.sum().backward(); });
              expect_call_error([&] { clip_grad_norm_(run.pipeline, 1); });
              expect_call_error([&] { run.pipeline->book(optimizer); });
            }),
            kChildDone);
  EXPECT_EQ(run.train(), before);
}

TEST(ForkedProcess, EndsItsCopyOfThePipelineWithoutWaiting) {
  Fixture run;
  const double before = run.train();
  EXPECT_EQ(run_forked([&] {
              if (run.pipeline->parameters().size() != 4) throw Error("the parameters can be read");
              run.pipeline = nullptr;
            }),
            kChildDone);
  EXPECT_EQ(run.train(), before);
}

TEST(ForkedProcess, EndsItsCopyOfAStepThatIsUnderWay) {
  Fixture run;
  const double before = run.train();
  at::Tensor earlier = run.pipeline->forward(input());
  EXPECT_EQ(run_forked([&] {
              run.pipeline = nullptr;
              earlier = at::Tensor();
            }),
            kChildDone);
  EXPECT_NO_THROW(earlier.sum().backward());
  EXPECT_EQ(run.train(), before);
}

}  // namespace
}  // namespace gpipe::test

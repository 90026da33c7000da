// Bad input is refused with its values, and leaves parameters, gradients, buffers and the count of steps as they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <tuple>

#include "gpipe/error.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/interpret/action_error.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/simulate/planner.h"
#include "tests/execute/plain_chain.h"

namespace gpipe {
namespace {

using test::expect_same_bits;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Linear;

// Takes one tensor, or two to add.
struct EntryImpl : torch::nn::Module {
  at::Tensor forward(Tensors inputs) { return linear(inputs.size() == 1 ? inputs[0] : inputs[0] + inputs[1]); }
  Linear linear = register_module("linear", Linear(4, 4));
};
TORCH_MODULE(Entry);

LayerChain make_chain() {
  return LayerChain()
      .add<Entry>("entry")
      .add<nn::DeferredBatchNorm1d>("norm", 4)
      .add<torch::nn::Dropout>("dropout", 0.5)
      .add<Linear>("head", 4, 4);
}

at::Tensor cross_entropy(const Tensors& outputs, const Tensors& targets) {
  return torch::nn::functional::cross_entropy(outputs[0], targets[0]);
}

// A pipeline in the middle of its training, and its twin that never sees bad input.
struct Fixture {
  explicit Fixture(const PipelineOptions& options = PipelineOptions(2).num_micro_batches(4))
      : pipeline(make_chain(), options), twin(make_chain(), options) {
    at::set_num_threads(1);
    torch::manual_seed(9);
    input = torch::randn({8, 4});
    target = torch::randint(4, {8});
    for (Pipeline& each : {std::ref(pipeline), std::ref(twin)})
      each->train_step(Tensors{input}, Tensors{target}, cross_entropy);
  }

  // What the bad call says, of the type Expected; afterwards the pipeline goes on as its twin does.
  template <typename Expected = InvalidArgument>
  std::string message(const std::function<void()>& bad_call) {
    std::string what = "nothing was thrown";
    try {
      bad_call();
    } catch (const Expected& error) {
      what = error.what();
    } catch (const std::exception& error) {
      what = std::string("of another type: ") + error.what();
    }
    expect_same_bits(*pipeline, *twin);
    expect_same_bits(pipeline->train_step(Tensors{input}, Tensors{target}, cross_entropy).loss,
                     twin->train_step(Tensors{input}, Tensors{target}, cross_entropy).loss, "the next loss");
    expect_same_bits(*pipeline, *twin);
    return what;
  }
  template <typename Expected = InvalidArgument>
  std::string message(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss = cross_entropy) {
    return message<Expected>([&] { pipeline->train_step(inputs, targets, loss); });
  }

  Pipeline pipeline;
  Pipeline twin;
  at::Tensor input;
  at::Tensor target;
};

TEST(BadInput, ABatchOfNoRows) {
  Fixture run;
  const at::Tensor empty = run.input.narrow(0, 0, 0);
  EXPECT_THAT(run.message({empty}, {run.target.narrow(0, 0, 0)}), HasSubstr("0 rows"));
  EXPECT_THAT(run.message([&] { run.pipeline->forward(empty); }), HasSubstr("0 rows"));
}

TEST(BadInput, InputsOfDifferentRows) {
  Fixture run;
  const Tensors inputs = {run.input, run.input.narrow(0, 0, 5)};
  EXPECT_THAT(run.message(inputs, {run.target}), AllOf(HasSubstr("8 rows"), HasSubstr("has 5")));
  EXPECT_THAT(run.message([&] { run.pipeline->forward_tensors(inputs); }),
              AllOf(HasSubstr("8 rows"), HasSubstr("has 5")));
}

TEST(BadInput, TargetsOfDifferentRows) {
  Fixture run;
  EXPECT_THAT(run.message({run.input}, {run.target, run.target.narrow(0, 0, 5)}),
              AllOf(HasSubstr("8 rows"), HasSubstr("has 5")));
}

TEST(BadInput, AScalarThatIsNotReplicated) {
  Fixture run;
  EXPECT_THAT(run.message({run.input, torch::ones({})}, {run.target}),
              AllOf(HasSubstr("tensor 1"), HasSubstr("scalar"), HasSubstr("replicate")));
}

TEST(BadInput, NoInputs) {
  Fixture run;
  EXPECT_THAT(run.message({}, {run.target}), HasSubstr("no tensor"));
  EXPECT_THAT(run.message({at::Tensor()}, {run.target}), HasSubstr("no tensor"));
}

TEST(BadInput, ARefusedPipelineLeavesItsModelAsItWas) {
  torch::nn::Sequential model(Linear(4, 4), torch::nn::Tanh(), Linear(4, 4));
  torch::nn::Sequential copy(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  for (const PipelineOptions& options :
       {PipelineOptions(0), PipelineOptions(4), PipelineOptions(2).balance({1, 1}), PipelineOptions(2).balance({4, -1}),
        PipelineOptions(2).threads_per_stage(0), PipelineOptions(2).schedule("none"),
        PipelineOptions(2).custom_schedule(schedules::gpipe(3, 4)),
        PipelineOptions(2).schedule("interleaved").chunks_per_worker(2)}) {
    EXPECT_THROW(Pipeline(LayerChain(model), options), Error);
    expect_same_bits(*model, *copy);
  }
  EXPECT_NO_THROW(Pipeline(LayerChain(model), PipelineOptions(3)));
}

TEST(BadInput, AScalarAmongTheTargetsIsCalledATarget) {
  Fixture fixture;
  EXPECT_THAT(fixture.message([&] {
    fixture.pipeline->train_step(Tensors{fixture.input}, Tensors{torch::ones({})}, cross_entropy);
  }),
              HasSubstr("tensor 0 of the targets is a scalar"));
}

struct TwinsImpl : torch::nn::Module {
  Tensors forward(const at::Tensor& input) { return {linear(input), input}; }
  Linear linear = register_module("linear", Linear(4, 4));
};
TORCH_MODULE(Twins);

TEST(BadInput, AModelOfTwoOutputsWithALossOfOne) {
  Pipeline pipeline(LayerChain().add<Twins>("twins"), PipelineOptions(1));
  const auto step = [&] { pipeline->train_step(torch::ones({4, 4}), torch::ones({4, 4}), torch::nn::MSELoss()); };
  EXPECT_THAT(step,
              ::testing::ThrowsMessage<ActionError>(HasSubstr("the model has 2 outputs, but the loss takes one")));
}

TEST(BadInput, MoreStagesThanLayersBecauseOfChunks) {
  const auto make = [] { Pipeline(make_chain(), PipelineOptions(3).schedule("interleaved")); };
  EXPECT_THAT(make, ::testing::ThrowsMessage<InvalidArgument>(
                        HasSubstr("6 stages (3 workers x 2 chunks) for 4 layers; each stage needs a layer: lower "
                                  "num_stages or chunks_per_worker, or split layers")));
}

TEST(BadInput, MoreStagesThanLayersHasARemedyThatTheScheduleTakes) {
  const auto refusal = [](const PipelineOptions& options) { return [options] { Pipeline(make_chain(), options); }; };
  EXPECT_THAT(refusal(PipelineOptions(3).schedule("zb-v")),
              ::testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("zb-v always puts 2 stages on a worker; take schedule zb-h1, which puts one there, lower "
                            "num_stages, or split layers")));
  EXPECT_THAT(refusal(PipelineOptions(3).schedule("hanayo")),
              ::testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("hanayo always puts a multiple of 2 stages on a worker; take schedule 1f1b")));
  EXPECT_THAT(refusal(PipelineOptions(5).schedule("zb-v")),
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("needs a layer: lower num_stages, or split layers")));
  EXPECT_NO_THROW(refusal(PipelineOptions(3).schedule("zb-h1"))());
}

TEST(BadInput, AMistypedScheduleIsAnsweredWithThoseThatTrain) {
  const auto make = [] { Pipeline(make_chain(), PipelineOptions(2).schedule("serch")); };
  EXPECT_THAT(make, ::testing::ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("did you mean search?"),
                                                                    HasSubstr("The schedules are gpipe, 1f1b"),
                                                                    ::testing::Not(HasSubstr("forward")))));
}

TEST(BadInput, APlanOfAnotherModelIsCalledThat) {
  Profile profile;
  profile.layers.resize(11);
  for (LayerProfile& layer : profile.layers) layer.forward_seconds = layer.backward_seconds = 1;
  PlanOptions options;
  for (const int num_stages : {2, 11}) {
    options.num_stages = num_stages;
    const Plan plan = gpipe::plan(profile, options);
    EXPECT_THAT([&] { Pipeline(make_chain(), PipelineOptions(plan)); },
                ::testing::ThrowsMessage<InvalidArgument>(
                    HasSubstr("the plan is of another model: it has 11 layers, and this one has 4")));
    EXPECT_NO_THROW(Pipeline(make_chain(), PipelineOptions(plan).num_stages(2).balance({2, 2})));
  }
}

TEST(BadInput, InTheTrialRunIsDescribedAsInAStep) {
  Pipeline pipeline(make_chain(), PipelineOptions(2).num_micro_batches(2));
  const auto step = [&] {
    pipeline->train_step(Tensors{torch::ones({4, 9})}, Tensors{torch::ones({4})}, cross_entropy);
  };
  EXPECT_THAT(step, ::testing::ThrowsMessage<ActionError>(
                        HasSubstr("layer 0 (entry) on Float [2, 9], with Float parameters, in a trial run")));
}

TEST(BadInput, AModelWithoutLayers) { EXPECT_THROW(Pipeline(LayerChain(), PipelineOptions(1)), InvalidArgument); }

TEST(BadInput, AModelOfSeveralOutputsWhereOneIsWanted) {
  struct PairImpl : torch::nn::Module {
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) { return {input, input + 1}; }
  };
  torch::nn::Sequential model;
  model->push_back(Linear(4, 4));
  model->push_back(std::make_shared<PairImpl>());
  Pipeline pipeline(LayerChain(model), PipelineOptions(2));
  try {
    pipeline->forward(torch::ones({2, 4}));
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("returns 2 tensors"));
  }
}

TEST(BadInput, AScalarOutputCannotBeJoined) {
  struct TotalImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) { return input.sum(); }
  };
  torch::nn::Sequential model;
  model->push_back(Linear(4, 4));
  model->push_back(std::make_shared<TotalImpl>());
  Pipeline pipeline(LayerChain(model), PipelineOptions(2));
  for (const bool with_grad : {true, false}) {
    const at::AutoGradMode grad_mode(with_grad);
    try {
      pipeline->forward(torch::ones({4, 4}));
      FAIL() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("output 0"), HasSubstr("scalar")));
    }
  }
}

TEST(BadInput, ALayerThatGetsAnotherNumberOfTensorsThanItTakes) {
  struct PairImpl : torch::nn::Module {
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) { return {input, input + 1}; }
  };
  struct Pair : torch::nn::ModuleHolder<PairImpl> {
    using torch::nn::ModuleHolder<PairImpl>::ModuleHolder;
  };
  Pipeline pipeline(LayerChain().add<Pair>("pair").add<Linear>("head", 4, 4), PipelineOptions(2));
  try {
    pipeline->forward(torch::ones({2, 4}));
    FAIL() << "nothing was thrown";
  } catch (const ActionError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("layer 1 (head)"), HasSubstr("takes 1 tensor, but gets 2")));
  }
}

TEST(BadInput, AReplicatedInputThatIsNotThere) {
  Pipeline pipeline(make_chain(), PipelineOptions(2).replicated_inputs({1}));
  try {
    pipeline->train_step(Tensors{torch::ones({8, 4})}, Tensors{torch::zeros({8}, at::kLong)}, cross_entropy);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor 1 is to be replicated, but the batch has 1"));
  }
}

TEST(BadInput, TargetsOfOtherRowsThanTheInputs) {
  Fixture run;
  EXPECT_THAT(run.message({run.input}, {run.target.narrow(0, 0, 5)}),
              AllOf(HasSubstr("8 rows"), HasSubstr("targets have 5")));
  EXPECT_THAT(run.message({run.input.narrow(0, 0, 2)}, {run.target}),
              AllOf(HasSubstr("2 rows"), HasSubstr("targets have 8")));
}

TEST(BadInput, WhatASearchedScheduleChooses) {
  const auto message = [](const PipelineOptions& options) {
    try {
      Pipeline pipeline(make_chain(), options);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(PipelineOptions(2).schedule("search").balance({1, 1})), HasSubstr("balance is given"));
  EXPECT_THAT(message(PipelineOptions(2).schedule("search").chunks_per_worker(2)), HasSubstr("chunks_per_worker"));
  EXPECT_THAT(message(PipelineOptions(2).schedule("search").search_seconds(0)), HasSubstr("search_seconds is 0"));
}

TEST(BadInput, MicroBatchesThatContradictTheSchedule) {
  try {
    Pipeline pipeline(make_chain(), PipelineOptions(2).num_micro_batches(8).custom_schedule(schedules::gpipe(2, 4)));
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("4"), HasSubstr("8")));
  }
}

TEST(BadInput, AScheduleWithoutBackwardDoesNotTrain) {
  Pipeline pipeline(make_chain(), PipelineOptions(2).custom_schedule(schedules::forward_only(2, 4)));
  EXPECT_THROW(pipeline->train_step(Tensors{torch::ones({8, 4})}, Tensors{torch::zeros({8}, at::kLong)}, cross_entropy),
               Error);
}

TEST(BadInput, AnInputOfAnotherType) {
  Fixture run;
  EXPECT_THAT(run.message<Error>({run.input.to(at::kDouble)}, {run.target}),
              AllOf(HasSubstr("Double"), HasSubstr("Float"), HasSubstr("layer 0 (entry)")));
}

TEST(BadInput, ATargetOfAnotherType) {
  Fixture run;
  EXPECT_THAT(run.message<Error>({run.input}, {run.target.to(at::kInt)}),
              AllOf(HasSubstr("Int"), HasSubstr("the loss")));
}

TEST(BadInput, ALossThatIsNoScalar) {
  Fixture run;
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(1); };
  EXPECT_THAT(run.message<Error>({run.input}, {run.target}, loss), AllOf(HasSubstr("the loss"), HasSubstr("[2]")));
}

TEST(BadInput, ALossThatIsUndefined) {
  Fixture run;
  const auto loss = [](const Tensors&, const Tensors&) { return at::Tensor(); };
  EXPECT_THAT(run.message<Error>({run.input}, {run.target}, loss),
              AllOf(HasSubstr("the loss"), HasSubstr("undefined")));
}

TEST(BadInput, ALossThatNeedsNoGradient) {
  Fixture run;
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].detach().sum(); };
  EXPECT_THAT(run.message<Error>({run.input}, {run.target}, loss), AllOf(HasSubstr("the loss"), HasSubstr("gradient")));
}

TEST(BadInput, MovingThePipelineToAnotherDevice) {
  Fixture run;
  EXPECT_THAT(run.message([&] { run.pipeline->to(torch::kMeta); }), AllOf(HasSubstr("meta"), HasSubstr("cpu")));
}

}  // namespace
}  // namespace gpipe

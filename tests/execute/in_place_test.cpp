// Layers that write on their input. A stage's input is also the previous stage's output, and what a recompute starts
// from.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/execute/pipeline.h"
#include "tests/execute/plain_chain.h"

namespace gpipe {
namespace {

using test::expect_transparent;
using test::Problem;
using torch::nn::Dropout;
using torch::nn::DropoutOptions;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::ReLUOptions;

Problem make_problem(std::function<LayerChain()> make) {
  torch::manual_seed(9);
  return {std::move(make),
          {torch::randn({7, 4})},
          {torch::randn({7, 4})},
          [](const Tensors& outputs, const Tensors& targets) { return torch::mse_loss(outputs[0], targets[0]); }};
}

TEST(InPlace, AStageMayReadWhatTheNextStageWritesOn) {
  // tanh keeps its output for the backward; so the next stage must not write on it before that. The plain run refuses
  // this, and so the pipeline may refuse it or keep a copy, but never give other gradients.
  const auto make = [] {
    return LayerChain()
        .add<Linear>("0", 4, 4)
        .add<torch::nn::Tanh>("1")
        .add<ReLU>("2", ReLUOptions(true))
        .add<Linear>("3", 4, 4);
  };
  const auto make_copying = [] {
    return LayerChain().add<Linear>("0", 4, 4).add<torch::nn::Tanh>("1").add<ReLU>("2").add<Linear>("3", 4, 4);
  };
  at::set_num_threads(1);
  const Problem problem = make_problem(make_copying);
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    test::PlainChain plain(make_copying(), problem.options);
    plain.train_step(problem.inputs, problem.targets, problem.loss);
    PipelineOptions options = problem.options;
    Pipeline pipeline(make(), options.num_stages(2).balance({2, 2}).recompute(recompute));
    try {
      pipeline->train_step(problem.inputs, problem.targets, problem.loss);
    } catch (const ActionError&) {
      continue;
    }
    test::expect_same_bits(*pipeline, plain.model());
  }
}

TEST(InPlace, ReluMayBeTheFirstLayerOfAStage) {
  expect_transparent(make_problem([] {
    return LayerChain()
        .add<Linear>("0", 4, 4)
        .add<ReLU>("1", ReLUOptions(true))
        .add<Linear>("2", 4, 4)
        .add<ReLU>("3", ReLUOptions(true))
        .add<Linear>("4", 4, 4);
  }));
}

TEST(InPlace, DropoutMayBeTheFirstLayerOfAStage) {
  expect_transparent(make_problem([] {
    return LayerChain()
        .add<Linear>("0", 4, 4)
        .add<Dropout>("1", DropoutOptions(0.5).inplace(true))
        .add<Linear>("2", 4, 4)
        .add<Dropout>("3", DropoutOptions(0.5).inplace(true))
        .add<Linear>("4", 4, 4);
  }));
}

TEST(InPlace, TheFirstLayerOfTheModelMayWriteOnTheBatch) {
  Problem problem = make_problem([] {
    return LayerChain()
        .add<Dropout>("0", DropoutOptions(0.5).inplace(true))
        .add<Linear>("1", 4, 4)
        .add<Linear>("2", 4, 4);
  });
  problem.num_steps = 1;  // the plain model, too, leaves a changed batch
  expect_transparent(problem);
}

}  // namespace
}  // namespace gpipe

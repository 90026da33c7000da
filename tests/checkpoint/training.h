// A small training with everything in it that has to survive a checkpoint, for the tests.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/transport/c10d/peers.h"
#include "tests/model/same_bits.h"
#include "tests/os/temporary_folder.h"

namespace gpipe {

struct TrainingSetup {
  int num_stages = 1;
  std::string optimizer = "sgd";  // adam, adamw, rmsprop, adagrad
  std::string schedule = "1f1b";
  Recompute recompute = Recompute::kNever;
  std::uint64_t seed = 3;
  int width = 6;
  std::shared_ptr<Peers> peers = nullptr;
};

// Dropout, batch norm, tied weights, two parameter groups, and a rate that falls.
class Training {
 public:
  explicit Training(const TrainingSetup& setup)
      : pipeline(make_pipeline(setup)), optimizer(make_optimizer(pipeline, setup.optimizer)) {
    if (setup.peers != nullptr) world = setup.peers->world();
  }

  at::Tensor step() {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * 0.9);
    const at::Tensor input = at::arange(16 * 5).view({16, 5}).to(at::kFloat).mul(0.37 + 0.1 * num_steps).sin();
    const at::Tensor target = input.slice(1, 0, 3).contiguous();
    optimizer->zero_grad();
    const at::Tensor loss =
        pipeline->train_step(replica_share(input, world), replica_share(target, world), torch::nn::MSELoss()).loss;
    optimizer->step();
    ++num_steps;
    return loss;
  }
  at::Tensor steps(int count) {
    at::Tensor loss;
    for (int index = 0; index < count; ++index) loss = step();
    return loss;
  }

  TrainingState state() const {
    TrainingState state;
    state.step = num_steps;
    state.data_position = "batch " + std::to_string(num_steps);
    state.learning_rate = "falls";
    state.notes = {{"note", "of mine"}};
    state.metadata = {{"model", "small"}};
    state.added = {{"gpipe.table", at::arange(4)}};
    return state;
  }

  SavedCheckpoint save(const std::string& folder, const SaveOptions& options = {}) {
    return save_checkpoint(folder, pipeline, *optimizer, state(), options);
  }
  TrainingState load(const std::string& path, const LoadOptions& options = {}) {
    TrainingState loaded = load_checkpoint(path, pipeline, *optimizer, options);
    num_steps = loaded.step;
    return loaded;
  }

  static LayerChain chain(int width) {
    LayerChain chain;
    chain.add<torch::nn::Linear>("in", 5, width);
    chain.add<nn::DeferredBatchNorm1d>("body.0.norm", width);
    chain.add<torch::nn::Dropout>("body.0.dropout", 0.3);
    chain.add<torch::nn::Linear>("body.1", width, width);
    chain.add<nn::Dropout>("body.2", 0.2);
    chain.add<torch::nn::Linear>("body.3", width, width);
    chain.add<torch::nn::Linear>("out", width, 3);
    chain.tie("body.1.weight", "body.3.weight");
    return chain;
  }

  Pipeline pipeline;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::int64_t num_steps = 0;
  World world;

 private:
  static Pipeline make_pipeline(const TrainingSetup& setup) {
    const std::vector<std::vector<int>> balances = {{7}, {3, 4}, {2, 3, 2}, {1, 3, 1, 2}};
    return Pipeline(chain(setup.width), PipelineOptions(setup.num_stages)
                                            .num_micro_batches(4)
                                            .schedule(setup.schedule)
                                            .recompute(setup.recompute)
                                            .seed(setup.seed)
                                            .peers(setup.peers)
                                            .balance(balances[setup.num_stages - 1]));
  }

  static std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Pipeline& pipeline, const std::string& name) {
    std::vector<at::Tensor> matrices;
    std::vector<at::Tensor> vectors;
    for (const at::Tensor& parameter : pipeline->parameters()) {
      (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
    }
    const auto with_groups = [&](const auto& decayed, const auto& plain) {
      using Options = std::decay_t<decltype(decayed)>;
      return std::vector<torch::optim::OptimizerParamGroup>{
          torch::optim::OptimizerParamGroup(matrices, std::make_unique<Options>(decayed)),
          torch::optim::OptimizerParamGroup(vectors, std::make_unique<Options>(plain))};
    };
    if (name == "adam") {
      const torch::optim::AdamOptions plain(0.02);
      return std::make_unique<StageOptimizers<torch::optim::Adam>>(
          pipeline, with_groups(torch::optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.1), plain), plain);
    }
    if (name == "adamw") {
      const torch::optim::AdamWOptions plain(0.02);
      return std::make_unique<StageOptimizers<torch::optim::AdamW>>(
          pipeline, with_groups(torch::optim::AdamWOptions(0.01).betas(std::make_tuple(0.8, 0.9)), plain), plain);
    }
    if (name == "rmsprop") {
      const torch::optim::RMSpropOptions plain(0.01);
      return std::make_unique<StageOptimizers<torch::optim::RMSprop>>(
          pipeline, with_groups(torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true), plain), plain);
    }
    if (name == "adagrad") {
      const torch::optim::AdagradOptions plain(0.05);
      return std::make_unique<StageOptimizers<torch::optim::Adagrad>>(
          pipeline, with_groups(torch::optim::AdagradOptions(0.05).lr_decay(0.1), plain), plain);
    }
    const torch::optim::SGDOptions plain(0.05);
    return std::make_unique<StageOptimizers<torch::optim::SGD>>(
        pipeline, with_groups(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true), plain), plain);
  }
};

// Bit for bit: weights, buffers, optimizer.
inline void expect_same(Training& a, Training& b, const std::string& what) {
  const CheckpointSnapshot one = snapshot_of(a.pipeline, *a.optimizer, a.state());
  const CheckpointSnapshot other = snapshot_of(b.pipeline, *b.optimizer, b.state());
  std::map<std::string, at::Tensor> tensors[2];
  int side = 0;
  for (const CheckpointSnapshot* snapshot : {&one, &other}) {
    for (const StageShard& shard : snapshot->shards) {
      for (const auto& list : {shard.weights, shard.slots}) {
        for (const auto& [name, tensor] : list) ASSERT_TRUE(tensors[side].emplace(name, tensor).second) << name;
      }
    }
    ++side;
  }
  ASSERT_EQ(tensors[0].size(), tensors[1].size()) << what;
  for (const auto& [name, tensor] : tensors[0]) {
    ASSERT_EQ(tensors[1].count(name), 1u) << what << ": " << name;
    EXPECT_TRUE(test::same_bits(tensor, tensors[1][name])) << what << ": " << name;
  }
  ASSERT_EQ(one.manifest.groups.size(), other.manifest.groups.size());
  for (std::size_t group = 0; group < one.manifest.groups.size(); ++group) {
    EXPECT_EQ(one.manifest.groups[group].options, other.manifest.groups[group].options) << what;
  }
  EXPECT_EQ(one.manifest.pipeline_step, other.manifest.pipeline_step) << what;
}

class CheckpointTest : public ::testing::Test {
 private:
  const test::TemporaryFolder temporary_;

 protected:
  const std::string folder_ = temporary_.path("checkpoints");  // not there at the beginning
};

}  // namespace gpipe

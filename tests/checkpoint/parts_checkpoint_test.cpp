// Parts of one module, saved and resumed: every rank knows the layer of every name, whatever it has built.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>

#include "gpipe/gpipe.h"
#include "gpipe/transport/c10d/peers.h"
#include "tests/execute/rank_processes.h"
#include "tests/execute/training.h"
#include "tests/model/parts.h"
#include "tests/model/same_bits.h"
#include "tests/os/temporary_folder.h"

namespace gpipe::test {
namespace {

using ::testing::ElementsAreArray;

constexpr const char* kFolder = "GPIPE_TEST_FOLDER";

// A pipeline of the parts, and its optimizer.
struct PartsTraining {
  explicit PartsTraining(int num_stages, const std::shared_ptr<Peers>& peers = nullptr)
      : pipeline(chain_of_parts(), PipelineOptions(num_stages)
                                       .num_micro_batches(4)
                                       .balance(even_balance(5, num_stages))
                                       .seed(kSeed)
                                       .peers(peers)),
        optimizer(pipeline, adam_options()) {}

  at::Tensor step() {
    const at::Tensor input = at::arange(16 * 5).view({16, 5}).to(at::kFloat).mul(0.3 + 0.1 * num_steps++).sin();
    optimizer.zero_grad();
    const at::Tensor loss = pipeline->train_step(input, input.flip(1), torch::nn::MSELoss()).loss;
    norm = clip_grad_norm_(pipeline, 0.5);
    optimizer.step();
    return loss;
  }
  std::string save(const std::string& folder) {
    TrainingState state;
    state.step = num_steps;
    return save_checkpoint(folder, pipeline, optimizer, state).path;
  }
  void load(const std::string& folder) { num_steps = load_checkpoint(folder, pipeline, optimizer).step; }

  Pipeline pipeline;
  StageOptimizers<torch::optim::Adam> optimizer;
  std::int64_t num_steps = 0;
  double norm = 0;
};

// As the whole module lists them.
std::vector<std::string> all_names() {
  std::vector<std::string> names(std::begin(kWholeParameters), std::end(kWholeParameters));
  names.insert(names.end(), std::begin(kWholeBuffers), std::end(kWholeBuffers));
  return names;
}

// After three steps, on threads.
std::unique_ptr<PartsTraining> straight() {
  auto training = std::make_unique<PartsTraining>(1);
  for (int step = 0; step < 3; ++step) training->step();
  return training;
}

// The processes of the test below: each number of them trains from the beginning, and goes on from what one stage, and
// what two processes have saved.
const Program kParts("Parts", [] {
  at::set_num_threads(1);
  const std::string folder = std::getenv(kFolder);
  const auto peers = std::make_shared<Peers>(read_world());
  const int size = peers->world().size;
  const Safetensors expected = load_safetensors(folder + "/straight.safetensors");
  const std::map<std::string, at::Tensor> weights(expected.tensors.begin(), expected.tensors.end());
  for (const char* from : {"", "threads", "processes"}) {
    SCOPED_TRACE(fmt::format("{} processes, from {}", size, *from == '\0' ? "the beginning" : from));
    PartsTraining training(size, peers);
    if (*from != '\0') training.load(fmt::format("{}/{}", folder, from));
    while (training.num_steps < 3) {
      training.step();
      if (*from == '\0' && size == 2 && training.num_steps == 1) training.save(fmt::format("{}/processes", folder));
    }
    EXPECT_EQ(fmt::format("{}", training.norm), expected.metadata.at("norm"));
    EXPECT_LT(weights_of(*training.pipeline).size(), weights.size());
    for (const auto& [name, weight] : weights_of(*training.pipeline)) {
      EXPECT_TRUE(same_bits(weight, weights.at(name))) << name;
    }
    std::vector<std::string> names;
    for (const auto& [name, weight] : gather_weights(training.pipeline)) {
      names.push_back(name);
      EXPECT_TRUE(same_bits(weight, weights.at(name))) << name;
    }
    EXPECT_THAT(names, ElementsAreArray(peers->world().rank == 0 ? all_names() : std::vector<std::string>()));
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  peers->leave_together();
});

TEST(PartsCheckpoint, GoesFromThreadsAndProcessesToAnyNumberOfEither) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);
  const TemporaryFolder folder;
  PartsTraining first(1);
  first.step();
  const std::string saved = first.save(folder.path("threads"));
  const auto expected = straight();
  save_weights(folder.path("straight.safetensors"), *expected->pipeline, {{"norm", fmt::format("{}", expected->norm)}});
  setenv(kFolder, folder.path("").c_str(), 1);
  for (const int size : {2, 3}) {
    RankProcesses ranks(size, "Parts", 30);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(ranks.wait(rank, 100), 0) << "rank " << rank << " of " << size << ": " << ranks.output(rank);
    }
  }
  unsetenv(kFolder);
  for (const char* from : {"threads", "processes"}) {
    for (const int num_stages : {1, 2, 3, 5}) {
      SCOPED_TRACE(fmt::format("from {} to {} threads", from, num_stages));
      PartsTraining training(num_stages);
      training.load(folder.path(from));
      while (training.num_steps < 3) training.step();
      expect_same_bits(*training.pipeline, *expected->pipeline);
    }
  }
  at::set_num_threads(num_threads);
}

TEST(PartsCheckpoint, AShardHasTheWeightsAndSlotsOfItsStage) {
  PartsTraining training(5);
  training.step();
  TrainingState state;
  const CheckpointSnapshot snapshot = snapshot_of(training.pipeline, training.optimizer, state);
  ASSERT_EQ(snapshot.shards.size(), 5U);
  std::vector<std::string> names;
  for (const auto& item : snapshot.shards[2].weights) names.push_back(item.first);
  EXPECT_THAT(names, ElementsAreArray({"encoder.0.attn.in_proj_bias"}));
  names.clear();
  for (const auto& item : snapshot.shards[4].slots) names.push_back(item.first);
  EXPECT_THAT(names, ElementsAreArray({"head.bias/step", "head.bias/exp_avg", "head.bias/exp_avg_sq"}));
}

TEST(PartsCheckpoint, WeightsAreSavedAndLoadedUnderTheNamesOfTheWholeModule) {
  const TemporaryFolder folder;
  const std::string path = folder.path("weights.safetensors");
  const auto trained = straight();
  save_weights(path, *trained->pipeline);
  std::vector<std::string> names;
  for (const auto& item : load_safetensors(path).tensors) names.push_back(item.first);
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(all_names()));
  const PartsTraining other(3);
  EXPECT_EQ(load_weights(path, other.pipeline).num_loaded, 10);
  for (const auto& item : trained->pipeline->named_parameters()) {
    EXPECT_TRUE(same_bits(other.pipeline->named_parameters()[item.key()], item.value())) << item.key();
  }
}

}  // namespace
}  // namespace gpipe::test

// Chains that were cut from TorchScript modules, over processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "gpipe/execute/pipeline.h"
#include "gpipe/launch/world.h"
#include "gpipe/transport/c10d/peers.h"
#include "tests/execute/plain_chain.h"
#include "tests/execute/rank_processes.h"
#include "tests/torchscript/script_networks.h"

namespace gpipe::test {
namespace {

// The processes of the test below. Each has the plain run by itself.
const Program kScripts("Scripts", [] {
  at::set_num_threads(1);
  const auto peers = std::make_shared<Peers>(read_world());
  const auto loss = [](const Tensors& outputs, const Tensors& /*targets*/) { return weighted_sum(outputs); };
  for (const auto& [name, make] : networks()) {
    if (name == "in place") continue;  // it has too few places to cut
    SCOPED_TRACE(name);
    torch::manual_seed(1);
    const Network network = make();
    const Tensors targets = {torch::zeros({network.tensors[0].size(0), 1})};
    const auto chain = [&] {
      return from_torchscript(copy_of(network.module), TorchScriptOptions(network.options).most_shared_bytes(100));
    };
    const PipelineOptions options = PipelineOptions(peers->world().size).num_micro_batches(2).schedule("1f1b");
    PlainChain plain(chain(), options);
    Pipeline pipeline(chain(), PipelineOptions(options).peers(peers));
    for (int step = 0; step < 2; ++step) {
      const at::Tensor expected = plain.train_step(network.tensors, targets, loss);
      expect_same_bits(pipeline->train_step(network.tensors, targets, loss).loss, expected, "loss");
    }
    const auto parameters = plain.model().named_parameters();
    const auto buffers = plain.model().named_buffers();
    for (const auto& parameter : pipeline->named_parameters()) {
      expect_same_bits(parameter.value().grad(), parameters[parameter.key()].grad(), parameter.key());
    }
    for (const auto& buffer : pipeline->named_buffers()) {
      expect_same_bits(buffer.value(), buffers[buffer.key()], buffer.key());
    }
    const bool is_large = name == "convolutions" || name == "u-net";  // both ranks have parameters
    if (is_large) {
      EXPECT_LT(pipeline->named_parameters().size(), parameters.size()) << "a rank has all layers";
    }
  }
  peers->leave_together();
});

TEST(TorchScriptProcesses, TrainAsThePlainChainDoes) {
  RankProcesses ranks(2, "Scripts", 30);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank, 100), 0) << "rank " << rank << ": " << ranks.output(rank);
  }
}

}  // namespace
}  // namespace gpipe::test

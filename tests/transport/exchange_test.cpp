// Records that ranks exchange: all get what each gave, rank 0 alone, or what one gave.
#include "gpipe/transport/c10d/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "ranks.h"
#include "tests/model/same_bits.h"

namespace gpipe::detail {
namespace {

// A rank's own, with as many tensors as its number says, and with more than a packet has.
WireRecord record_of(int rank) {
  WireRecord record;
  record.add("rank", rank);
  record.add("tensors", Tensors(static_cast<std::size_t>(10 * rank), torch::full({2}, rank)));
  record.add("undefined", at::Tensor());
  return record;
}

void expect_of_rank(const WireRecord& record, int rank) {
  WireReader reader(record, "this is not a test's record");
  EXPECT_EQ(reader.integer<int>("rank"), rank);
  const Tensors tensors = reader.tensors("tensors");
  ASSERT_EQ(tensors.size(), static_cast<std::size_t>(10 * rank));
  for (const at::Tensor& tensor : tensors) EXPECT_TRUE(test::same_bits(tensor, torch::full({2}, rank)));
  EXPECT_FALSE(reader.tensor("undefined").defined());
  reader.finish();
}

TEST(Exchange, AllRanksGetWhatEachGives) {
  run_ranks(3, [](Peers& peers) {
    Exchange exchange(peers);
    for (int round = 0; round < 2; ++round) {
      const std::vector<WireRecord> by_rank = exchange.gather(record_of(peers.world().rank));
      ASSERT_EQ(by_rank.size(), 3U);
      for (int rank = 0; rank < 3; ++rank) expect_of_rank(by_rank[static_cast<std::size_t>(rank)], rank);
    }
  });
}

TEST(Exchange, RankZeroAloneGetsWhatIsCollected) {
  run_ranks(3, [](Peers& peers) {
    Exchange exchange(peers);
    const std::vector<WireRecord> by_rank = exchange.collect(record_of(peers.world().rank));
    ASSERT_EQ(by_rank.size(), peers.world().rank == 0 ? 3U : 0U);
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) expect_of_rank(by_rank[rank], static_cast<int>(rank));
  });
}

TEST(Exchange, AllRanksGetWhatTheRootGives) {
  run_ranks(3, [](Peers& peers) {
    Exchange exchange(peers);
    for (const int root : {2, 0, 1, 2}) {
      expect_of_rank(exchange.broadcast(root, record_of(peers.world().rank)), root);
      const Tensors tensors = exchange.broadcast(root, Tensors{torch::full({1}, peers.world().rank), at::Tensor()});
      ASSERT_EQ(tensors.size(), 2U);
      EXPECT_EQ(tensors[0].item<int>(), root);
      EXPECT_FALSE(tensors[1].defined());
    }
  });
}

TEST(Exchange, TensorsThatAreNoRecordAreRefused) {
  run_ranks(2, [](Peers& peers) {
    if (peers.world().rank == 0) {
      FlowSender sender(peers, flow_to(1));
      Packet packet;
      packet.step = 1;
      packet.tensors = {torch::ones({8})};
      sender.put(packet);
      packet.step = 2;
      packet.tensors = encode(record_of(1));
      packet.tensors.resize(8);
      packet.tensors[0] = encode(record_of(0)).front();  // which says that one tensor follows
      sender.put(packet);
      sender.flush();
    } else {
      FlowReceiver receiver(peers, flow_to(0));
      EXPECT_THROW(receive(receiver, 1), InvalidArgument);
      EXPECT_THROW(receive(receiver, 2), InvalidArgument);
    }
  });
}

}  // namespace
}  // namespace gpipe::detail

// How ranks meet: who is let in, who is not, and what they are told.
#include "gpipe/transport/c10d/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/transport/c10d/meeting.h"
#include "gpipe/transport/wire_record.h"
#include "ranks.h"
#include "tests/os/comes_true.h"
#include "tests/os/reserved_port.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;

TEST(Peers, KnowEachOthersHostsAndStages) {
  run_ranks(3, [](Peers& peers) {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(peers.place_of(rank).host, "host" + std::to_string(rank));
      EXPECT_EQ(peers.place_of(rank).stage, rank);
    }
  });
}

TEST(Peers, AWorldOfOneNeedsNobody) {
  Peers peers{World()};
  peers.compare({{"model", "a"}});
  peers.leave_together();
}

TEST(Peers, ALateRankIsNamedWhileTheOtherWaitsToLeave) {
  std::promise<void> is_named;
  run_ranks(2, [&](Peers& peers) {
    const int rank = peers.world().rank;
    if (rank == 1) is_named.get_future().wait();
    std::vector<std::string> late;
    peers.leave_together([&](const PeerError& error) {
      late.emplace_back(error.what());
      is_named.set_value();
    });
    const std::string what =
        "rank 1 (host host1, stage 1): it has not come to leave for 2.5 s; this rank waits for it for 20 s";
    EXPECT_EQ(late, rank == 0 ? std::vector<std::string>{what} : std::vector<std::string>());
  });
}

TEST(Meeting, TheStoreStaysUntilASlowRankHasReadWhoFailed) {
  const test::ReservedPort port;
  std::promise<void> rank0_is_gone;
  std::vector<std::string> told(3);
  for (const std::exception_ptr& failure : run_each(3, [&](int rank) {
         const World world = world_of(rank, 3, port.number());
         {
           Meeting meeting(world);
           FailureReport own;
           own.text = "out of luck";
           std::exception_ptr error = std::make_exception_ptr(std::runtime_error(own.text));
           if (rank < 2) {
             own = {/*blamed=*/2, /*silent=*/false, "", -1, "lost"};
             error = std::make_exception_ptr(PeerError(meeting.place_of(2), own.text));
           }
           if (rank == 1) {  // rank 0 would have been gone at once
             EXPECT_TRUE(test::comes_true([&] { return meeting.store()->add("gpipe/settled", 0) == 2; }, 10));
             rank0_is_gone.get_future().wait_for(std::chrono::milliseconds(300));
           }
           meeting.report(own);
           error = meeting.find_culprit(error, own);
           told[rank] = text_of(error);
           meeting.let_others_read(error);
         }
         if (rank == 0) rank0_is_gone.set_value();
       })) {
    EXPECT_EQ(text_of(failure), "");
  }
  for (const std::string& text : told) EXPECT_THAT(text, HasSubstr("out of luck"));
}

TEST(Peers, AnotherSecretIsRefusedByName) {
  const test::ReservedPort port;
  const auto errors = run_each(2, [&](int rank) {
    World world = world_of(rank, 2, port.number());
    world.timeout_seconds = 1;
    if (rank == 1) world.secret = "another one, as long";
    Peers peers(world);
  });
  EXPECT_TRUE(is_a<HandshakeError>(errors[1])) << text_of(errors[1]);
  EXPECT_THAT(text_of(errors[1]), HasSubstr("GPIPE_SECRET"));
  EXPECT_TRUE(is_a<PeerError>(errors[0])) << text_of(errors[0]);
  EXPECT_THAT(text_of(errors[0]), HasSubstr("rank 1 (stage 1): it has not come within 1 s"));
  EXPECT_THAT(text_of(errors[0]), HasSubstr("its secret is another one"));
}

TEST(Peers, WithoutASecretTheyMeetOnTheLoopbackOnly) {
  World world = world_of(1, 2, 1);
  world.secret.clear();
  world.network_interface.clear();
  world.master_address = "192.0.2.1";
  try {
    Peers peers(world);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.variable(), "GPIPE_SECRET");
  }
  const test::ReservedPort port;
  for (const auto& error : run_each(2, [&](int rank) {
         World loopback = world_of(rank, 2, port.number());
         loopback.secret.clear();
         Peers peers(loopback);
         peers.leave_together();
       })) {
    EXPECT_EQ(text_of(error), "");
  }
}

TEST(Peers, OtherHostsCannotMeetOnTheLoopback) {
  World world = world_of(0, 2, 1);
  world.local_size = 1;
  try {
    Peers peers(world);
    FAIL();
  } catch (const HandshakeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("GPIPE_INTERFACE"));
  }
}

TEST(Peers, ARankThatNeverComesIsNamed) {
  const test::ReservedPort port;
  World world = world_of(0, 3, port.number());
  world.timeout_seconds = 0.3;
  try {
    Peers peers(world);
    FAIL();
  } catch (const PeerError& error) {
    EXPECT_EQ(error.place().rank, 1);
  }
}

TEST(Peers, AMasterThatNeverComesIsNamed) {
  const test::ReservedPort port;
  World world = world_of(1, 3, port.number());
  world.timeout_seconds = 0.3;
  try {
    Peers peers(world);
    FAIL();
  } catch (const PeerError& error) {
    EXPECT_EQ(error.place().rank, 0);
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(world.master_port)));
  }
}

TEST(Peers, TheSameRankTwiceIsRefused) {
  const test::ReservedPort port;
  const auto errors = run_each(3, [&](int index) {
    World world = world_of(std::min(index, 1), 3, port.number());
    world.timeout_seconds = 1;
    Peers peers(world);
  });
  EXPECT_TRUE(is_a<PeerError>(errors[0])) << text_of(errors[0]);
  EXPECT_THAT(text_of(errors[1]) + text_of(errors[2]), HasSubstr("somebody else is this rank already"));
}

// Answers one connection with `challenge`, whatever it is told. `meanwhile` gets the port.
void answer_with(const Challenge& challenge, const std::function<void(int port)>& meanwhile) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::thread server([&] {
    pollfd entry{listener.get(), POLLIN, 0};
    poll(&entry, 1, 5000);
    const FileDescriptor connection(accept(listener.get(), nullptr, nullptr));
    Hello hello;
    EXPECT_TRUE(read_all(connection.get(), &hello, sizeof hello, deadline_in(5)));
    EXPECT_TRUE(write_all(connection.get(), &challenge, sizeof challenge, deadline_in(5)));
    char byte = 0;
    read_all(connection.get(), &byte, 1, deadline_in(5));  // until the other side has gone
  });
  meanwhile(name_of(listener.get()).port);
  server.join();
}

TEST(Peers, AnotherVersionIsNamed) {
  Challenge challenge;
  challenge.version = 7;
  answer_with(challenge, [&](int port) {
    try {
      Peers peers(world_of(1, 2, port));
      FAIL();
    } catch (const HandshakeError& error) {
      EXPECT_THAT(error.what(), HasSubstr("speaks version 7 of gpipe's protocol, this rank version 3"));
    }
  });
}

TEST(Peers, WhatIsNoGpipeIsNamed) {
  Challenge challenge;
  challenge.magic[0] = 'H';
  answer_with(challenge, [&](int port) {
    try {
      Peers peers(world_of(1, 2, port));
      FAIL();
    } catch (const HandshakeError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is no rank of gpipe"));
    }
  });
}

TEST(Peers, AMasterThatDoesNotKnowTheSecretIsNotTrusted) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::thread impostor([&] {
    pollfd entry{listener.get(), POLLIN, 0};
    poll(&entry, 1, 5000);
    const FileDescriptor connection(accept(listener.get(), nullptr, nullptr));
    Hello hello;
    Proof proof{};
    const Challenge challenge;
    Verdict verdict;  // welcome, with a proof that it has seen
    EXPECT_TRUE(read_all(connection.get(), &hello, sizeof hello, deadline_in(5)));
    EXPECT_TRUE(write_all(connection.get(), &challenge, sizeof challenge, deadline_in(5)));
    EXPECT_TRUE(read_all(connection.get(), &proof, sizeof proof, deadline_in(5)));
    verdict.proof = proof;
    EXPECT_TRUE(write_all(connection.get(), &verdict, sizeof verdict, deadline_in(5)));
  });
  try {
    Peers peers(world_of(1, 2, name_of(listener.get()).port));
    ADD_FAILURE();
  } catch (const HandshakeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot prove that it knows the run's secret"));
  }
  impostor.join();
}

TEST(Peers, GateTellsAnotherVersionItsOwn) {
  StoreServer server("127.0.0.1", 0, {"secret", Purpose::kStore, 0, 2, {0, 1}});
  const FileDescriptor connection = connect_to("127.0.0.1", server.port(), deadline_in(5));
  Hello hello;
  hello.version = 9;
  Challenge challenge;
  ASSERT_TRUE(write_all(connection.get(), &hello, sizeof hello, deadline_in(5)));
  ASSERT_TRUE(read_all(connection.get(), &challenge, sizeof challenge, deadline_in(5)));
  EXPECT_EQ(challenge.version, kWireVersion);
  EXPECT_EQ(challenge.status, Status::kOtherVersion);
  EXPECT_THAT(server.refusals(), HasSubstr("another version"));
}

TEST(Peers, EqualFingerprintsPass) {
  run_ranks(3, [](Peers& peers) {
    peers.compare({{"model", "a: b"}, {"", ""}, {"seed", "1"}});
    peers.compare({});
  });
}

TEST(Peers, EveryRankNamesTheFirstDifference) {
  const test::ReservedPort port;
  const auto errors = run_each(3, [&](int rank) {
    Peers peers(world_of(rank, 3, port.number()));
    peers.compare({{"schedule", "1f1b"}, {"seed", rank == 2 ? "8" : "7"}, {"batch", std::to_string(rank)}});
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(is_a<FingerprintError>(error)) << text_of(error);
    // Rank 1 differs, too, but later; the ranks are looked at in order.
    EXPECT_THAT(text_of(error), HasSubstr("batch is '0' on rank 0, but batch is '1' on rank 1"));
  }
}

TEST(Peers, AFingerprintThatEndsEarlierDiffers) {
  try {
    compare_fingerprints({{{"a", "1"}, {"b", "2"}}, {{"a", "1"}}});
    FAIL();
  } catch (const FingerprintError& error) {
    EXPECT_EQ(error.name(), "b");
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), HasSubstr("b is '2' on rank 0, but nothing more on rank 1"));
  }
}

TEST(Peers, AFingerprintComesBackFromItsRecord) {
  const Fingerprint fingerprint = {{"a", "1"}, {"", "text"}, {"a", "\xff"}};
  EXPECT_EQ(read_fingerprint(to_record(fingerprint)), fingerprint);
  EXPECT_THROW(read_fingerprint({}), InvalidArgument);
  WireRecord record;
  record.add("names", std::vector<std::string>{"a", "b"});
  record.add("values", "1");
  EXPECT_THROW(read_fingerprint(record), InvalidArgument);
}

TEST(ProvenStore, DoesWhatStoresDo) {
  const auto bytes = [](const std::string& text) { return std::vector<std::uint8_t>(text.begin(), text.end()); };
  run_ranks(2, [&](Peers& peers) {
    c10d::Store& store = peers.store();
    if (peers.world().rank == 0) {
      store.set("key", bytes("value"));
      store.set("key", bytes("new"));
      EXPECT_THROW(store.set("long", std::vector<std::uint8_t>(kMostValueBytes + 1)), InvalidArgument);
      EXPECT_THROW(store.set(std::string(kMostKeyBytes + 1, 'k'), bytes("")), InvalidArgument);
      EXPECT_THROW(store.wait({"never"}, std::chrono::milliseconds(50)), c10::Error);
      store.set("large", std::vector<std::uint8_t>(kMostValueBytes, 7));
      EXPECT_EQ(store.add("sum", 3), 3);
      store.set("go", bytes(""));
    } else {
      store.wait({"go"});
      EXPECT_EQ(store.get("key"), bytes("new"));
      EXPECT_EQ(store.get("large"), std::vector<std::uint8_t>(kMostValueBytes, 7));
      EXPECT_EQ(store.add("sum", -5), -2);
      EXPECT_TRUE(store.check({"key", "go"}));
      EXPECT_FALSE(store.check({"key", "never"}));
      EXPECT_THROW(store.deleteKey("key"), c10::Error);
      EXPECT_THROW(store.getNumKeys(), c10::Error);
    }
  });
}

}  // namespace
}  // namespace gpipe::detail

// Checkpoints of several ranks: what they have to agree on, and what is left if one of them fails. The ranks are
// threads with connections of their own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/checkpoint/checkpoint_files.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/all_ranks.h"
#include "tests/checkpoint/training.h"
#include "tests/model/same_bits.h"
#include "tests/os/fault_file_system.h"
#include "tests/os/file_limits.h"
#include "tests/os/reserved_port.h"
#include "tests/transport/ranks.h"

namespace gpipe::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckpointRanksTest : public CheckpointTest {
 protected:
  static std::vector<std::exception_ptr> try_ranks(int size, const std::function<void(std::shared_ptr<Peers>)>& work) {
    const ReservedPort port;
    return run_each(size, [&](int rank) { work(std::make_shared<Peers>(world_of(rank, size, port.number()))); });
  }
  static void run_on_ranks(int size, const std::function<void(std::shared_ptr<Peers>)>& work) {
    for (const std::exception_ptr& error : try_ranks(size, work)) EXPECT_EQ(text_of(error), "");
  }
  static TrainingSetup setup(const std::shared_ptr<Peers>& peers) {
    TrainingSetup setup{peers->world().size, "adam"};
    setup.peers = peers;
    return setup;
  }
};

TEST_F(CheckpointRanksTest, AreThoseOfThreads) {
  Training threads({3, "adam"});
  threads.steps(2);
  const SavedCheckpoint expected = threads.save(folder_ + "/threads");
  run_on_ranks(3, [&](const std::shared_ptr<Peers>& peers) {
    Training training(setup(peers));
    training.steps(2);
    const SavedCheckpoint saved = training.save(folder_ + "/ranks/");
    EXPECT_EQ(saved.path, folder_ + "/ranks/step-0000000002");
    EXPECT_GT(saved.write_seconds, 0);
  });
  const std::string path = latest_checkpoint(folder_ + "/ranks");
  const auto by_name = [](const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const ManifestFile& file : read_manifest(checkpoint).files) files[file.name] = file.hash;
    return files;
  };
  EXPECT_EQ(by_name(path), by_name(expected.path));
  const std::vector<OptimizerGroup> groups = read_manifest(path).groups;
  const std::vector<OptimizerGroup> expected_groups = read_manifest(expected.path).groups;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    EXPECT_THAT(groups[group].parameters, ::testing::UnorderedElementsAreArray(expected_groups[group].parameters));
  }
}

TEST_F(CheckpointRanksTest, AreNotMadeIfOneRankFailsAndTheNextIsTried) {
  for (const int failing : {0, 1}) {
    for (const bool in_the_background : {false, true}) {
      SCOPED_TRACE(fmt::format("rank {} fails, in the background {}", failing, in_the_background));
      std::filesystem::remove_all(folder_);
      run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
        const bool fails = peers->world().rank == failing;
        Training training(setup(peers));
        training.steps(1);
        training.save(folder_);
        training.steps(1);
        FaultFileSystem full(Fault::kNoSpace, 4);
        SaveOptions options;
        options.num_threads = 1;
        if (fails) options.files = &full;
        std::string what;
        try {
          if (in_the_background) {
            CheckpointWriter writer(folder_, options);
            writer.save(training.pipeline, *training.optimizer, training.state());
            writer.wait();
          } else {
            training.save(folder_, options);
          }
        } catch (const CheckpointError& error) {
          what = error.what();
        }
        EXPECT_THAT(what, HasSubstr("No space left"));
        EXPECT_THAT(what, HasSubstr(fails ? "" : fmt::format("rank {} (host host{})", failing, failing)));
        any_rank(training.pipeline, false);  // so that both have come here
        EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 1);
        any_rank(training.pipeline, false);
        training.save(folder_);
        EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 2);
        for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
          EXPECT_NE(entry.path().extension(), ".tmp");
        }
      });
    }
  }
}

TEST_F(CheckpointRanksTest, InAFolderThatAnotherProcessHoldsAreRefusedByAll) {
  std::filesystem::create_directories(folder_);
  auto other = std::make_unique<OtherLock>(folder_ + "/lock");
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Training training(setup(peers));
    training.steps(1);
    EXPECT_THAT([&] { training.save(folder_); },
                ::testing::ThrowsMessage<CheckpointError>(HasSubstr("another training")));
    CheckpointWriter writer(folder_);
    EXPECT_THROW(writer.save(training.pipeline, *training.optimizer, training.state()), CheckpointError);
    any_rank(training.pipeline, false);  // so that both have come here
    if (peers->world().rank == 0) other.reset();
    any_rank(training.pipeline, false);
    writer.save(training.pipeline, *training.optimizer, training.state());
    EXPECT_EQ(writer.wait()->not_locked, "");
    EXPECT_FALSE(OtherLock(folder_ + "/lock").is_held());
    any_rank(training.pipeline, false);
  });
  EXPECT_TRUE(OtherLock(folder_ + "/lock").is_held());
}

TEST_F(CheckpointRanksTest, NeedAFolderThatAllOfThemSee) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const bool is_first = peers->world().rank == 0;
    Training training(setup(peers));
    training.steps(1);
    EXPECT_THAT([&] { training.save(folder_ + (is_first ? "/here" : "/there")); },
                ::testing::ThrowsMessage<CheckpointError>(AllOf(HasSubstr("step-0000000001.tmp"), HasSubstr("share"))));
    training.save(folder_);
    EXPECT_THAT([&] { training.load(is_first ? folder_ : folder_ + "/there"); },
                ::testing::ThrowsMessage<CheckpointError>(HasSubstr("share")));
    EXPECT_EQ(training.load(folder_).step, 1);
  });
}

TEST_F(CheckpointRanksTest, AreRefusedByAllIfOneRankCannot) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    const bool is_first = peers->world().rank == 0;
    Training training(setup(peers));
    training.steps(1);
    torch::optim::LBFGS unknown(training.pipeline->parameters());
    torch::optim::Optimizer& optimizer =
        is_first ? *training.optimizer : static_cast<torch::optim::Optimizer&>(unknown);
    EXPECT_THROW(save_checkpoint(folder_, training.pipeline, optimizer, training.state()), InvalidArgument);
    TrainingState state = training.state();
    state.step = is_first ? 1 : 2;
    EXPECT_THAT([&] { save_checkpoint(folder_, training.pipeline, *training.optimizer, state); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("the step on rank 1 is another one")));
    training.save(folder_);
    training.steps(1);
    // One rank has another optimizer: neither changes anything.
    TrainingSetup other = setup(peers);
    if (!is_first) other.optimizer = "adamw";
    Training mixed(other);
    EXPECT_THAT([&] { mixed.load(folder_); }, ::testing::ThrowsMessage<CheckpointError>(HasSubstr("this is AdamW")));
    EXPECT_EQ(mixed.pipeline->step(), 0);
    EXPECT_TRUE(mixed.optimizer->state().empty());
    // Different calls.
    EXPECT_THROW(
        {
          if (is_first) training.save(folder_);
          if (!is_first) training.pipeline->forward(torch::ones({8, 5}));
        },
        FingerprintError);
    training.save(folder_);
  });
  EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 2);
}

TEST_F(CheckpointRanksTest, HoldLayersThatFoundTheirRankLater) {
  const auto make = [](const std::shared_ptr<Peers>& peers, int num_stages) {
    return Pipeline(Training::chain(6), PipelineOptions(num_stages).num_micro_batches(2).seed(3).peers(peers));
  };
  const at::Tensor input = torch::randn({8, 5});
  const at::Tensor target = torch::randn({8, 3});
  const auto step = [&](Pipeline& pipeline, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    pipeline->train_step(input, target, torch::nn::MSELoss());
    optimizer.step();
  };
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline = make(peers, 2);
    torch::optim::Adam optimizer(pipeline->parameters());
    save_checkpoint(folder_ + "/fresh", pipeline, optimizer, {});
    step(pipeline, optimizer);  // the layers are shared out here
    step(pipeline, optimizer);
    save_checkpoint(folder_ + "/two", pipeline, optimizer, {});
    step(pipeline, optimizer);
    save_checkpoint(folder_ + "/three", pipeline, optimizer, {});
    load_checkpoint(folder_ + "/two", pipeline, optimizer);
    step(pipeline, optimizer);
    save_checkpoint(folder_ + "/again", pipeline, optimizer, {});
    // Into one whose layers are not shared out yet.
    Pipeline later = make(peers, 2);
    torch::optim::Adam later_optimizer(later->parameters());
    load_checkpoint(folder_ + "/two", later, later_optimizer);
    step(later, later_optimizer);
    save_checkpoint(folder_ + "/later", later, later_optimizer, {});
  });
  Pipeline pipeline = make(no_peers(), 1);
  torch::optim::Adam optimizer(pipeline->parameters());
  load_checkpoint(folder_ + "/fresh", pipeline, optimizer);
  for (int count = 0; count < 3; ++count) step(pipeline, optimizer);
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : weights_of(*pipeline)) expected.insert(item);
  for (const char* name : {"/three", "/again", "/later"}) {
    int num_tensors = 0;
    for (const auto& [key, tensor] : load_model(folder_ + name).tensors) {
      ++num_tensors;
      EXPECT_TRUE(same_bits(tensor, expected.at(key))) << name << " " << key;
    }
    EXPECT_EQ(num_tensors, static_cast<int>(expected.size())) << name;
    EXPECT_EQ(
        detail::load_slots(latest_checkpoint(folder_ + name), read_manifest(latest_checkpoint(folder_ + name))).size(),
        3 * pipeline->parameters().size());
  }
}

TEST_F(CheckpointRanksTest, OfReplicasAreWrittenByTheFirstAndResumedByAll) {
  const auto run_replicas = [](int num_stages, const std::function<void(std::shared_ptr<Peers>)>& work) {
    const ReservedPort port;
    const auto errors = run_each(2 * num_stages, [&](int rank) {
      World world = world_of(rank, 2 * num_stages, port.number());
      world.num_replicas = 2;
      work(std::make_shared<Peers>(world));
    });
    for (const std::exception_ptr& error : errors) EXPECT_EQ(text_of(error), "");
  };
  const auto setup_of = [](const std::shared_ptr<Peers>& peers) {
    TrainingSetup setup{peers->world().num_stages(), "adam"};
    setup.peers = peers;
    return setup;
  };
  run_replicas(2, [&](const std::shared_ptr<Peers>& peers) {
    Training training(setup_of(peers));
    training.steps(2);
    training.save(folder_ + "/two");
    training.steps(2);
    CheckpointWriter writer(folder_ + "/four");
    writer.save(training.pipeline, *training.optimizer, training.state());
    EXPECT_EQ(writer.copy_bytes() > 0, peers->world().replica() == 0);
    writer.wait();
  });
  EXPECT_EQ(read_manifest(latest_checkpoint(folder_ + "/two")).layout.num_replicas, 2);
  Training expected({1, "adam"});
  expected.load(folder_ + "/four");
  for (const int num_stages : {1, 2}) {
    const std::string again = folder_ + "/again" + std::to_string(num_stages);
    run_replicas(num_stages, [&](const std::shared_ptr<Peers>& peers) {
      Training training(setup_of(peers));
      EXPECT_EQ(training.load(folder_ + "/two").step, 2);
      training.steps(2);
      training.save(again);
    });
    Training resumed({1, "adam"});
    resumed.load(again);
    expect_same(resumed, expected, again);
  }
}

TEST_F(CheckpointRanksTest, OfTheWriterExistOnceAPollHasSeenThatAllAreWritten) {
  run_on_ranks(2, [&](const std::shared_ptr<Peers>& peers) {
    Training training(setup(peers));
    CheckpointWriter writer(folder_);
    EXPECT_TRUE(writer.poll());
    training.steps(1);
    writer.save(training.pipeline, *training.optimizer, training.state());
    while (!writer.poll()) training.steps(1);
    EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 1);
    EXPECT_EQ(writer.wait()->path, folder_ + "/step-0000000001");
    EXPECT_FALSE(writer.wait());
    writer.save(training.pipeline, *training.optimizer, training.state());
    writer.save(training.pipeline, *training.optimizer, training.state());
  });  // the destructor waits for the last one
  Training threads({1, "adam"});
  EXPECT_GT(threads.load(folder_).step, 0);
}

}  // namespace
}  // namespace gpipe::test

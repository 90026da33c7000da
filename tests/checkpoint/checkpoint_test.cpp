// A training that is saved and resumed, on any number of stages, is the same training bit for bit.
#include "gpipe/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>

#include "gpipe/checkpoint/checkpoint_writer.h"
#include "gpipe/checkpoint/inspect_model.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/hash/content_hash.h"
#include "tests/model/same_bits.h"
#include "tests/os/comes_true.h"
#include "tests/os/fault_file_system.h"
#include "tests/os/file_limits.h"
#include "training.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class ResumeTest : public CheckpointTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(ResumeTest, OnAnyNumberOfStagesIsBitIdentical) {
  const std::string optimizer = GetParam();
  Training straight({1, optimizer});
  const at::Tensor loss = straight.steps(10);
  for (int before = 1; before <= 4; ++before) {
    Training first({before, optimizer});
    first.steps(5);
    const std::string path = first.save(folder_ + "/" + std::to_string(before)).path;
    for (int after = 1; after <= 4; ++after) {
      const std::string what = fmt::format("{}: {} -> {} stages", optimizer, before, after);
      TrainingSetup setup{after, optimizer};
      setup.schedule = after % 2 == 0 ? "gpipe" : "1f1b";
      setup.recompute = after == 3 ? Recompute::kAlways : after == 4 ? Recompute::kExceptLast : Recompute::kNever;
      Training second(setup);
      const TrainingState state = second.load(path);
      EXPECT_EQ(state.step, 5);
      EXPECT_EQ(state.data_position, "batch 5");
      EXPECT_TRUE(test::same_bits(second.steps(5), loss)) << what;
      expect_same(second, straight, what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ResumeTest, ::testing::Values("sgd", "adam", "adamw", "rmsprop", "adagrad"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST_F(CheckpointTest, GivesBackWhatItWasGiven) {
  Training training({2, "adam"});
  training.steps(2);
  const SavedCheckpoint saved = training.save(folder_);
  EXPECT_EQ(saved.path, folder_ + "/step-0000000002");
  EXPECT_GT(saved.bytes, 1000);
  EXPECT_GT(saved.pause_seconds, 0);
  EXPECT_EQ(latest_checkpoint(folder_), saved.path);

  Training other({1, "adam"});
  const TrainingState state = other.load(folder_);
  EXPECT_EQ(state.learning_rate, "falls");
  EXPECT_EQ(state.notes, training.state().notes);
  EXPECT_EQ(state.metadata, training.state().metadata);
  ASSERT_EQ(state.added.size(), 1u);
  EXPECT_EQ(state.added[0].first, "gpipe.table");
  EXPECT_TRUE(test::same_bits(state.added[0].second, at::arange(4)));

  const Manifest manifest = read_manifest(saved.path);
  EXPECT_EQ(manifest.layout.num_workers, 2);
  EXPECT_EQ(manifest.layout.layers_per_stage, (std::vector<int>{3, 4}));
  EXPECT_EQ(manifest.optimizer, "Adam");
  EXPECT_EQ(manifest.libtorch_version, TORCH_VERSION);
  std::vector<std::string> names;
  for (const ManifestFile& file : manifest.files) names.push_back(file.name);
  EXPECT_THAT(names, ElementsAre("model-00001-of-00002.safetensors", "optimizer-00001-of-00002.safetensors",
                                 "model-00002-of-00002.safetensors", "optimizer-00002-of-00002.safetensors",
                                 "model.safetensors.index.json"));
  // Tied weights are there once, and each stage has its own.
  for (const auto& item : load_model(saved.path).tensors) EXPECT_NE(item.first, "body.3.weight");
  for (const auto& item : load_safetensors(saved.path + "/model-00002-of-00002.safetensors").tensors) {
    EXPECT_TRUE(item.first.rfind("body.", 0) == 0 || item.first.rfind("out.", 0) == 0) << item.first;
  }
}

TEST_F(CheckpointTest, BeforeTheFirstStepHasNoSlotsAndOneShard) {
  const auto make = [](int num_stages) { return Pipeline(Training::chain(6), PipelineOptions(num_stages)); };
  Pipeline fresh = make(2);  // its stages are found by profiling, later
  torch::optim::Adam optimizer(fresh->parameters());
  const SavedCheckpoint saved = save_checkpoint(folder_, fresh, optimizer, {});
  Pipeline other = make(1);
  torch::optim::Adam other_optimizer(other->parameters());
  load_checkpoint(saved.path, other, other_optimizer);
  EXPECT_TRUE(other_optimizer.state().empty());
}

TEST_F(CheckpointTest, OfAnotherTrainingIsRefusedAndNothingIsChanged) {
  Training training({2, "adam"});
  training.steps(2);
  training.save(folder_);
  const auto refuses = [&](const TrainingSetup& setup, const std::string& why) {
    Training other(setup);
    other.steps(1);
    Training same(setup);
    same.steps(1);
    EXPECT_THAT([&] { other.load(folder_); }, ThrowsMessage<CheckpointError>(HasSubstr(why)));
    expect_same(other, same, why);
  };
  refuses({1, "adamw"}, "it was saved with Adam, but this is AdamW");
  TrainingSetup wide{1, "adam"};
  wide.width = 7;
  refuses(wide, "\"in.weight\" is [6, 5] of Float there, but [7, 5] of Float here");
  TrainingSetup seeded{1, "adam"};
  seeded.seed = 4;
  refuses(seeded, "was saved with the seed 3, but the pipeline has 4");
  LoadOptions any_seed;
  any_seed.any_seed = true;
  Training other(seeded);
  EXPECT_EQ(other.load(folder_, any_seed).step, 2);

  torch::optim::Adam one_group(training.pipeline->parameters());
  EXPECT_THAT([&] { load_checkpoint(folder_, training.pipeline, one_group); },
              ThrowsMessage<CheckpointError>(HasSubstr("saved with 2 parameter groups, but there are 1")));
  torch::optim::Adam foreign({torch::ones(3)});
  EXPECT_THROW(load_checkpoint(folder_, training.pipeline, foreign), InvalidArgument);
  EXPECT_THROW(save_checkpoint(folder_, training.pipeline, foreign, {}), InvalidArgument);
  torch::optim::LBFGS unknown(training.pipeline->parameters());
  EXPECT_THROW(save_checkpoint(folder_, training.pipeline, unknown, {}), InvalidArgument);
  TrainingState bad = training.state();
  bad.added = {{"in.weight", torch::ones(1)}};
  EXPECT_THROW(save_checkpoint(folder_, training.pipeline, *training.optimizer, bad), InvalidArgument);
}

TEST_F(CheckpointTest, WithAnyDamageIsRefusedAndNothingIsChanged) {
  Training training({2, "adam"});
  training.steps(1);
  const std::string path = training.save(folder_).path;
  Training fresh({1, "adam"});
  Training same({1, "adam"});
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string file = entry.path();
    const std::string bytes = [&] {
      std::ifstream input(file, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(input), {});
    }();
    ++num_files;
    const auto write = [&](const std::string& content) { std::ofstream(file, std::ios::binary) << content; };
    std::string flipped = bytes;
    flipped[bytes.size() / 2] ^= 1;
    for (const std::string& damaged : {flipped, bytes.substr(0, bytes.size() - 1), bytes + "x", std::string()}) {
      write(damaged);
      EXPECT_THROW(fresh.load(path), CheckpointError) << file << " " << damaged.size();
    }
    std::filesystem::remove(file);
    EXPECT_THROW(fresh.load(path), CheckpointError) << file;
    write(bytes);
  }
  EXPECT_EQ(num_files, 6);
  expect_same(fresh, same, "damaged");
  fresh.load(path);
  expect_same(fresh, training, "mended");
}

TEST_F(CheckpointTest, IsWholeWhateverCallOfASaveFails) {
  Training training({2, "adam"});
  training.steps(1);
  training.save(folder_);
  const std::string kept = folder_ + ".kept";
  std::filesystem::remove_all(kept);
  std::filesystem::copy(folder_, kept, std::filesystem::copy_options::recursive);
  training.steps(1);
  Training one_step({3, "adam"});
  one_step.steps(1);

  SaveOptions options;
  options.num_threads = 1;  // so that the calls come in the same order every time
  options.retention.keep_last = 1;
  FaultFileSystem whole;
  options.files = &whole;
  training.save(folder_, options);
  const int num_calls = whole.num_calls();
  ASSERT_GT(num_calls, 40);
  for (const Fault fault : {Fault::kKill, Fault::kPowerLoss, Fault::kTornRename, Fault::kNoSpace, Fault::kIoError}) {
    int num_new = 0;
    for (int call = 0; call < num_calls; ++call) {
      const std::string what = fmt::format("fault {} at call {}", static_cast<int>(fault), call);
      std::filesystem::remove_all(folder_);
      std::filesystem::copy(kept, folder_, std::filesystem::copy_options::recursive);
      FaultFileSystem files(fault, call);
      options.files = &files;
      bool is_reported = false;
      try {
        is_reported = !training.save(folder_, options).not_removed.empty();
      } catch (const CheckpointError& error) {
        is_reported = true;
        EXPECT_NE(error.path(), "") << what;
      }
      files.reboot();
      Training resumed({3, "adam"});
      const std::int64_t step = resumed.load(folder_).step;
      ASSERT_TRUE(step == 1 || step == 2) << what;
      num_new += step == 2 ? 1 : 0;
      expect_same(resumed, step == 2 ? training : one_step, what);
      // What is not reported has happened.
      EXPECT_TRUE(is_reported || step == 2) << what;
      if (fault == Fault::kNoSpace || fault == Fault::kIoError) {
        for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
          const bool is_leftover = entry.path().extension() == ".tmp";
          EXPECT_TRUE(!is_leftover || step == 2) << what << ": " << entry.path();
        }
      }
      // And the next save goes well, and clears up.
      FaultFileSystem sound;
      options.files = &sound;
      training.save(folder_, options);
      EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 2) << what;
      for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        EXPECT_NE(entry.path().extension(), ".tmp") << what;
      }
    }
    EXPECT_GT(num_new, 0);
    EXPECT_LT(num_new, num_calls / 2);
  }
  std::filesystem::remove_all(kept);
}

TEST_F(CheckpointTest, SurvivesFaultsWhileSeveralShardsAreWritten) {
  Training training({4, "sgd"});
  training.steps(1);
  training.save(folder_);
  training.steps(1);
  SaveOptions options;
  options.num_threads = 4;
  for (int call = 0; call < 60; call += 3) {
    FaultFileSystem files(Fault::kKill, call);
    options.files = &files;
    try {
      training.save(folder_, options);
    } catch (const CheckpointError&) {
    }
    Training resumed({1, "sgd"});
    EXPECT_GE(resumed.load(folder_).step, 1) << call;
  }
  FaultFileSystem slow(Fault::kShortWrite);
  options.files = &slow;
  training.save(folder_, options);
  Training resumed({1, "sgd"});
  resumed.load(folder_);
  expect_same(resumed, training, "short writes");
}

TEST_F(CheckpointTest, KeepsWhatRetentionSays) {
  Training training({1, "sgd"});
  SaveOptions options;
  options.retention = {1, 3};
  for (int step = 1; step <= 7; ++step) {
    training.steps(1);
    EXPECT_THAT(training.save(folder_, options).not_removed, IsEmpty());
  }
  std::vector<std::string> names;
  for (const std::string& path : list_checkpoints(folder_)) names.push_back(path.substr(folder_.size() + 1));
  EXPECT_THAT(names, ElementsAre("step-0000000003", "step-0000000006", "step-0000000007"));
}

TEST_F(CheckpointTest, WeightsGoToAPlainSequentialAndBack) {
  torch::nn::Sequential plain(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3));
  Pipeline pipeline(LayerChain(nn::convert_batch_norm(plain)), PipelineOptions(2).num_micro_batches(2).balance({1, 2}));
  torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
  pipeline->train_step(torch::randn({8, 5}), torch::randn({8, 3}), torch::nn::MSELoss());
  optimizer.step();
  save_checkpoint(folder_, pipeline, optimizer, {});

  torch::nn::Sequential other(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3));
  const WeightsReport report = load_weights(folder_, *other);
  EXPECT_EQ(report.num_loaded, 9);
  other->eval();
  pipeline->eval();
  const at::Tensor input = torch::randn({4, 5});
  EXPECT_TRUE(test::same_bits(other->forward(input), pipeline->forward(input)));

  Pipeline third(LayerChain(nn::convert_batch_norm(torch::nn::Sequential(
                     torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3)))),
                 PipelineOptions(3).num_micro_batches(2));
  LoadWeightsOptions head_only;
  head_only.strict = false;
  head_only.ignore = [](const std::string& name) { return name.rfind("2.", 0) != 0; };
  EXPECT_EQ(load_weights(folder_, third, head_only).num_loaded, 2);
  EXPECT_EQ(load_weights(folder_, third).num_loaded, 9);
  third->eval();
  EXPECT_TRUE(test::same_bits(third->forward(input), pipeline->forward(input)));

  const std::string file = folder_ + "/plain.safetensors";
  for (at::Tensor& parameter : other->parameters()) parameter.detach().mul_(2);
  save_weights(file, *other);
  load_weights(file, *pipeline);
  EXPECT_TRUE(test::same_bits(other->forward(input), pipeline->forward(input)));
}

// Three steps on a plain module and three on a pipeline are six on either.
TEST_F(CheckpointTest, GoesFromAPlainSequentialToAPipelineAndBack) {
  struct Plain {
    explicit Plain(bool is_pipeline) : model(torch::nn::Linear(5, 4), torch::nn::Tanh(), torch::nn::Linear(4, 3)) {
      for (at::Tensor& parameter : model->parameters()) parameter.detach().fill_(0.1).view(-1)[0] = 0.3;
      if (is_pipeline) pipeline = Pipeline(LayerChain(model), PipelineOptions(2).num_micro_batches(1).balance({1, 2}));
      optimizer = std::make_unique<torch::optim::Adam>(parameters(), torch::optim::AdamOptions(0.05));
    }
    std::vector<at::Tensor> parameters() const { return pipeline ? pipeline->parameters() : model->parameters(); }
    void steps(int first, int count) {
      for (int step = first; step < first + count; ++step) {
        const at::Tensor input = at::arange(40).view({8, 5}).to(at::kFloat).mul(0.3 + step).sin();
        optimizer->zero_grad();
        if (pipeline) {
          pipeline->train_step(input, input.slice(1, 0, 3).contiguous(), torch::nn::MSELoss());
        } else {
          torch::mse_loss(model->forward(input), input.slice(1, 0, 3)).backward();
        }
        optimizer->step();
      }
    }
    SavedCheckpoint save(const std::string& folder, const TrainingState& state) {
      return pipeline ? save_checkpoint(folder, pipeline, *optimizer, state)
                      : save_checkpoint(folder, *model, *optimizer, state);
    }
    TrainingState load(const std::string& folder) {
      return pipeline ? load_checkpoint(folder, pipeline, *optimizer) : load_checkpoint(folder, *model, *optimizer);
    }
    torch::nn::Sequential model;
    Pipeline pipeline{nullptr};
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };
  Plain straight(/*is_pipeline=*/false);
  straight.steps(0, 6);
  for (const bool is_pipeline_first : {false, true}) {
    const std::string folder = folder_ + (is_pipeline_first ? "/pipeline" : "/plain");
    Plain first(is_pipeline_first);
    first.steps(0, 3);
    TrainingState state;
    state.step = 3;
    state.notes = {{"note", "of mine"}};
    first.save(folder, state);
    Plain second(!is_pipeline_first);
    const TrainingState loaded = second.load(folder);
    EXPECT_EQ(loaded.step, 3);
    EXPECT_EQ(loaded.notes, state.notes);
    second.steps(3, 3);
    for (std::size_t index = 0; index < straight.parameters().size(); ++index) {
      EXPECT_TRUE(test::same_bits(second.parameters()[index], straight.parameters()[index])) << folder << index;
    }
  }
  Plain pipeline(/*is_pipeline=*/true);
  EXPECT_THROW(save_checkpoint(folder_, *pipeline.pipeline, *pipeline.optimizer, {}), InvalidArgument);
  torch::optim::SGD other(straight.model->parameters(), 0.1);
  EXPECT_THAT([&] { load_checkpoint(folder_ + "/plain", *straight.model, other); },
              ThrowsMessage<CheckpointError>(HasSubstr("saved with Adam, but this is SGD")));
}

TEST_F(CheckpointTest, HoldsALayerThatIsInTheChainTwice) {
  const auto make = [] {
    torch::manual_seed(1);
    torch::nn::Linear twice(3, 3);
    return torch::nn::Sequential(twice, torch::nn::Tanh(), twice);
  };
  for (const double momentum : {0.0, 0.9}) {
    const std::string folder = fmt::format("{}/{}", folder_, momentum);
    struct Shared {
      Shared(const torch::nn::Sequential& layers, double momentum)
          : pipeline(LayerChain(layers), PipelineOptions(1).num_micro_batches(2)),
            optimizer(pipeline->parameters(), torch::optim::SGDOptions(0.1).momentum(momentum)) {}
      void step() {
        optimizer.zero_grad();
        pipeline->train_step(at::ones({4, 3}), at::zeros({4, 3}), torch::nn::MSELoss());
        optimizer.step();
      }
      Pipeline pipeline;
      torch::optim::SGD optimizer;
    };
    Shared first(make(), momentum);
    first.step();
    save_checkpoint(folder, first.pipeline, first.optimizer, {});
    first.step();
    Shared second(make(), momentum);
    load_checkpoint(folder, second.pipeline, second.optimizer);
    second.step();
    for (std::size_t index = 0; index < first.pipeline->parameters().size(); ++index) {
      EXPECT_TRUE(test::same_bits(first.pipeline->parameters()[index], second.pipeline->parameters()[index]))
          << momentum;
    }
  }
}

// Waits in its first call until it is let go.
class GatedFileSystem : public FaultFileSystem {
 public:
  int mkdir(const std::string& path) override {
    gate_.get_future().wait();
    gate_ = std::promise<void>();
    gate_.set_value();
    return FaultFileSystem::mkdir(path);
  }
  void open_gate() { gate_.set_value(); }

 private:
  std::promise<void> gate_;
};

TEST_F(CheckpointTest, OfTheWriterHoldsTheMomentOfItsSave) {
  std::filesystem::create_directories(folder_);
  Training training({2, "adam"});
  training.steps(2);
  Training two_steps({2, "adam"});
  two_steps.steps(2);
  GatedFileSystem files;
  SaveOptions options;
  options.files = &files;
  {
    CheckpointWriter writer(folder_, options);
    EXPECT_FALSE(writer.wait());
    EXPECT_GT(writer.save(training.pipeline, *training.optimizer, training.state()), 0);
    training.steps(2);  // while nothing is written yet
    EXPECT_EQ(latest_checkpoint(folder_), "");
    const std::int64_t bytes = writer.copy_bytes();
    std::atomic<int> saver{0};
    auto next = std::async(std::launch::async, [&] {
      saver = test::own_thread_number();
      return writer.save(training.pipeline, *training.optimizer, training.state());
    });
    // It waits for the first one, for as long as that takes, which is what it reports.
    EXPECT_TRUE(test::comes_true([&] { return saver != 0 && test::is_asleep(saver); }));
    EXPECT_EQ(next.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    files.open_gate();
    EXPECT_GT(next.get(), 0.04);
    Training resumed({3, "adam"});
    EXPECT_EQ(resumed.load(folder_ + "/step-0000000002").step, 2);
    expect_same(resumed, two_steps, "while the training went on");
    const auto saved = writer.wait();
    ASSERT_TRUE(saved.has_value());
    EXPECT_EQ(saved->path, folder_ + "/step-0000000004");
    EXPECT_GT(saved->pause_seconds, 0.04);
    EXPECT_EQ(writer.copy_bytes(), bytes);
    EXPECT_FALSE(writer.wait());
    training.steps(1);
    writer.save(training.pipeline, *training.optimizer, training.state());
  }  // written before it is gone
  Training resumed({1, "adam"});
  EXPECT_EQ(resumed.load(folder_).step, 5);
  expect_same(resumed, training, "at the end");
}

TEST_F(CheckpointTest, OfTheWriterThatFailsIsReportedAndTheNextIsTried) {
  Training training({2, "sgd"});
  training.steps(1);
  training.save(folder_);
  training.steps(1);
  FaultFileSystem files(Fault::kNoSpace, 5);
  SaveOptions options;
  options.files = &files;
  CheckpointWriter writer(folder_, options);
  writer.save(training.pipeline, *training.optimizer, training.state());
  EXPECT_THAT([&] { writer.wait(); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("No space left"), HasSubstr("free some space"))));
  EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 1);
  writer.save(training.pipeline, *training.optimizer, training.state());
  EXPECT_EQ(writer.wait()->path, folder_ + "/step-0000000002");
}

TEST_F(CheckpointTest, BeyondTheLimitOfFileSizesIsAnErrorAndTheTrainingGoesOn) {
  Training training({2, "sgd"});
  training.steps(1);
  training.save(folder_);
  training.steps(1);
  {
    const FileSizeLimit limit(100);
    EXPECT_THAT([&] { training.save(folder_); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f"))));
  }
  EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 1);
  training.save(folder_);
  EXPECT_EQ(read_manifest(latest_checkpoint(folder_)).step, 2);
}

TEST_F(CheckpointTest, InAFolderThatAnotherProcessHoldsIsRefused) {
  Training training({1, "sgd"});
  training.steps(1);
  EXPECT_EQ(training.save(folder_).not_locked, "");
  {
    CheckpointWriter writer(folder_);
    EXPECT_TRUE(OtherLock(folder_ + "/lock").is_held());
    writer.save(training.pipeline, *training.optimizer, training.state());
    EXPECT_FALSE(OtherLock(folder_ + "/lock").is_held());  // until the writer is gone
    writer.wait();
    EXPECT_FALSE(OtherLock(folder_ + "/lock").is_held());
    training.save(folder_);  // of the same process
    EXPECT_FALSE(OtherLock(folder_ + "/lock").is_held());
  }
  EXPECT_TRUE(OtherLock(folder_ + "/lock").is_held());
  const OtherLock other(folder_ + "/lock");
  const std::string latest = latest_checkpoint(folder_);
  EXPECT_THAT([&] { training.save(folder_); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("another training"), HasSubstr("lock"))));
  CheckpointWriter writer(folder_);
  EXPECT_THROW(writer.save(training.pipeline, *training.optimizer, training.state()), CheckpointError);
  EXPECT_EQ(latest_checkpoint(folder_), latest);
  Training reader({1, "sgd"});
  EXPECT_EQ(reader.load(folder_).step, 1);  // whoever reads is not kept out
}

TEST_F(CheckpointTest, AWriterCanHoldTheFolderBeforeItsFirstSaveAndLeavesNoneThatIsEmpty) {
  Training training({1, "sgd"});
  training.steps(1);
  const std::string run = folder_ + "/run";
  {
    CheckpointWriter writer(run);
    EXPECT_EQ(writer.lock(training.pipeline), "");
    EXPECT_FALSE(OtherLock(run + "/lock").is_held());
  }
  EXPECT_FALSE(std::filesystem::exists(run));
  std::filesystem::create_directories(run);  // it is not for the writer to remove what others have made
  { EXPECT_EQ(CheckpointWriter(run).lock(training.pipeline), ""); }
  EXPECT_TRUE(std::filesystem::exists(run));
  std::filesystem::remove_all(run);
  {
    CheckpointWriter writer(run);
    writer.lock(training.pipeline);
    writer.save(training.pipeline, *training.optimizer, training.state());
  }
  EXPECT_EQ(read_checked_manifest(training.pipeline, latest_checkpoint(run)).step, 1);
  const OtherLock other(run + "/lock");
  EXPECT_THROW(CheckpointWriter(run).lock(training.pipeline), CheckpointError);
}

TEST_F(CheckpointTest, IsInspectedWithoutBeingLoaded) {
  Training training({2, "adam"});
  training.steps(1);
  const std::string path = training.save(folder_).path;
  const StoredModel model = inspect_model(folder_);
  EXPECT_EQ(model.kind, "checkpoint");
  EXPECT_EQ(model.path, path);
  EXPECT_EQ(model.manifest->step, 1);
  EXPECT_EQ(model.metadata.at("model"), "small");
  EXPECT_EQ(model.tensors.size(), weights_of(*training.pipeline).size() + 1);
  EXPECT_FALSE(model.slots.empty());
  EXPECT_TRUE(model.is_sound());
  const std::string file = model.tensors.front().file;
  std::ofstream(path + "/" + file, std::ios::app) << "more";
  const StoredModel damaged = inspect_model(path);
  EXPECT_FALSE(damaged.is_sound());
  EXPECT_LT(damaged.tensors.size(), model.tensors.size());
  EXPECT_THROW(read_checked_manifest(training.pipeline, path), CheckpointError);
}

TEST(ContentHashTest, IsThatOfXxhsum) {
  EXPECT_EQ(content_hash_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(content_hash_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

}  // namespace
}  // namespace gpipe

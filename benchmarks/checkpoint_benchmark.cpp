// What checkpoints cost: saving and loading against the disk's plain sequential speed, and training while one is
// written.
//
//   checkpoint_benchmark [folder] [turns]       default: a folder for temporary files, 5; about four minutes
//
// Not on Google Benchmark: each figure is a ratio of programs that must run in turns.
//   save    save_checkpoint against one file of as many bytes: write() and fsync()
//   load    load_checkpoint into a fresh optimizer, as a resume does, with its hashes, against read() of as many bytes;
//           the page cache is dropped before both
//   train   20 steps while what CheckpointWriter::save took is written, against 20 steps without; what save() itself
//           took, the copy, is shown apart
#include <fcntl.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumLayers = 16;
constexpr int kWidth = 1024;
constexpr int kSaveEvery = 20;
constexpr std::size_t kPiece = std::size_t{1} << 20;

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what + " failed");
}

struct Training {
  Training()
      : pipeline(make_chain(), PipelineOptions(2).num_micro_batches(8).balance({kNumLayers / 2, kNumLayers / 2})) {}

  static LayerChain make_chain() {
    LayerChain chain;
    for (int layer = 0; layer < kNumLayers; ++layer) {
      chain.add<torch::nn::Linear>(fmt::format("linear{}", layer), kWidth, kWidth);
    }
    return chain;
  }
  void step() {
    optimizer.zero_grad();
    pipeline->train_step(input, input, torch::nn::MSELoss());
    optimizer.step();
  }

  Pipeline pipeline;
  torch::optim::Adam optimizer{pipeline->parameters(), 1e-4};
  at::Tensor input = torch::randn({256, kWidth});
};

void write_plainly(const std::string& path, std::int64_t bytes) {
  const std::vector<char> piece(kPiece, 'x');
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  check(file >= 0, "open");
  for (std::int64_t done = 0; done < bytes; done += kPiece) check(write(file, piece.data(), kPiece) == kPiece, "write");
  check(fsync(file) == 0, "fsync");
  close(file);
}

void read_plainly(const std::string& path) {
  std::vector<char> piece(kPiece);
  const int file = open(path.c_str(), O_RDONLY);
  check(file >= 0, "open");
  while (read(file, piece.data(), kPiece) > 0) {
  }
  close(file);
}

void drop_from_cache(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY);
  check(file >= 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
  close(file);
}

void measure_disk(const std::string& folder, int turns) {
  Training training;
  training.step();
  const std::string plain = folder + "/plain";
  Samples plain_write, save, plain_read, load;
  std::int64_t bytes = 0;
  for (int turn = 0; turn < 4 * turns; ++turn) {
    SavedCheckpoint saved;
    save.add(measure([&] { saved = save_checkpoint(folder + "/run", training.pipeline, training.optimizer, {}); }));
    bytes = saved.bytes;
    plain_write.add(measure([&] { write_plainly(plain, bytes); }));
    for (const ManifestFile& file : read_manifest(saved.path).files) drop_from_cache(saved.path + "/" + file.name);
    Training fresh;
    load.add(measure([&] { load_checkpoint(saved.path, fresh.pipeline, fresh.optimizer); }));
    drop_from_cache(plain);
    plain_read.add(measure([&] { read_plainly(plain); }));
  }
  const auto speed = [&](const Samples& samples) { return static_cast<double>(bytes) / median(samples.wall) / 1e6; };
  const auto report = [&](const char* what, const Samples& ours, const Samples& plainly) {
    std::vector<double> ratios;
    for (std::size_t turn = 0; turn < ours.wall.size(); ++turn) ratios.push_back(plainly.wall[turn] / ours.wall[turn]);
    fmt::print("{:5}  {:6.0f} MB/s, plainly {:6.0f} MB/s; turn by turn {:.0f} % of its speed\n", what, speed(ours),
               speed(plainly), 100 * median(ratios));
  };
  fmt::print("a checkpoint of {:.0f} MB\n", static_cast<double>(bytes) / 1e6);
  report("save", save, plain_write);
  report("load", load, plain_read);
  std::fflush(stdout);
}

void measure_training(const std::string& folder, int turns) {
  Training training;
  training.step();
  SaveOptions options;
  options.retention.keep_last = 1;
  CheckpointWriter writer(folder + "/run", options);
  const auto take_steps = [&] {
    for (int step = 0; step < kSaveEvery; ++step) training.step();
  };
  std::vector<double> wall, cpu, pauses;
  TrainingState state;
  for (int turn = 0; turn < 3 * turns; ++turn) {
    const Seconds without = measure(take_steps);
    state.step = turn;
    double pause = 0;
    const Seconds with = measure([&] {
      pause = writer.save(training.pipeline, training.optimizer, state);
      take_steps();
    });
    writer.wait();
    wall.push_back((with.wall - pause) / without.wall);
    cpu.push_back((with.cpu - pause) / without.cpu);
    pauses.push_back(pause / without.wall);
  }
  fmt::print(
      "train  {:.1f} % slower ({:.1f} % more processor time) while a checkpoint is written every {} steps, and {:.1f} "
      "% "
      "held up by save()\n",
      100 * (median(wall) - 1), 100 * (median(cpu) - 1), kSaveEvery, 100 * median(pauses));
}

void run(const std::string& parent, int turns) {
  const std::string folder = parent + "/gpipe_checkpoint_benchmark";
  std::filesystem::create_directories(folder);
  measure_disk(folder, turns);
  measure_training(folder, turns);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  gpipe::benchmarks::run(argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string(),
                         argc > 2 ? std::atoi(argv[2]) : 5);
}

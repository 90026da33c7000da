#include "gpipe/execute/record/program_recording.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/even_share.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/os/own_process.h"
#include "gpipe/schedule/registry.h"

namespace gpipe::detail {
namespace {

std::optional<std::string> variable_of_process(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::vector<int> even_balance(int num_layers, int num_stages) {
  std::vector<int> balance;
  for (int stage = 0; stage < num_stages; ++stage) {
    balance.push_back(static_cast<int>(even_share(num_layers, stage, num_stages).count));
  }
  return balance;
}

// Every text is in the file at once: who stops the program keeps what was there.
class RecordingFile {
 public:
  explicit RecordingFile(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "we")) {
    if (file_ == nullptr) fail();
  }
  ~RecordingFile() { std::fclose(file_); }
  RecordingFile(const RecordingFile&) = delete;
  RecordingFile& operator=(const RecordingFile&) = delete;

  void write(const std::string& text) {
    if (!process_.is_here()) return;  // it is the parent's
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw EnvironmentError(fmt::format("GPIPE_VERIFY: {} cannot be written: {}", path_, std::strerror(errno)),
                           "GPIPE_VERIFY");
  }

  const OwnProcess process_;
  const std::string path_;
  std::FILE* const file_;
};

}  // namespace

ProgramRecording ProgramRecording::next() {
  static std::atomic<int> num_pipelines{0};
  ProgramRecording recording;
  recording.request_ = verify_request_from(variable_of_process);
  recording.pipeline_ = num_pipelines++;
  return recording;
}

PipelineOptions ProgramRecording::changed(PipelineOptions options, int num_layers) const {
  if (!request_) return options;
  const std::vector<int>& counts = request_->num_micro_batches;
  const int count = counts.empty() ? checked(options).num_micro_batches()
                                   : counts[std::min(counts.size() - 1, static_cast<std::size_t>(pipeline_))];
  if (!request_->changes_stages()) {
    return options.custom_schedule() ? options : options.num_micro_batches(count);
  }
  std::string schedule = request_->schedule.value_or("");
  if (schedule.empty()) schedule = options.custom_schedule() || is_searched(options) ? "1f1b" : options.schedule();
  const Recompute own = options.recompute() == Recompute::kAuto ? Recompute::kNever : options.recompute();
  options.num_stages(request_->num_stages.value_or(options.num_stages()))
      .num_micro_batches(count)
      .schedule(schedule)
      .custom_schedule(std::nullopt)
      .chunks_per_worker(0)
      .recompute(request_->recompute.value_or(own))
      .recompute_by_stage({})
      .rematerialization({})
      .memory_limit_bytes(0);
  return options.balance(even_balance(num_layers, options.num_stages() * find_schedule(schedule).default_chunks));
}

std::shared_ptr<RunRecorder> ProgramRecording::recorder(const PipelineOptions& options, const World& world,
                                                        std::vector<RecordedLayer> layers) const {
  RecordingHeader header;
  header.pipeline = pipeline_;
  header.process = read_world().rank;
  header.world_size = world.size;
  header.num_replicas = world.num_replicas;
  header.replica = world.replica();
  header.num_stages = options.num_stages();
  header.schedule = options.custom_schedule() ? "custom" : options.schedule();
  header.recompute = name(options.recompute());
  header.num_micro_batches = options.num_micro_batches();
  header.layers = std::move(layers);
  RecordSettings settings;
  settings.num_steps = request_->num_steps;
  settings.with_arrivals = request_->with_arrivals;
  if (request_->probed && request_->probed->pipeline == pipeline_) settings.probed_layer = request_->probed->layer;
  const std::filesystem::path path =
      std::filesystem::path(request_->folder) / recording_file_name(pipeline_, header.process);
  const auto file = std::make_shared<RecordingFile>(path.string());
  file->write(to_line(header));
  return std::make_shared<RunRecorder>(
      settings, [file](const Recording& added, bool completes_step) { file->write(to_lines(added, completes_step)); });
}

std::string type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  const std::size_t colon = name.rfind("::");
  if (colon != std::string::npos && name.find('<') == std::string::npos) name.erase(0, colon + 2);
  constexpr std::size_t kSuffix = 4;
  if (name.size() > kSuffix && name.compare(name.size() - kSuffix, kSuffix, "Impl") == 0) {
    name.resize(name.size() - kSuffix);
  }
  return name;
}

}  // namespace gpipe::detail

#include "train/run_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "gpipe/launch/restart.h"
#include "gpipe/launch/world.h"
#include "gpipe/plan/plan.h"
#include "gpipe/schedule/registry.h"
#include "train/checkpoint_dir.h"
#include "train/option_group.h"

namespace gpipe::train {
namespace {

using cli::parse_count;
using cli::parse_index;
using cli::parse_number;
using cli::parse_path;

std::string schedule_choices() {
  return fmt::format("{}, or search: one made for this model", fmt::join(training_schedule_names(), ", "));
}

std::string parse_schedule(std::string_view word) {
  std::vector<std::string> words = training_schedule_names();
  words.emplace_back(kSearchedSchedule);
  return words[cli::parse_choice(word, words)];
}

std::string parse_optimizer(std::string_view word) {
  return optimizer_names()[cli::parse_choice(word, optimizer_names())];
}

Precision parse_precision(std::string_view word) {
  return cli::parse_choice(word, {name(Precision::kFloat32), name(Precision::kBf16)}) == 1 ? Precision::kBf16
                                                                                           : Precision::kFloat32;
}

std::vector<int> parse_balance(std::string_view words) { return cli::parse_list(words, parse_count); }

int parse_stages(std::string_view word) { return word == "auto" ? 0 : parse_count(word); }

void add_pipeline_options(CLI::App& command, RunOptions& options) {
  const OptionGroup group{command, "Pipeline"};
  group.add("K", "--stages", options.num_stages, parse_stages,
            "Workers, one thread each, or one process each under a launcher; auto: as many as there are processes, "
            "or 2 threads [auto]");
  group.add_default("M", "--micro-batches", options.num_micro_batches, parse_micro_batches, "Slices of a mini-batch");
  group.add_default("NAME", "--schedule", options.schedule, parse_schedule, schedule_choices());
  group.add("V", "--chunks", options.chunks, parse_count, "Stages a worker [the schedule's own]");
  group.add_default(
      "MODE", "--recompute", options.recompute, parse_recompute,
      "Redo forwards in the backward pass to save memory: always, except-last (all micro-batches but the last), never, "
      "or auto, what --memory-limit asks for");
  group.add("SIZE", "--memory-limit", options.memory_limit_bytes, cli::parse_bytes,
            "Bytes a stage may hold, such as 2GiB; more is refused [unlimited]");
  group.add("N,N,...", "--balance", options.balance, parse_balance, "Layers of each stage, such as 5,4 [by profiling]");
  CLI::Option* const plan = group.add("FILE", "--plan", options.plan_path, parse_path,
                                      "What 'gpipe plan --out' or 'gpipe schedule search --plan' wrote, instead of the "
                                      "six that it decides: --stages, --micro-batches, --schedule, --chunks, "
                                      "--recompute, --balance");
  for (const char* const decided :
       {"--stages", "--micro-batches", "--schedule", "--chunks", "--recompute", "--balance"}) {
    plan->excludes(command.get_option(decided));
  }
  group.add_default("N", "--threads-per-stage", options.threads_per_stage, cli::parse_threads,
                    "Intra-op threads of a worker");
  group.add_default("N", "--seed", options.seed, parse_index, "Of weights, order and dropout");
}

void add_optimizer_options(CLI::App& command, TrainerOptions& options) {
  const OptionGroup group{command, "Optimization"};
  group.add_default("N", "--epochs", options.num_epochs, parse_count, "Times through the data");
  group.add("N", "--steps", options.num_steps, parse_count, "Mini-batches, instead of --epochs");
  group.add_default("NAME", "--optimizer", options.optimizer.name, parse_optimizer, "adamw, adam, sgd or rmsprop");
  group.add_default("X", "--lr", options.learning_rate.peak, parse_number, "Learning rate, at its peak");
  group.add_default("NAME", "--lr-schedule", options.learning_rate.schedule, parse_learning_rate_schedule,
                    "constant, inverse-sqrt, cosine or linear");
  group.add("N", "--warmup", options.warmup_steps, parse_index,
            fmt::format("Steps in which the learning rate rises [{}, or a tenth of all]",
                        options.learning_rate.warmup_steps));
  group.add_default("X", "--weight-decay", options.optimizer.weight_decay, parse_number, "");
  group.add_default("X", "--momentum", options.optimizer.momentum, parse_fraction, "Of sgd and rmsprop");
  group.add_default("X", "--clip", options.clip_norm, parse_number, "Largest norm of the gradient, 0 for none");
  group.add_default("TYPE", "--precision", options.precision, parse_precision, "float32 or bf16 (autocast)");
}

void add_file_options(CLI::App& command, TrainerOptions& options) {
  const OptionGroup group{command, "Files"};
  group.add("FILE", "--weights", options.weights_path, parse_path,
            "Begin with these weights (safetensors, or a checkpoint) instead of fresh ones");
  group.add("FILE", "--save", options.save_path, parse_path, "Keep the weights here (safetensors)");
  group.add("FILE", "--trace", options.trace_path, parse_path, "Write the last step as a trace for Perfetto");
  group.add("FILE", "--metrics", options.metrics_path, parse_path, "Write a line of JSON a step");
  group.add("DIR", "--tensorboard", options.tensorboard_dir, parse_path, "Write event files for TensorBoard");
  group.add_flag("--force", options.force, "Replace plain files that are there already");
}

void add_checkpoint_options(CLI::App& command, TrainerOptions& options) {
  const OptionGroup group{command, "Checkpoints"};
  group.add("DIR", "--checkpoint-dir", options.checkpoint_dir, parse_path,
            "Save the training here at its end, and when it is interrupted");
  group.add("N", "--checkpoint-every", options.checkpoint_every, parse_count, "And every N steps");
  group.add("N", "--keep-last", options.retention.keep_last, parse_count, "Checkpoints that are kept [all]");
  group.add("N", "--keep-every", options.retention.keep_every, parse_count,
            "And those of every N-th step are kept, with --keep-last");
  group.add_flag("--resume", options.resume, "Go on from the latest checkpoint, on any number of stages");
}

void check_checkpoint_options(const TrainerOptions& options) {
  if (options.checkpoint_dir.empty()) {
    const char* const useless = options.checkpoint_every != 0       ? "--checkpoint-every"
                                : options.resume                    ? "--resume"
                                : options.retention.keep_last != 0  ? "--keep-last"
                                : options.retention.keep_every != 0 ? "--keep-every"
                                                                    : nullptr;
    if (useless == nullptr) return;
    throw cli::UsageError(fmt::format("{} means nothing without --checkpoint-dir", useless),
                          "add --checkpoint-dir DIR");
  }
  if (options.retention.keep_every != 0 && options.retention.keep_last == 0) {
    throw cli::UsageError("--keep-every means nothing without --keep-last: all checkpoints are kept",
                          "add --keep-last N, or leave it out");
  }
  if (cli::is_there(options.checkpoint_dir) && !cli::is_folder(options.checkpoint_dir)) {
    throw cli::UsageError(fmt::format("--checkpoint-dir '{}' is not a folder", options.checkpoint_dir),
                          "name another one");
  }
  if (read_world().rank != 0) return;  // the first one writes there, and may have begun to
  if (!options.resume && !options.force && !checkpoints_in(options.checkpoint_dir).empty()) {
    throw cli::UsageError(fmt::format("--checkpoint-dir '{}' holds a training already", options.checkpoint_dir),
                          "add --resume to go on with it, --force to remove it, or name another folder");
  }
  check_checkpoint_dir(options.checkpoint_dir);
}

}  // namespace

int parse_micro_batches(std::string_view word) { return cli::parse_count_to<kMostMicroBatches>(word); }

int parse_beam(std::string_view word) { return cli::parse_count_to<1000>(word); }

std::vector<std::string> parse_paths(std::string_view words) { return cli::parse_list(words, parse_path); }

double parse_fraction(std::string_view word) {
  const double value = parse_number(word);
  if (value < 1) return value;
  throw InvalidArgument(fmt::format("'{}' is not a number from 0 to below 1", word));
}

void add_run_options(CLI::App& command, RunOptions& options) {
  add_pipeline_options(command, options);
  add_optimizer_options(command, options.trainer);
  add_file_options(command, options.trainer);
  add_checkpoint_options(command, options.trainer);
}

void take_from_launcher(RunOptions& options) {
  constexpr int kThreads = 2;
  const World world = read_world();
  if (options.num_stages == 0) options.num_stages = world.size > 1 ? world.num_stages() : kThreads;
  if (restart_number() == 0) return;
  TrainerOptions& trainer = options.trainer;
  trainer.resume = !trainer.checkpoint_dir.empty();
  trainer.force = true;  // the files are those of the start before
}

void check_num_ranks(const RunOptions& options) {
  const World world = read_world();
  if (world.size == 1 || options.trainer.plan || options.num_stages == world.num_stages()) return;
  const std::int64_t needed = std::int64_t{options.num_stages} * world.num_replicas;
  const std::string replicas = world.num_replicas == 1 ? "" : fmt::format(" --replicas {}", world.num_replicas);
  throw cli::UsageError(
      fmt::format("--stages is {}, but {} started {} processes for {} stages", options.num_stages, name(world.launcher),
                  world.size, world.num_stages()),
      fmt::format("start {} (gpipe launch -n {}{}), or leave --stages out", needed, needed, replicas));
}

void read_plan(RunOptions& options) {
  if (options.plan_path.empty()) return;
  const std::string json = cli::read_input_file(options.plan_path);
  try {
    options.trainer.plan = parse_plan(json);
  } catch (const Error& error) {
    throw cli::UsageError(fmt::format("{}: {}", cli::input_name(options.plan_path), error.what()),
                          "a plan is what 'gpipe plan --out FILE' and 'gpipe schedule search --plan FILE' write");
  }
  options.num_micro_batches = options.trainer.plan->num_micro_batches;
}

PipelineOptions pipeline_options(const RunOptions& options) {
  PipelineOptions result = options.trainer.plan ? PipelineOptions(*options.trainer.plan)
                                                : PipelineOptions(options.num_stages)
                                                      .num_micro_batches(options.num_micro_batches)
                                                      .schedule(options.schedule)
                                                      .chunks_per_worker(options.chunks)
                                                      .recompute(options.recompute)
                                                      .balance(options.balance);
  return result.threads_per_stage(options.threads_per_stage)
      .profile_fixed_seconds(true)  // for the advice at the end
      .seed(options.seed)
      .measure_memory(true)
      .memory_limit_bytes(options.memory_limit_bytes)
      .optimizer_slots(num_slots(options.trainer.optimizer))
      .check_loss(true)
      .on_late_rank([](const PeerError& late) { std::fputs(fmt::format("note: {}\n", late.what()).c_str(), stderr); });
}

void check_run_options(const RunOptions& options) {
  const TrainerOptions& trainer = options.trainer;
  check_checkpoint_options(trainer);
  const bool is_resumed = trainer.resume && !latest_checkpoint(trainer.checkpoint_dir).empty();
  if (!is_resumed && !trainer.weights_path.empty()) cli::require_input(trainer.weights_path);
  const bool may_replace = trainer.force || is_resumed;  // the files of the training that is resumed
  const std::vector<std::pair<const char*, std::string>> outputs = {
      {"--save", trainer.save_path}, {"--trace", trainer.trace_path}, {"--metrics", trainer.metrics_path}};
  for (const auto& [option, path] : outputs) {
    if (path.empty()) continue;
    for (const auto& [other, other_path] : outputs) {
      if (&other == &option) break;
      if (!cli::is_same_file(path, other_path)) continue;
      throw cli::UsageError(fmt::format("{} and {} both name '{}'", other, option, path), "name two files");
    }
    if (read_world().rank != 0) continue;  // the first one writes them, and may have begun to
    const auto check = &path == &outputs.front().second ? cli::check_replaced_file : cli::check_output_file;
    check(path, may_replace);
  }
}

}  // namespace gpipe::train

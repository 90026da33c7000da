#include "train/run_options.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "gpipe/launch/restart.h"
#include "gpipe/launch/world.h"
#include "gpipe/os/input_file.h"
#include "gpipe/schedule/registry.h"
#include "train/checkpoint_dir.h"
#include "train/option_group.h"
#include "train/run_checkpoints.h"

namespace gpipe::train {
namespace {

using cli::parse_count;
using cli::parse_index;
using cli::parse_number;
using cli::parse_path;

std::string parse_schedule(std::string_view word) { return find_schedule(std::string(word)).name; }

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
  CLI::Option* const stages =
      group.add("K", "--stages", options.num_stages, parse_stages,
                "Workers, one thread each, or one process each under a launcher; auto: as many as there are processes, "
                "or 2 threads [auto]");
  CLI::Option* const micro_batches = group.add("M", "--micro-batches", options.num_micro_batches, parse_micro_batches,
                                               fmt::format("Slices of a mini-batch [{}]", options.num_micro_batches));
  CLI::Option* const schedule = group.add("NAME", "--schedule", options.schedule, parse_schedule,
                                          "gpipe, 1f1b, interleaved or looped-bfs [1f1b]");
  CLI::Option* const chunks =
      group.add("V", "--chunks", options.chunks, parse_count, "Stages a worker [the schedule's own]");
  CLI::Option* const recompute = group.add(
      "MODE", "--recompute", options.recompute, parse_recompute,
      "Redo forwards in the backward pass to save memory: always, except-last (all micro-batches but the last), never, "
      "or auto, what --memory-limit asks for [never]");
  group.add("SIZE", "--memory-limit", options.memory_limit_bytes, cli::parse_bytes,
            "Bytes a stage may hold, such as 2GiB; more is refused [unlimited]");
  CLI::Option* const balance = group.add("N,N,...", "--balance", options.balance, parse_balance,
                                         "Layers of each stage, such as 5,4 [by profiling]");
  CLI::Option* const plan = group.add("FILE", "--plan", options.plan_path, parse_path,
                                      "What 'gpipe plan --out' wrote, instead of the six that it decides: --stages, "
                                      "--micro-batches, --schedule, --chunks, --recompute, --balance");
  for (CLI::Option* const decided : {stages, micro_batches, schedule, chunks, recompute, balance})
    plan->excludes(decided);
  group.add("N", "--threads-per-stage", options.threads_per_stage, cli::parse_threads,
            "Intra-op threads of a worker [1]");
  group.add("N", "--seed", options.seed, parse_index, "Of weights, order and dropout [0]");
}

void add_optimizer_options(CLI::App& command, TrainerOptions& options) {
  const OptionGroup group{command, "Optimization"};
  group.add("N", "--epochs", options.num_epochs, parse_count,
            fmt::format("Times through the data [{}]", options.num_epochs));
  group.add("N", "--steps", options.num_steps, parse_count, "Mini-batches, instead of --epochs");
  group.add("NAME", "--optimizer", options.optimizer.name, parse_optimizer,
            fmt::format("adamw, adam, sgd or rmsprop [{}]", options.optimizer.name));
  group.add("X", "--lr", options.learning_rate.peak, parse_number,
            fmt::format("Learning rate, at its peak [{}]", options.learning_rate.peak));
  group.add("NAME", "--lr-schedule", options.learning_rate.schedule, parse_learning_rate_schedule,
            fmt::format("constant, inverse-sqrt, cosine or linear [{}]", name(options.learning_rate.schedule)));
  group.add("N", "--warmup", options.warmup_steps, parse_index,
            fmt::format("Steps in which the learning rate rises [{}, or a tenth of all]",
                        options.learning_rate.warmup_steps));
  group.add("X", "--weight-decay", options.optimizer.weight_decay, parse_number,
            fmt::format("[{}]", options.optimizer.weight_decay));
  group.add("X", "--momentum", options.optimizer.momentum, parse_fraction, "Of sgd and rmsprop [0.9]");
  group.add("X", "--clip", options.clip_norm, parse_number,
            fmt::format("Largest norm of the gradient, 0 for none [{}]", options.clip_norm));
  group.add("TYPE", "--precision", options.precision, parse_precision, "float32 or bf16 (autocast) [float32]");
}

void add_file_options(CLI::App& command, TrainerOptions& options) {
  const OptionGroup group{command, "Files"};
  const auto add_file = [&](const char* name, std::string& target, const char* description, const char* type) {
    group.add(type, name, target, parse_path, description);
  };
  add_file("--weights", options.weights_path,
           "Begin with these weights (safetensors, or a checkpoint) instead of fresh ones", "FILE");
  add_file("--save", options.save_path, "Keep the weights here (safetensors)", "FILE");
  add_file("--trace", options.trace_path, "Write the last step as a trace for Perfetto", "FILE");
  add_file("--metrics", options.metrics_path, "Write a line of JSON a step", "FILE");
  add_file("--tensorboard", options.tensorboard_dir, "Write event files for TensorBoard", "DIR");
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
  if (is_there(options.checkpoint_dir) && !is_folder(options.checkpoint_dir)) {
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
                          "a plan is what 'gpipe plan --out FILE' writes");
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
      .seed(options.seed)
      .measure_memory(options.measure_memory)
      .memory_limit_bytes(options.memory_limit_bytes)
      .optimizer_slots(num_slots(options.trainer.optimizer))
      .check_loss(true)
      .on_late_rank([](const PeerError& late) { std::fputs(fmt::format("note: {}\n", late.what()).c_str(), stderr); });
}

void check_run_options(const RunOptions& options) {
  const TrainerOptions& trainer = options.trainer;
  check_checkpoint_options(trainer);
  const bool is_resumed = !checkpoint_to_resume(trainer).empty();
  if (!is_resumed && !trainer.weights_path.empty()) cli::require_input(trainer.weights_path);
  const bool may_replace = trainer.force || is_resumed;  // the files of the training that is resumed
  const std::vector<std::pair<const char*, std::string>> outputs = {
      {"--save", trainer.save_path}, {"--trace", trainer.trace_path}, {"--metrics", trainer.metrics_path}};
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    if (outputs[index].second.empty()) continue;
    for (std::size_t other = 0; other < index; ++other) {
      if (outputs[other].second.empty() || !cli::is_same_file(outputs[index].second, outputs[other].second)) continue;
      throw cli::UsageError(
          fmt::format("{} and {} both name '{}'", outputs[other].first, outputs[index].first, outputs[index].second),
          "name two files");
    }
    if (read_world().rank != 0) continue;  // the first one writes them, and may have begun to
    const auto check = index == 0 ? cli::check_replaced_file : cli::check_output_file;
    check(outputs[index].second, may_replace);
  }
}

}  // namespace gpipe::train

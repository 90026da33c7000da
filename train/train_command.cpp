#include "train/train_command.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>

#include "cli/command_line.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "models/registry.h"
#include "train/agreed_content.h"
#include "train/agreed_options.h"
#include "train/checkpoint_dir.h"
#include "train/image_task.h"
#include "train/lm_task.h"
#include "train/model_file.h"
#include "train/option_group.h"
#include "train/run_options.h"
#include "train/run_report.h"
#include "train/translate_task.h"

namespace gpipe::train {
namespace {

using cli::parse_count;
using cli::parse_index;
using cli::parse_path;

constexpr const char* kConfigHint = "--config FILE reads options from a file, JSON or TOML, by the same names.";

std::vector<std::string> parse_words(std::string_view words) { return cli::parse_list(words, parse_path); }

// "resnet18, resnet-cifar:DEPTH"
std::string usages(models::Task task) {
  std::vector<std::string> usages;
  for (const models::ModelName& name : models::model_names()) {
    if (name.task == task) usages.push_back(name.usage);
  }
  return fmt::format("{}", fmt::join(usages, ", "));
}

// Weights mean nothing without the vocabulary they were trained with. All checkpoints of a training have the same.
std::optional<data::Vocabulary> vocabulary_of(const TrainerOptions& options) {
  for (const std::string& path : options.resume ? checkpoints_in(options.checkpoint_dir) : std::vector<std::string>()) {
    try {
      return ModelFile(path).vocabulary();
    } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch) the training passes over it as well, and tells
    }
  }
  if (options.weights_path.empty()) return std::nullopt;
  return ModelFile(options.weights_path).vocabulary();
}

// The end of every task: build, train, say how it went. `data_options` are those of the command that say what to train
// on.
int train(CLI::App& command, const std::string& data_options, const RunOptions& run, Task& task) {
  check_num_ranks(run);
  PipelineOptions options = pipeline_options(run);
  if (read_world().size > 1) {
    for (const std::string& text : agreed_options(command)) options.agree_on(text);
    options.agree_on(agreed_training_data(data_options, task)).agree_on(agreed_test_data(data_options, task));
  }
  const Pipeline pipeline(task.chain(), options);
  const bool reports = read_world().rank == 0;  // of the processes that train together
  if (reports) cli::print(describe_start(pipeline, task));
  const TrainingResult result = run_training(pipeline, task, run.trainer);
  if (reports) cli::print(describe_end(result, pipeline, task, run.trainer));
  switch (result.ending) {
    case Ending::kDone:
      return cli::kDone;
    case Ending::kInterrupted:
      return 128 + SIGINT;
    case Ending::kPreempted:  // nothing is lost if it was saved
      return result.checkpoint.empty() ? 128 + SIGTERM : cli::kDone;
    case Ending::kNotFinite:
      cli::flush_output();
      if (reports) {
        cli::print_error(fmt::format("the loss or its gradient is not finite at step {}", result.num_steps + 1),
                         "try a smaller --lr, a longer --warmup or --clip 1");
      }
      return cli::kNegativeAnswer;
  }
  return cli::kDone;
}

struct ImageCommand {
  RunOptions run;
  ImageTaskOptions task;
};

void add_image_command(CLI::App& train_command, cli::Run& chosen) {
  auto options = std::make_shared<ImageCommand>();
  options->run.trainer.learning_rate = {LearningRateSchedule::kCosine, 3e-3, 50, 0, 0};
  options->run.num_micro_batches = 4;
  options->run.trainer.optimizer.weight_decay = 0.01;
  options->run.trainer.clip_norm = 1;
  CLI::App& command = *train_command.add_subcommand("image");
  ImageTaskOptions& task = options->task;
  const OptionGroup group{command, "Task"};
  group.add("MODEL", "--model", task.model, parse_path,
            fmt::format("{} [{}]", usages(models::Task::kImage), task.model));
  group.add("NAME", "--data", task.data, parse_path, "fashion-mnist or cifar10 [fashion-mnist]");
  group.add("DIR", "--data-dir", task.data_dir, parse_path, "Where it is [where gpipe get-data puts it]");
  group.add("N", "--batch-size", task.batch_size, parse_count,
            fmt::format("Images in a mini-batch [{}]", task.batch_size));
  group.add("N", "--samples", task.num_training, parse_count, "Train on so many images only");
  group.add_flag("--augment", task.augment, "Random crops and mirror images");
  group.add("X", "--label-smoothing", task.label_smoothing, parse_fraction, "[0]");
  add_run_options(command, options->run);
  cli::set_help(command, {"gpipe train image [options]", "Image classification", kConfigHint,
                          "  gpipe train image --stages 2 --epochs 1\n"
                          "  gpipe train image --model resnet-cifar:20 --data cifar10 --augment --epochs 10"});
  command.callback([&chosen, &command, options] {
    chosen = [&command, options] {
      take_from_launcher(options->run);
      check_run_options(options->run);
      read_plan(options->run);
      options->task.seed = options->run.seed;
      const int num_replicas = read_world().num_replicas;
      const std::int64_t num_micro_batches = std::int64_t{options->run.num_micro_batches} * num_replicas;
      const std::string in_replicas = num_replicas > 1 ? fmt::format(" in {} replicas", num_replicas) : "";
      if (options->task.batch_size < 2 * num_micro_batches) {
        throw cli::UsageError(
            fmt::format("--batch-size {} makes micro-batches of one image for --micro-batches {}{}",
                        options->task.batch_size, options->run.num_micro_batches, in_replicas),
            "batch norm needs at least two images each: raise --batch-size, or lower --micro-batches");
      }
      if (options->task.num_training != 0 && options->task.num_training < 2 * num_micro_batches) {
        throw cli::UsageError(fmt::format("--samples {} makes micro-batches of one image for --micro-batches {}{}",
                                          options->task.num_training, options->run.num_micro_batches, in_replicas),
                              "batch norm needs at least two images each: raise --samples, or lower --micro-batches");
      }
      ImageTask image(options->task, /*only_test=*/false);
      return train(command, "--data, --data-dir", options->run, image);
    };
  });
}

struct LmCommand {
  RunOptions run;
  LmTaskOptions task;
};

void add_lm_command(CLI::App& train_command, cli::Run& chosen) {
  auto options = std::make_shared<LmCommand>();
  options->run.trainer.learning_rate = {LearningRateSchedule::kCosine, 1e-3, 100, 0, 0.1};
  options->run.trainer.optimizer.weight_decay = 0.01;
  options->run.trainer.clip_norm = 1;
  CLI::App& command = *train_command.add_subcommand("lm");
  LmTaskOptions& task = options->task;
  const OptionGroup group{command, "Task"};
  group.add("MODEL", "--model", task.model, parse_path,
            fmt::format("{} [{}]", usages(models::Task::kLanguage), task.model));
  group.add("NAME", "--data", task.data, parse_path, "kjv or gcide [kjv]");
  group.add("DIR", "--data-dir", task.data_dir, parse_path, "Where it is [where gpipe get-data puts it]");
  group.add("FILE,...", "--text", task.text_files, parse_words, "Your own text instead, plain or gzip");
  group.add("N", "--vocabulary", task.vocabulary_size, cli::parse_count_to<data::kMaxVocabularySize>,
            fmt::format("Sub-words [{}]", task.vocabulary_size));
  group.add("N", "--sequence-length", task.sequence_length, parse_count,
            fmt::format("Tokens [{}]", task.sequence_length));
  group.add("N", "--batch-size", task.batch_size, parse_count,
            fmt::format("Sequences in a mini-batch [{}]", task.batch_size));
  group.add("X", "--dropout", task.dropout, parse_fraction, fmt::format("[{}]", task.dropout));
  group.add("X", "--label-smoothing", task.label_smoothing, parse_fraction, "[0]");
  add_run_options(command, options->run);
  cli::set_help(command, {"gpipe train lm [options]", "Language modelling", kConfigHint,
                          "  gpipe train lm --stages 2 --micro-batches 8 --steps 500 --save kjv.safetensors\n"
                          "  gpipe generate --weights kjv.safetensors --prompt \"In the beginning\""});
  command.callback([&chosen, &command, options] {
    chosen = [&command, options] {
      take_from_launcher(options->run);
      check_run_options(options->run);
      read_plan(options->run);
      options->task.seed = options->run.seed;
      LmTask lm(options->task, vocabulary_of(options->run.trainer));
      return train(command, lm_data_options(options->task), options->run, lm);
    };
  });
}

struct TranslateCommand {
  RunOptions run;
  TranslateTaskOptions task;
};

void add_translate_command(CLI::App& train_command, cli::Run& chosen) {
  auto options = std::make_shared<TranslateCommand>();
  options->run.trainer.learning_rate = {LearningRateSchedule::kInverseSqrt, 2e-3, 400, 0, 0};
  options->run.trainer.optimizer.name = "adam";
  options->run.trainer.optimizer.beta2 = 0.98;
  options->run.trainer.clip_norm = 1;
  CLI::App& command = *train_command.add_subcommand("translate");
  TranslateTaskOptions& task = options->task;
  const OptionGroup group{command, "Task"};
  group.add("MODEL", "--model", task.model, parse_path,
            fmt::format("t:L,H,A,d: L layers, feed-forward width H, A heads, width d [{}]", task.model));
  group.add("LANG,...", "--languages", task.languages, parse_words, "Such as de,fr,hi [all that are there]");
  group.add("DIR", "--data-dir", task.data_dir, parse_path, "Of libreoffice-help [where gpipe get-data puts it]");
  group.add("N", "--vocabulary", task.vocabulary_size, cli::parse_count_to<data::kMaxVocabularySize>,
            fmt::format("Sub-words [{}]", task.vocabulary_size));
  group.add("N", "--max-tokens", task.max_tokens, parse_count,
            fmt::format("Tokens in a mini-batch, with padding [{}]", task.max_tokens));
  group.add("N", "--max-length", task.max_length, parse_count,
            fmt::format("Longest sentence in tokens [{}]", task.max_length));
  group.add("N", "--samples", task.num_training, parse_count, "Train on so many pairs a language only");
  group.add("N", "--test-samples", task.num_test, parse_count,
            "Translate so many test sentences a language for BLEU [all]");
  group.add("N", "--beam", task.beam_size, parse_beam, fmt::format("For BLEU [{}]", task.beam_size));
  group.add("X", "--dropout", task.dropout, parse_fraction, fmt::format("[{}]", task.dropout));
  group.add("X", "--label-smoothing", task.label_smoothing, parse_fraction, fmt::format("[{}]", task.label_smoothing));
  group.add_flag("--scale-init", task.scale_init, "Feed-forward layers begin smaller by the number of layers");
  group.add("X", "--clip-logits", task.clip_logits, cli::parse_number, "Largest logit, 0 for none [0]");
  add_run_options(command, options->run);
  cli::set_help(command,
                {"gpipe train translate [options]", "Translation of several languages into English", kConfigHint,
                 "  gpipe train translate --languages de,fr,hi --stages 2 --micro-batches 8 --save t.safetensors\n"
                 "  echo 'Wählen Sie eine Datei.' | gpipe translate --weights t.safetensors"});
  command.callback([&chosen, &command, options] {
    chosen = [&command, options] {
      take_from_launcher(options->run);
      check_run_options(options->run);
      read_plan(options->run);
      options->task.seed = options->run.seed;
      options->task.size_multiple = std::int64_t{options->run.num_micro_batches} * read_world().num_replicas;
      options->task.drop_last = read_world().num_replicas > 1;  // what is left over may not be enough for all
      TranslateTask translation(options->task, vocabulary_of(options->run.trainer));
      return train(command, "--languages, --data-dir", options->run, translation);
    };
  });
}

}  // namespace

void add_train_command(CLI::App& app, cli::Run& chosen) {
  CLI::App& command = *app.add_subcommand("train");
  command.require_subcommand(0, 1);
  add_image_command(command, chosen);
  add_lm_command(command, chosen);
  add_translate_command(command, chosen);
  cli::set_help(
      command,
      {"gpipe train TASK [options]", "Train a model on real data, in stages",
       "'gpipe train TASK --help' lists the options of a task. Ctrl-C ends the step, prints the summary and keeps "
       "the weights; with --checkpoint-dir, --resume goes on from there.",
       "  gpipe train image --stages 2 --epochs 1"});
}

}  // namespace gpipe::train

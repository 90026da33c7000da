#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cli/command_line.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "models/registry.h"
#include "train/agreed_options.h"
#include "train/checkpoint_dir.h"
#include "train/commands.h"
#include "train/image_task.h"
#include "train/lm_task.h"
#include "train/model_file.h"
#include "train/option_group.h"
#include "train/run_options.h"
#include "train/run_report.h"
#include "train/tensor_task.h"
#include "train/translate_task.h"

namespace gpipe::train {
namespace {

using cli::parse_count;
using cli::parse_path;

constexpr const char* kConfigHint = "--config FILE reads options from a file, JSON or TOML, by the same names.";
constexpr auto parse_vocabulary = cli::parse_count_to<data::kMaxVocabularySize>;

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

int exit_code_of(const TrainingResult& result) {
  switch (result.ending) {
    case Ending::kDone:
      break;
    case Ending::kInterrupted:
      return 128 + SIGINT;
    case Ending::kPreempted:  // nothing is lost if it was saved
      return result.checkpoint.empty() ? 128 + SIGTERM : cli::kDone;
    case Ending::kNotFinite:
      return cli::kNegativeAnswer;
  }
  return cli::kDone;
}

// Build, train, say how it went. `data_options` are those of the command that say what to train on.
int train(CLI::App& command, const std::string& data_options, const RunOptions& run, Task& task) {
  check_num_ranks(run);
  PipelineOptions options = pipeline_options(run);
  if (read_world().size > 1) {
    for (const std::string& text : agreed_options(command)) options.agree_on(text);
    for (const std::string& text : task.agreed_texts()) options.agree_on(text);
    options.agree_on(agreed_training_data(data_options, task)).agree_on(agreed_test_data(data_options, task));
  }
  const Pipeline pipeline(task.chain(), options);
  const bool reports = read_world().rank == 0;  // of the processes that train together
  if (reports) cli::print(describe_start(pipeline, task));
  const TrainingResult result = run_training(pipeline, task, run.trainer);
  if (reports) {
    cli::print(describe_end(result, pipeline, task, run.trainer));
    cli::print(describe_advice(result, pipeline, run));
  }
  if (reports && result.ending == Ending::kNotFinite) {
    cli::flush_output();
    cli::print_error(fmt::format("the loss or its gradient is not finite at step {}", result.num_steps + 1),
                     "try a smaller --lr, a longer --warmup or --clip 1");
  }
  return exit_code_of(result);
}

// A command that is being added, with the options that its task is made of.
template <typename TaskOptions>
struct TaskCommand {
  TaskCommand(CLI::App& train_command, const char* name) : app(*train_command.add_subcommand(name)) {}

  CLI::App& app;
  OptionGroup group{app, "Task"};
  RunOptions run;
  TaskOptions task;
  std::string data_options = "--data, --data-dir";

  // The end of every command: its help, and that `make` gives the task, once the options are read and checked.
  static void complete(const std::shared_ptr<TaskCommand>& command, cli::Run& chosen, const cli::Help& help,
                       const std::function<std::unique_ptr<Task>(TaskCommand&)>& make) {
    add_run_options(command->app, command->run);
    cli::set_help(command->app, help);
    command->app.callback([&chosen, command, make] {
      chosen = [command, make] {
        take_from_launcher(command->run);
        check_run_options(command->run);
        read_plan(command->run);
        command->task.seed = command->run.seed;
        const std::unique_ptr<Task> task = make(*command);
        return train(command->app, command->data_options, command->run, *task);
      };
    });
  }
};

// Throws UsageError if `option` gives fewer samples than two a micro-batch.
void check_samples(const char* option, std::int64_t num_samples, const RunOptions& run) {
  const int num_replicas = read_world().num_replicas;
  if (num_samples >= std::int64_t{2} * run.num_micro_batches * num_replicas) return;
  throw cli::UsageError(
      fmt::format("{} {} makes micro-batches of one image for --micro-batches {}{}", option, num_samples,
                  run.num_micro_batches, num_replicas > 1 ? fmt::format(" in {} replicas", num_replicas) : ""),
      fmt::format("batch norm needs at least two images each: raise {}, or lower --micro-batches", option));
}

// Of the mini-batch of a replica; `num_samples` is that of the data, if it is limited.
std::int64_t num_rows(std::int64_t batch_size, std::int64_t num_samples = 0) {
  return (num_samples != 0 ? std::min(batch_size, num_samples) : batch_size) / read_world().num_replicas;
}

// Of a task's options. Returns that of the file.
template <typename TaskOptions>
CLI::Option* add_script(const OptionGroup& group, TaskOptions& task, const char* description) {
  CLI::Option* const script = group.add("FILE", "--torchscript", task.torchscript, parse_path, description);
  group.add_flag("--deferred-batch-norm", task.deferred_batch_norm,
                 "Batch norms of the TorchScript file move their statistics once a mini-batch, over all replicas");
  return script;
}

void add_image_task(CLI::App& train_command, cli::Run& chosen) {
  using Command = TaskCommand<ImageTaskOptions>;
  const auto command = std::make_shared<Command>(train_command, "image");
  TrainerOptions& trainer = command->run.trainer;
  trainer.learning_rate = {LearningRateSchedule::kCosine, 3e-3, 50, 0, 0};
  trainer.optimizer.weight_decay = 0.01;
  trainer.clip_norm = 1;
  command->run.num_micro_batches = 4;
  ImageTaskOptions& task = command->task;
  const OptionGroup& group = command->group;
  CLI::Option* const model =
      group.add_default("MODEL", "--model", task.model, parse_path, usages(models::Task::kImage));
  add_script(group, task, "A TorchScript file instead, which takes images and gives a score for each class")
      ->excludes(model);
  group.add_default("NAME", "--data", task.data, parse_path, "fashion-mnist or cifar10");
  group.add("DIR", "--data-dir", task.data_dir, parse_path, "Where it is [where gpipe get-data puts it]");
  group.add_default("N", "--batch-size", task.batch_size, parse_count, "Images in a mini-batch");
  group.add("N", "--samples", task.num_training, parse_count, "Train on so many images only");
  group.add_flag("--augment", task.augment, "Random crops and mirror images");
  group.add_default("X", "--label-smoothing", task.label_smoothing, parse_fraction, "");
  Command::complete(command, chosen,
                    {"gpipe train image [options]", "Image classification", kConfigHint,
                     "  gpipe train image --stages 2 --epochs 1\n"
                     "  gpipe train image --model resnet-cifar:20 --data cifar10 --augment --epochs 10\n"
                     "  gpipe train image --torchscript resnet18.pt --data cifar10 --save trained.safetensors"},
                    [](Command& made) {
                      check_samples("--batch-size", made.task.batch_size, made.run);
                      if (made.task.num_training != 0) check_samples("--samples", made.task.num_training, made.run);
                      const std::int64_t rows = num_rows(made.task.batch_size, made.task.num_training);
                      made.run.batches = {rows, rows / 2, "--batch-size", made.task.augment ? "--augment" : ""};
                      return std::make_unique<ImageTask>(made.task, /*only_test=*/false);
                    });
}

void add_lm_task(CLI::App& train_command, cli::Run& chosen) {
  using Command = TaskCommand<LmTaskOptions>;
  const auto command = std::make_shared<Command>(train_command, "lm");
  TrainerOptions& trainer = command->run.trainer;
  trainer.learning_rate = {LearningRateSchedule::kCosine, 1e-3, 100, 0, 0.1};
  trainer.optimizer.weight_decay = 0.01;
  trainer.clip_norm = 1;
  LmTaskOptions& task = command->task;
  const OptionGroup& group = command->group;
  CLI::Option* const model =
      group.add_default("MODEL", "--model", task.model, parse_path, usages(models::Task::kLanguage));
  CLI::Option* const script =
      add_script(group, task, "A TorchScript file instead, which takes tokens and gives scores of the next")
          ->excludes(model);
  group.add_default("NAME", "--data", task.data, parse_path, "kjv or gcide");
  group.add("DIR", "--data-dir", task.data_dir, parse_path, "Where it is [where gpipe get-data puts it]");
  group.add("FILE,...", "--text", task.text_files, parse_paths, "Your own text instead, plain or gzip");
  group.add_default("N", "--vocabulary", task.vocabulary_size, parse_vocabulary, "Sub-words");
  group.add_default("N", "--sequence-length", task.sequence_length, parse_count, "Tokens");
  group.add_default("N", "--batch-size", task.batch_size, parse_count, "Sequences in a mini-batch");
  group.add_default("X", "--dropout", task.dropout, parse_fraction, "")->excludes(script);
  group.add_default("X", "--label-smoothing", task.label_smoothing, parse_fraction, "");
  Command::complete(command, chosen,
                    {"gpipe train lm [options]", "Language modelling", kConfigHint,
                     "  gpipe train lm --stages 2 --micro-batches 8 --steps 500 --save kjv.safetensors\n"
                     "  gpipe generate --weights kjv.safetensors --prompt \"In the beginning\""},
                    [](Command& made) {
                      if (!made.task.text_files.empty()) made.data_options = "--text";
                      const std::int64_t rows = num_rows(made.task.batch_size);
                      made.run.batches = {rows, rows, "--batch-size", ""};
                      return std::make_unique<LmTask>(made.task, vocabulary_of(made.run.trainer));
                    });
}

void add_translate_task(CLI::App& train_command, cli::Run& chosen) {
  using Command = TaskCommand<TranslateTaskOptions>;
  const auto command = std::make_shared<Command>(train_command, "translate");
  TrainerOptions& trainer = command->run.trainer;
  trainer.learning_rate = {LearningRateSchedule::kInverseSqrt, 2e-3, 400, 0, 0};
  trainer.optimizer.name = "adam";
  trainer.optimizer.beta2 = 0.98;
  trainer.clip_norm = 1;
  command->data_options = "--languages, --data-dir";
  TranslateTaskOptions& task = command->task;
  const OptionGroup& group = command->group;
  group.add_default("MODEL", "--model", task.model, parse_path,
                    "t:L,H,A,d: L layers, feed-forward width H, A heads, width d");
  group.add("LANG,...", "--languages", task.languages, parse_paths, "Such as de,fr,hi [all that are there]");
  group.add("DIR", "--data-dir", task.data_dir, parse_path, "Of libreoffice-help [where gpipe get-data puts it]");
  group.add_default("N", "--vocabulary", task.vocabulary_size, parse_vocabulary, "Sub-words");
  group.add_default("N", "--max-tokens", task.max_tokens, parse_count, "Tokens in a mini-batch, with padding");
  group.add_default("N", "--max-length", task.max_length, parse_count, "Longest sentence in tokens");
  group.add("N", "--samples", task.num_training, parse_count, "Train on so many pairs a language only");
  group.add("N", "--test-samples", task.num_test, parse_count,
            "Translate so many test sentences a language for BLEU [all]");
  group.add_default("N", "--beam", task.beam_size, parse_beam, "For BLEU");
  group.add_default("X", "--dropout", task.dropout, parse_fraction, "");
  group.add_default("X", "--label-smoothing", task.label_smoothing, parse_fraction, "");
  group.add_flag("--scale-init", task.scale_init, "Feed-forward layers begin smaller by the number of layers");
  group.add_default("X", "--clip-logits", task.clip_logits, cli::parse_number, "Largest logit, 0 for none");
  Command::complete(command, chosen,
                    {"gpipe train translate [options]", "Translation of several languages into English", kConfigHint,
                     "  gpipe train translate --languages de,fr,hi --stages 2 --micro-batches 8 --save t.safetensors\n"
                     "  echo 'Wählen Sie eine Datei.' | gpipe translate --weights t.safetensors"},
                    [](Command& made) {
                      made.task.size_multiple = std::int64_t{made.run.num_micro_batches} * read_world().num_replicas;
                      made.task.drop_last =
                          read_world().num_replicas > 1;  // what is left over may not be enough for all
                      const std::int64_t most = made.task.max_tokens / made.task.max_length / read_world().num_replicas;
                      made.run.batches = {0, most, "--max-tokens", ""};
                      return std::make_unique<TranslateTask>(made.task, vocabulary_of(made.run.trainer));
                    });
}

void add_tensors_task(CLI::App& train_command, cli::Run& chosen) {
  using Command = TaskCommand<TensorTaskOptions>;
  const auto command = std::make_shared<Command>(train_command, "tensors");
  TrainerOptions& trainer = command->run.trainer;
  trainer.learning_rate = {LearningRateSchedule::kCosine, 1e-3, 100, 0, 0};
  trainer.optimizer.weight_decay = 0.01;
  trainer.clip_norm = 1;
  command->data_options = "--inputs, --targets";
  TensorTaskOptions& task = command->task;
  const OptionGroup& group = command->group;
  add_script(group, task, "The model: a TorchScript file")->required();
  group
      .add("FILE", "--inputs", task.inputs, parse_path,
           "What it is given (safetensors), by the names of forward's arguments; the first dimension is the sample")
      ->required();
  group.add("FILE", "--targets", task.targets, parse_path, "What the loss compares its output with (safetensors)")
      ->required();
  CLI::Option* const test_inputs =
      group.add("FILE", "--test-inputs", task.test_inputs, parse_path, "To evaluate on [no evaluation]");
  CLI::Option* const test_targets = group.add("FILE", "--test-targets", task.test_targets, parse_path, "Of them");
  test_inputs->needs(test_targets);
  test_targets->needs(test_inputs);
  group.add_default("NAME", "--loss", task.loss, parse_tensor_loss, "Of the first output: cross-entropy or mse");
  group.add_default("N", "--batch-size", task.batch_size, parse_count, "Samples in a mini-batch");
  Command::complete(command, chosen,
                    {"gpipe train tensors --torchscript FILE --inputs FILE --targets FILE [options]",
                     "Any TorchScript model on tensors from files", kConfigHint,
                     "  gpipe train tensors --torchscript model.pt --inputs in.safetensors --targets t.safetensors\n"
                     "  gpipe train tensors --torchscript model.pt --inputs x.safetensors --targets y.safetensors \\\n"
                     "    --loss mse --stages 4 --save trained.safetensors"},
                    [](Command& made) {
                      const std::int64_t rows = num_rows(made.task.batch_size);
                      made.run.batches = {rows, rows, "--batch-size", ""};
                      return std::make_unique<TensorTask>(made.task);
                    });
}

}  // namespace

void add_train_command(CLI::App& app, cli::Run& chosen) {
  CLI::App& command = *app.add_subcommand("train");
  command.require_subcommand(0, 1);
  add_image_task(command, chosen);
  add_lm_task(command, chosen);
  add_translate_task(command, chosen);
  add_tensors_task(command, chosen);
  cli::set_help(
      command,
      {"gpipe train TASK [options]", "Train a model on real data, in stages",
       "'gpipe train TASK --help' lists the options of a task. Ctrl-C ends the step, prints the summary and keeps "
       "the weights; with --checkpoint-dir, --resume goes on from there.",
       "  gpipe train image --stages 2 --epochs 1"});
}

}  // namespace gpipe::train

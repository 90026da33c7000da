#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "train/agreed_options.h"
#include "train/commands.h"
#include "train/image_task.h"
#include "train/lm_task.h"
#include "train/model_file.h"
#include "train/option_group.h"
#include "train/progress.h"
#include "train/run_options.h"
#include "train/tensor_task.h"
#include "train/translate_task.h"

namespace gpipe::train {
namespace {

using cli::parse_count;
using cli::parse_path;

// Not a multiple of the stages, as a pipeline has it: the last bits depend on the number of micro-batches, and the
// result is to be the same for every number of stages.
constexpr int kMicroBatches = 4;

struct EvalCommand {
  std::string task;  // empty: what the file says
  std::string weights;
  std::optional<std::string> model;
  std::string torchscript;
  std::optional<std::string> data;
  std::optional<std::string> data_dir;
  std::optional<std::vector<std::string>> text_files;
  std::optional<std::int64_t> num_test;
  std::optional<std::int64_t> beam_size;
  std::string inputs;
  std::string targets;
  std::optional<TensorLoss> loss;
  int num_stages = 1;
  int num_micro_batches = kMicroBatches;
};

std::string task_of(const ModelFile& file, const EvalCommand& command) {
  if (command.task.empty()) {
    if (const std::string* task = file.find("gpipe.task")) return *task;
    throw cli::UsageError(fmt::format("{} does not say what it was trained for", file.path()),
                          "name the task, the model and the data, such as gpipe eval image --model resnet20 "
                          "--data cifar10 --weights FILE");
  }
  if (file.find("gpipe.task") != nullptr) file.require_task(command.task, "eval " + command.task);
  return command.task;
}

void refuse_if(bool is_given, const char* option, const std::string& task) {
  if (!is_given) return;
  throw cli::UsageError(fmt::format("{} means nothing to a model of 'gpipe train {}'", option, task),
                        fmt::format("leave it out; 'gpipe eval {} --help' lists the options", task));
}

// What the bare form takes for another task's sake is refused, not ignored.
void check_options(const EvalCommand& command, const std::string& task) {
  refuse_if(command.text_files && task != "lm", "--text", task);
  refuse_if(command.num_test && task != "translate", "--test-samples", task);
  refuse_if(command.beam_size && task != "translate", "--beam", task);
  refuse_if(!command.torchscript.empty() && task == "translate", "--torchscript", task);
  refuse_if(!command.inputs.empty() && task != "tensors", "--inputs", task);
  refuse_if(!command.targets.empty() && task != "tensors", "--targets", task);
  refuse_if(command.loss && task != "tensors", "--loss", task);
  refuse_if(command.data_dir && task == "tensors", "--data-dir", task);
  for (const auto& [is_given, option] : {std::make_pair(command.data.has_value(), "--data"),
                                         std::make_pair(command.data_dir.has_value(), "--data-dir")}) {
    if (!command.text_files || !is_given) continue;
    throw cli::UsageError(fmt::format("--text and {} both say what to read", option), "leave out one of them");
  }
}

// What the command line says, else the file.
std::unique_ptr<Task> make_image_task(const ModelFile& file, const EvalCommand& command) {
  std::vector<std::string> missing;
  const auto said = [&](const std::optional<std::string>& given, const std::string& what) -> std::string {
    if (given) return *given;
    if (const std::string* found = file.find("gpipe." + what)) return *found;
    missing.push_back(what);
    return "";
  };
  ImageTaskOptions options;
  options.torchscript = command.torchscript;
  if (options.torchscript.empty()) options.model = said(command.model, "model");
  options.data = said(command.data, "data");
  options.data_dir = command.data_dir.value_or("");
  if (!missing.empty()) {
    throw cli::UsageError(fmt::format("{} does not say its {}", file.path(), fmt::join(missing, ", nor its ")),
                          fmt::format("add --{} NAME", fmt::join(missing, " NAME --")));
  }
  return std::make_unique<ImageTask>(options, /*only_test=*/true);
}

std::unique_ptr<Task> make_lm_task(const ModelFile& file, const EvalCommand& command) {
  LmTaskOptions options;
  options.torchscript = command.torchscript;
  options.model = file.text("gpipe.model");
  options.data = command.data.value_or(file.text("gpipe.data"));
  options.data_dir = command.data_dir.value_or("");
  options.sequence_length = file.number("gpipe.sequence_length", 1, kMaxLength);
  options.text_files = command.text_files.value_or(std::vector<std::string>());
  if (options.data == kOwnText && options.text_files.empty()) {
    throw CheckpointError(fmt::format("{} was trained on a text of your own; name it with --text", file.path()));
  }
  return std::make_unique<LmTask>(options, file.vocabulary(), /*only_test=*/true);
}

std::unique_ptr<Task> make_translate_task(const ModelFile& file, const EvalCommand& command) {
  TranslateTaskOptions options;
  options.model = file.text("gpipe.model");
  options.data_dir = command.data_dir.value_or("");
  options.languages = parse_paths(file.text("gpipe.languages"));
  options.max_length = file.number("gpipe.max_length", 2, kMaxLength);
  options.num_test = command.num_test.value_or(options.num_test);
  options.beam_size = command.beam_size.value_or(options.beam_size);
  options.clip_logits = file.real("gpipe.clip_logits");
  return std::make_unique<TranslateTask>(options, file.vocabulary(), /*only_test=*/true);
}

std::unique_ptr<Task> make_tensor_task(const ModelFile& file, const EvalCommand& command) {
  TensorTaskOptions options;
  options.torchscript = command.torchscript;
  options.test_inputs = command.inputs;
  options.test_targets = command.targets;
  for (const auto& [path, option] :
       {std::make_pair(&options.torchscript, "--torchscript"), std::make_pair(&options.test_inputs, "--inputs"),
        std::make_pair(&options.test_targets, "--targets")}) {
    if (!path->empty()) continue;
    throw cli::UsageError(fmt::format("which {}? {} is missing", option + 2, option),
                          fmt::format("add {} FILE", option));
  }
  if (command.loss) {
    options.loss = *command.loss;
  } else if (const std::string* loss = file.find("gpipe.loss")) {
    options.loss = parse_tensor_loss(*loss);
  }
  return std::make_unique<TensorTask>(options);
}

std::unique_ptr<Task> make_task(const ModelFile& file, const EvalCommand& command) {
  const std::string task = task_of(file, command);
  check_options(command, task);
  file.require_script(command.torchscript);
  if (task == "image") return make_image_task(file, command);
  if (task == "lm") return make_lm_task(file, command);
  if (task == "translate") return make_translate_task(file, command);
  if (task == "tensors") return make_tensor_task(file, command);
  throw CheckpointError(fmt::format("{} was trained for the unknown task \"{}\"", file.path(), task));
}

// What ranks that evaluate together have to agree on.
void add_agreed_texts(CLI::App& app, const ModelFile& file, const Task& task, PipelineOptions& options) {
  if (read_world().size == 1) return;
  const std::vector<CLI::App*> named = app.get_subcommands();
  for (const std::string& text : agreed_options(named.empty() ? app : *named.front())) options.agree_on(text);
  options.agree_on(agreed_weights(file.content()));
  for (const std::string& text : task.agreed_texts()) options.agree_on(text);
  options.agree_on(agreed_test_data("--data, --data-dir, --text, --inputs, --targets", task));
}

int eval(CLI::App& app, const EvalCommand& command) {
  if (command.weights.empty()) throw cli::UsageError("which model? --weights is missing", "add --weights FILE");
  const ModelFile file(command.weights);
  const std::unique_ptr<Task> task = make_task(file, command);
  const LayerChain chain = task->chain();
  file.check_size(chain);
  PipelineOptions options(command.num_stages);
  options.num_micro_batches(command.num_micro_batches);
  add_agreed_texts(app, file, *task, options);
  Pipeline pipeline(chain, options);
  load_weights(file.content(), file.path(), *pipeline);
  pipeline->eval();
  const torch::NoGradGuard no_grad;
  // Beside the result, which is on standard output.
  ProgressReporter progress = make_progress_reporter(STDERR_FILENO);
  progress.begin(clock_seconds());
  EvaluationReporter evaluation(progress);
  const auto goes_on = [&](const Evaluated& evaluated) {
    evaluation.update(evaluated, clock_seconds());
    return true;
  };
  const std::vector<Measure> measures = task->evaluate(pipeline, /*is_last=*/true, goes_on);
  progress.clear();
  for (const Measure& measure : measures) {
    cli::print(fmt::format("{}: {}\n", measure.name, measure.text));
  }
  return cli::kDone;
}

constexpr const char* kText = "The text to read, plain or gzip, for one that was trained on your own";

void add_common_options(const OptionGroup& group, EvalCommand& options) {
  group.add("FILE", "--weights", options.weights, parse_path, "A model in safetensors form, or a checkpoint");
  group.add("DIR", "--data-dir", options.data_dir, parse_path, "Where the data is [where gpipe get-data puts it]");
  group.add_default("K", "--stages", options.num_stages, parse_count, "Workers, one thread each");
  group.add_default("M", "--micro-batches", options.num_micro_batches, parse_micro_batches, "Slices of a mini-batch");
}

CLI::Option* add_script(const OptionGroup& group, EvalCommand& options) {
  return group.add("FILE", "--torchscript", options.torchscript, parse_path,
                   "The TorchScript file that the weights are of");
}

void add_tensor_options(const OptionGroup& group, EvalCommand& options) {
  group.add("FILE", "--inputs", options.inputs, parse_path, "What the model is given (safetensors)");
  group.add("FILE", "--targets", options.targets, parse_path, "What its output is compared with (safetensors)");
  group.add("NAME", "--loss", options.loss, parse_tensor_loss, "cross-entropy or mse [what the file says]");
}

void add_translate_options(const OptionGroup& group, EvalCommand& options) {
  group.add("N", "--test-samples", options.num_test, parse_count,
            "Translate so many test sentences a language for BLEU [all]");
  group.add("N", "--beam", options.beam_size, parse_beam, "For BLEU [4]");
}

// The command for one task; it shares the options with the bare form.
OptionGroup add_task(CLI::App& command, const char* task, EvalCommand& options) {
  CLI::App& added = *command.add_subcommand(task);
  added.callback([task, &options] { options.task = task; });
  const OptionGroup group{added, "Options"};
  add_common_options(group, options);
  return group;
}

void add_tasks(CLI::App& command, EvalCommand& options) {
  const OptionGroup image = add_task(command, "image", options);
  CLI::Option* const model =
      image.add("MODEL", "--model", options.model, parse_path, "Such as resnet20 [what the file says]");
  add_script(image, options)->excludes(model);
  image.add("NAME", "--data", options.data, parse_path, "fashion-mnist or cifar10 [what the file says]");
  cli::set_help(image.command,
                {"gpipe eval image --weights FILE [options]", "Accuracy on the test images",
                 "The weights may come from another program, under the public names: --model and --data then say what "
                 "the file does not.",
                 "  gpipe eval image --model resnet20 --data cifar10 --weights FILE --stages 4"});

  const OptionGroup lm = add_task(command, "lm", options);
  add_script(lm, options);
  lm.add("NAME", "--data", options.data, parse_path, "kjv or gcide [what the file says]");
  lm.add("FILE,...", "--text", options.text_files, parse_paths, kText);
  cli::set_help(lm.command, {"gpipe eval lm --weights FILE [options]", "Perplexity on the held-out lines", "",
                             "  gpipe eval lm --weights kjv.safetensors --stages 2"});

  const OptionGroup translate = add_task(command, "translate", options);
  add_translate_options(translate, options);
  cli::set_help(translate.command, {"gpipe eval translate --weights FILE [options]", "BLEU on the test sentences", "",
                                    "  gpipe eval translate --weights t.safetensors --test-samples 100"});

  const OptionGroup tensors = add_task(command, "tensors", options);
  add_script(tensors, options);
  add_tensor_options(tensors, options);
  cli::set_help(tensors.command,
                {"gpipe eval tensors --weights FILE --torchscript FILE --inputs FILE --targets FILE [options]",
                 "Loss, and accuracy, of a TorchScript model on tensors from files",
                 "The weights may come from Python, under the names of the module's state_dict.",
                 "  gpipe eval tensors --weights trained.safetensors --torchscript model.pt \\\n"
                 "    --inputs in.safetensors --targets t.safetensors"});
}

}  // namespace

void add_eval_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<EvalCommand>();
  CLI::App& command = *app.add_subcommand("eval");
  command.require_subcommand(0, 1);
  add_tasks(command, *options);
  const OptionGroup group{command, "Options"};
  add_common_options(group, *options);
  group.add("FILE,...", "--text", options->text_files, parse_paths, kText);
  add_translate_options(group, *options);
  add_script(group, *options);
  add_tensor_options(group, *options);
  cli::set_help(command, {"gpipe eval [TASK] --weights FILE [options]", "Measure a trained model on its test data",
                          "What gpipe train --save has written says its task, its model and its data. For other files, "
                          "name them: 'gpipe eval TASK --help'.",
                          "  gpipe eval --weights fashion.safetensors\n"
                          "  gpipe eval image --model resnet20 --data cifar10 --weights FILE --stages 4"});
  // Runs after that of a task.
  command.callback([&chosen, &command, options] { chosen = [&command, options] { return eval(command, *options); }; });
}

}  // namespace gpipe::train

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "gpipe/gpipe.h"
#include "models/registry.h"
#include "train/commands.h"
#include "train/lm_task.h"
#include "train/made_up_data.h"
#include "train/option_group.h"
#include "train/script_sample.h"
#include "train/translate_task.h"

namespace gpipe::train {
namespace {

// Beyond them a size is a slip of the finger: no machine has the memory.
constexpr int kMostIds = 1'000'000;
constexpr auto parse_size = cli::parse_count_to<65536>;

struct ProfileCommand {
  std::string model;
  ScriptSampleOptions script;  // with what is said about images and text of models by name, too
  int num_samples = 8;
  int num_classes = 10;
  ProfileOptions profile;
  bool no_fixed = false;
  int num_threads = 1;
  bool on_paper = false;
  std::optional<double> flops_per_second;
  std::string out;
  bool force = false;
  bool json = false;
};

std::string parse_word(std::string_view word) { return std::string(word); }

// What is run: a chain, the inputs of a micro-batch and the loss of its outputs.
struct Subject {
  LayerChain chain;
  Tensors inputs;
  std::function<at::Tensor(const Tensors&)> loss;
};

Subject make_script_subject(const ProfileCommand& command) {
  const at::Device device = command.on_paper ? at::kMeta : at::kCPU;
  const auto sample = std::make_shared<ScriptSample>(command.script);
  const int rows = command.num_samples;
  return {sample->chain(), sample->inputs(rows, device),
          [sample, targets = sample->targets(rows, device)](const Tensors& outputs) {
            return sample->loss(outputs, targets);
          }};
}

Subject make_subject(const ProfileCommand& command) {
  if (!command.script.torchscript.empty()) return make_script_subject(command);
  const at::Device device = command.on_paper ? at::kMeta : at::kCPU;
  const auto token_loss = [](const at::Tensor& target) {
    return [target](const Tensors& outputs) {
      return torch::nn::functional::cross_entropy(outputs.front().flatten(0, 1), target.flatten());
    };
  };
  const std::int64_t rows = command.num_samples;
  const std::int64_t length = command.script.sequence_length.value_or(kSequenceLength);
  switch (models::task_of(command.model)) {
    case models::Task::kLanguage: {
      const std::int64_t vocabulary = command.script.vocabulary_size.value_or(LmTaskOptions().vocabulary_size);
      models::TransformerLmOptions options = models::language_model_options(command.model, vocabulary);
      const at::Tensor tokens = made_up_ids(vocabulary, {rows, length}, device);
      return {models::transformer_lm(options.max_length(length)), {tokens}, token_loss(tokens)};
    }
    case models::Task::kTranslation: {
      const std::int64_t vocabulary = command.script.vocabulary_size.value_or(TranslateTaskOptions().vocabulary_size);
      auto options = models::translation_model_options(command.model, vocabulary);
      const at::Tensor source = made_up_ids(vocabulary, {rows, length}, device);
      const at::Tensor target = made_up_ids(vocabulary, {rows, length}, device);
      return {models::translation_transformer(options.max_length(length)), {source, target}, token_loss(target)};
    }
    case models::Task::kImage:
      break;
  }
  const LayerChain chain = models::make_image_model(
      command.model,
      models::ImageModelOptions().in_channels(command.script.num_channels).num_classes(command.num_classes));
  const at::Tensor images =
      made_up_images({rows, command.script.num_channels, command.script.image_size, command.script.image_size}, device);
  const at::Tensor target = made_up_ids(command.num_classes, {rows}, device);
  return {chain, {images}, [target](const Tensors& outputs) {
            return torch::nn::functional::cross_entropy(outputs.front(), target);
          }};
}

std::string to_text(const Profile& profile) {
  double largest = 0;
  for (const LayerProfile& layer : profile.layers) largest = std::max(largest, layer.backward_seconds);
  const cli::TimeUnit unit = cli::time_unit(largest);
  const auto time = [&](double seconds) { return cli::format_seconds(seconds, unit); };
  std::vector<std::vector<std::string>> rows;
  LayerProfile sum;
  sum.name = "all";
  sum.input_grad_seconds = 0;
  const bool has_fixed = profile.layers.front().fixed_forward_seconds.has_value();
  if (has_fixed) sum.fixed_forward_seconds = sum.fixed_backward_seconds = 0;
  const auto add_row = [&](const LayerProfile& layer, const std::string& output, const std::string& working) {
    const std::string fixed =
        has_fixed ? time(*layer.fixed_forward_seconds + *layer.fixed_backward_seconds) : std::string("-");
    rows.push_back({layer.name, time(layer.forward_seconds), time(layer.backward_seconds),
                    time(layer.input_grad_seconds.value_or(0)), fixed, cli::format_bytes(layer.parameter_bytes),
                    cli::format_bytes(layer.activation_bytes), output, working});
  };
  for (const LayerProfile& layer : profile.layers) {
    add_row(layer, cli::format_bytes(layer.output_bytes), cli::format_bytes(working_bytes(layer)));
    sum.forward_seconds += layer.forward_seconds;
    sum.backward_seconds += layer.backward_seconds;
    *sum.input_grad_seconds += layer.input_grad_seconds.value_or(0);
    if (has_fixed) {
      *sum.fixed_forward_seconds += *layer.fixed_forward_seconds;
      *sum.fixed_backward_seconds += *layer.fixed_backward_seconds;
    }
    sum.parameter_bytes += layer.parameter_bytes;
    sum.activation_bytes += layer.activation_bytes;
  }
  add_row(sum, "", "");
  return cli::to_table({"<layer", fmt::format("forward {}", unit.name), fmt::format("backward {}", unit.name),
                        fmt::format("of it inputs {}", unit.name), fmt::format("fixed {}", unit.name), "parameters",
                        "activations", "output", "working set"},
                       rows);
}

void check(const ProfileCommand& command) {
  if (command.model.empty() && command.script.torchscript.empty()) {
    throw cli::UsageError("--model is missing", "add --model NAME, such as resnet18, or --torchscript FILE");
  }
  check_script_sample(command.script);
  if (command.flops_per_second && !command.on_paper) {
    throw cli::UsageError("--flops counts on paper only: without it, layers are run and measured",
                          "add --on-paper, or leave --flops out");
  }
  if (command.profile.busy_neighbours > 0 && command.on_paper) {
    throw cli::UsageError("--busy-neighbours slow down layers that run, but on paper none does",
                          "leave out --busy-neighbours or --on-paper");
  }
  if (!command.out.empty()) cli::check_output_file(command.out, command.force);
}

// Runs the layers.
Profile measure(const ProfileCommand& command) {
  const std::string& what = command.script.torchscript.empty() ? command.model : command.script.torchscript;
  std::string shape = "of these sizes";
  try {
    const Subject subject = make_subject(command);
    shape = fmt::format("of [{}]", fmt::join(subject.inputs.front().sizes(), ", "));
    ProfileOptions options = command.profile;
    options.flops_per_second = command.flops_per_second.value_or(options.flops_per_second);
    options.loss = subject.loss;
    options.fixed_seconds = !command.no_fixed && command.num_samples > 1;
    return profile(subject.chain, subject.inputs, options);
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    text.erase(std::min(text.find('\n'), text.size()));  // the rest is about its own source
    if (text.find("can't allocate memory") != std::string::npos) {
      throw InvalidArgument(fmt::format(
          "{} and tensors {} do not fit into the memory of this machine; try a smaller size, fewer --samples, or "
          "--on-paper, which takes no memory",
          what, shape));
    }
    throw InvalidArgument(fmt::format(
        "{} does not run on what it was given, tensors {}: {}; try another --image, --channels or --sequence", what,
        shape, text));
  }
}

int run_profile(const ProfileCommand& command) {
  check(command);
  at::set_num_threads(command.num_threads);
  const Profile measured = measure(command);
  const std::string json = to_json(measured);
  if (!command.out.empty()) cli::write_output_file(command.out, json, command.force);
  cli::print(command.json ? json : to_text(measured));
  if (!command.out.empty() && !command.json) {
    cli::print(fmt::format("\nwritten to {}; next: gpipe plan --profile {} --stages 2 --micro-batches 8\n", command.out,
                           command.out));
  }
  return cli::kDone;
}

}  // namespace

void add_profile_command(CLI::App& app, cli::Run& chosen) {
  auto command = std::make_shared<ProfileCommand>();
  CLI::App& sub = *app.add_subcommand("profile");
  const OptionGroup model{sub, "Model"};
  model.add("MODEL", "--model", command->model, parse_word,
            "As gpipe train takes it: resnet18, amoebanet-d:6,64, transformer-lm:8,512,2048,8, t:3,512,4,128");
  add_script_sample_options(model, command->script, sub.get_option("--model"));
  model.add_default("N", "--samples", command->num_samples, parse_size, "Of the micro-batch that is run");
  model.add_default("N", "--image", command->script.image_size, parse_size, "Height and width of an image");
  model.add_default("N", "--channels", command->script.num_channels, parse_size, "Of an image");
  model.add_default("N", "--classes", command->num_classes, cli::parse_count_to<kMostIds>, "");
  model.add("N", "--sequence", command->script.sequence_length, cli::parse_count_to<kMostIds>,
            fmt::format("Tokens of a text [{}]", kSequenceLength));
  model.add("N", "--vocabulary", command->script.vocabulary_size, cli::parse_count_to<kMostIds>,
            fmt::format("[as gpipe train: lm {}, translate {}]", LmTaskOptions().vocabulary_size,
                        TranslateTaskOptions().vocabulary_size));
  const OptionGroup measuring{sub, "Measuring"};
  measuring.add_default("N", "--repeats", command->profile.repeats, cli::parse_count, "Of which the median counts");
  measuring.add_default("SECONDS", "--budget", command->profile.budget_seconds, cli::parse_seconds,
                        "No repeat is begun after this");
  measuring.add_flag("--no-fixed", command->no_fixed,
                     "Do not run half of the samples, too, which tells what a layer costs however few they are: "
                     "gpipe plan then counts small micro-batches too low");
  measuring.add_default("N", "--threads", command->num_threads, cli::parse_threads, "Intra-op threads, as of a stage");
  measuring.add_default("N", "--busy-neighbours", command->profile.busy_neighbours, cli::parse_more_threads,
                        "Cores to keep busy meanwhile, as the other stages on this machine will");
  measuring.add_flag("--on-paper", command->on_paper,
                     "Count operations instead of running them; takes no memory, whatever the model's size");
  measuring.add("X", "--flops", command->flops_per_second, cli::parse_speed,
                "Floating-point operations a second, on paper [1e12]");
  const OptionGroup output{sub, "Output"};
  output.add("FILE", "--out", command->out, cli::parse_path, "Write the profile there, for gpipe plan");
  output.add_flag("--force", command->force, "Replace a plain file that is there already");
  output.add_flag("--json", command->json, "Print the profile instead of a table");
  cli::set_help(sub, {"gpipe profile --model MODEL [options]", "Measure what each layer of a model costs",
                      "Runs each layer forward and backward on a micro-batch of made-up data, one after the other.",
                      "  gpipe profile --model resnet18 --samples 4 --out resnet18.json\n"
                      "  gpipe profile --torchscript model.pt --inputs in.safetensors --out model.json\n"
                      "  gpipe plan --profile resnet18.json --stages 4 --micro-batches 16 --recompute auto"});
  sub.callback([&chosen, command] { chosen = [command] { return run_profile(*command); }; });
}

}  // namespace gpipe::train

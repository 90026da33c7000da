#include "train/profile_command.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "gpipe/gpipe.h"
#include "gpipe/text/layout.h"
#include "models/registry.h"
#include "train/option_group.h"
#include "train/run_options.h"

namespace gpipe::train {
namespace {

// Beyond them a size is a slip of the finger: no machine has the memory.
constexpr int kMostIds = 1'000'000;
constexpr auto parse_size = cli::parse_count_to<65536>;

struct ProfileCommand {
  std::string model;
  int num_samples = 8;
  int image_size = 32;
  int num_channels = 3;
  int num_classes = 10;
  int sequence_length = 128;
  int vocabulary_size = 8000;
  int repeats = 5;
  double budget_seconds = 10;
  int num_threads = 1;
  int busy_neighbours = 0;
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

Subject make_subject(const ProfileCommand& command) {
  const at::Device device = command.on_paper ? at::kMeta : at::kCPU;
  const auto ids = [&](std::int64_t limit, std::vector<std::int64_t> shape) {
    if (command.on_paper) return at::empty(shape, at::device(device).dtype(at::kLong));
    return at::randint(limit, shape, at::kLong);
  };
  const auto token_loss = [](const at::Tensor& target) {
    return [target](const Tensors& outputs) {
      return torch::nn::functional::cross_entropy(outputs.front().flatten(0, 1), target.flatten());
    };
  };
  const std::int64_t rows = command.num_samples;
  const std::int64_t length = command.sequence_length;
  switch (models::task_of(command.model)) {
    case models::Task::kLanguage: {
      models::TransformerLmOptions options = models::language_model_options(command.model, command.vocabulary_size);
      const at::Tensor tokens = ids(command.vocabulary_size, {rows, length});
      return {models::transformer_lm(options.max_length(length)), {tokens}, token_loss(tokens)};
    }
    case models::Task::kTranslation: {
      auto options = models::translation_model_options(command.model, command.vocabulary_size);
      const at::Tensor source = ids(command.vocabulary_size, {rows, length});
      const at::Tensor target = ids(command.vocabulary_size, {rows, length});
      return {models::translation_transformer(options.max_length(length)), {source, target}, token_loss(target)};
    }
    case models::Task::kImage:
      break;
  }
  const LayerChain chain = models::make_image_model(
      command.model, models::ImageModelOptions().in_channels(command.num_channels).num_classes(command.num_classes));
  const at::Tensor images =
      command.on_paper
          ? at::empty({rows, command.num_channels, command.image_size, command.image_size}, at::device(device))
          : at::randn({rows, command.num_channels, command.image_size, command.image_size});
  const at::Tensor target = ids(command.num_classes, {rows});
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
  const auto row = [&](const LayerProfile& layer, double input_grad, const std::string& working) {
    rows.push_back({layer.name, time(layer.forward_seconds), time(layer.backward_seconds), time(input_grad),
                    cli::format_bytes(layer.parameter_bytes), cli::format_bytes(layer.activation_bytes),
                    layer.name == "all" ? "" : cli::format_bytes(layer.output_bytes), working});
  };
  double input_grad = 0;
  for (const LayerProfile& layer : profile.layers) {
    row(layer, layer.input_grad_seconds.value_or(0), cli::format_bytes(working_bytes(layer)));
    sum.forward_seconds += layer.forward_seconds;
    sum.backward_seconds += layer.backward_seconds;
    sum.parameter_bytes += layer.parameter_bytes;
    sum.activation_bytes += layer.activation_bytes;
    input_grad += layer.input_grad_seconds.value_or(0);
  }
  row(sum, input_grad, "");
  return to_table({{"layer", Align::kLeft},
                   {fmt::format("forward {}", unit.name)},
                   {fmt::format("backward {}", unit.name)},
                   {fmt::format("of it inputs {}", unit.name)},
                   {"parameters"},
                   {"activations"},
                   {"output"},
                   {"working set"}},
                  rows);
}

void check(const ProfileCommand& command) {
  if (command.model.empty()) throw cli::UsageError("--model is missing", "add --model NAME, such as resnet18");
  if (command.flops_per_second && !command.on_paper) {
    throw cli::UsageError("--flops counts on paper only: without it, layers are run and measured",
                          "add --on-paper, or leave --flops out");
  }
  if (command.busy_neighbours > 0 && command.on_paper) {
    throw cli::UsageError("--busy-neighbours slow down layers that run, but on paper none does",
                          "leave out --busy-neighbours or --on-paper");
  }
  if (!command.out.empty()) cli::check_output_file(command.out, command.force);
}

// The first line of what libtorch says; the rest is about its own source.
std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

// Runs the layers.
Profile measure(const ProfileCommand& command) {
  std::string shape = "of these sizes";
  try {
    const Subject subject = make_subject(command);
    shape = fmt::format("of [{}]", fmt::join(subject.inputs.front().sizes(), ", "));
    ProfileOptions options;
    options.repeats = command.repeats;
    options.budget_seconds = command.budget_seconds;
    options.busy_neighbours = command.busy_neighbours;
    if (command.flops_per_second) options.flops_per_second = *command.flops_per_second;
    options.loss = subject.loss;
    return profile(subject.chain, subject.inputs, options);
  } catch (const c10::Error& error) {
    const std::string text = first_line(error);
    if (text.find("can't allocate memory") != std::string::npos) {
      throw InvalidArgument(fmt::format(
          "{} and tensors {} do not fit into the memory of this machine; try a smaller size, fewer --samples, or "
          "--on-paper, which takes no memory",
          command.model, shape));
    }
    throw InvalidArgument(fmt::format(
        "{} does not run on what it was given, tensors {}: {}; try another --image, --channels or --sequence",
        command.model, shape, text));
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
  model.add("N", "--samples", command->num_samples, parse_size, "Of the micro-batch that is run [8]");
  model.add("N", "--image", command->image_size, parse_size, "Height and width of an image [32]");
  model.add("N", "--channels", command->num_channels, parse_size, "Of an image [3]");
  model.add("N", "--classes", command->num_classes, cli::parse_count_to<kMostIds>, "[10]");
  model.add("N", "--sequence", command->sequence_length, cli::parse_count_to<kMostIds>, "Tokens of a text [128]");
  model.add("N", "--vocabulary", command->vocabulary_size, cli::parse_count_to<kMostIds>, "[8000]");
  const OptionGroup measuring{sub, "Measuring"};
  measuring.add("N", "--repeats", command->repeats, cli::parse_count, "Of which the median counts [5]");
  measuring.add("SECONDS", "--budget", command->budget_seconds, cli::parse_seconds,
                "No repeat is begun after this [10]");
  measuring.add("N", "--threads", command->num_threads, cli::parse_threads, "Intra-op threads, as of a stage [1]");
  measuring.add("N", "--busy-neighbours", command->busy_neighbours, cli::parse_more_threads,
                "Cores to keep busy meanwhile, as the other stages on this machine will [0]");
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
                      "  gpipe plan --profile resnet18.json --stages 4 --micro-batches 16 --recompute auto"});
  sub.callback([&chosen, command] { chosen = [command] { return run_profile(*command); }; });
}

}  // namespace gpipe::train

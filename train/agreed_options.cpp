#include "train/agreed_options.h"

#include <fmt/format.h>

#include <map>

namespace gpipe::train {

Agreement agreement_on(std::string_view option) {
  static const std::map<std::string_view, Agreement> exceptions = {
      // The data and the weights are compared by what is in them, a plan by what it decides.
      {"--data-dir", Agreement::kNone},
      {"--text", Agreement::kNone},
      {"--weights", Agreement::kNone},
      {"--torchscript", Agreement::kNone},
      {"--inputs", Agreement::kNone},
      {"--targets", Agreement::kNone},
      {"--test-inputs", Agreement::kNone},
      {"--test-targets", Agreement::kNone},
      {"--plan", Agreement::kNone},
      // Only rank 0 writes there, and replaces what is there.
      {"--trace", Agreement::kNone},
      {"--metrics", Agreement::kNone},
      {"--tensorboard", Agreement::kNone},
      {"--force", Agreement::kNone},
      // After a restart the ranks of some hosts may not know of it; one that does is enough.
      {"--resume", Agreement::kNone},
      // All ranks bring what is written there.
      {"--save", Agreement::kPresence},
      {"--checkpoint-dir", Agreement::kPresence},
  };
  const auto found = exceptions.find(option);
  return found == exceptions.end() ? Agreement::kValue : found->second;
}

std::vector<std::string> agreed_options(CLI::App& command) {
  std::vector<std::string> texts;
  for (CLI::Option* const option : command.get_options()) {
    if (option == command.get_help_ptr()) continue;
    const std::string name = option->get_name();
    const std::string value = option->capture_default_str()->get_default_str();
    const Agreement agreement = agreement_on(name);
    if (agreement == Agreement::kValue) texts.push_back(fmt::format("{} {}", name, value));
    if (agreement == Agreement::kPresence) texts.push_back(value.empty() ? fmt::format("no {}", name) : name);
  }
  return texts;
}

std::string hash_of_tensors(const NamedTensors& tensors) {
  ContentHash hash;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = tensor.contiguous();
    const std::string described =
        fmt::format("{} {} [{}]\n", name, static_cast<int>(values.scalar_type()), fmt::join(values.sizes(), ","));
    hash.add(described.data(), described.size());
    hash.add(values.data_ptr(), values.nbytes());
  }
  return hash.finish();
}

std::string agreed_weights(const Safetensors& content) {
  std::size_t num_bytes = 0;
  for (const auto& item : content.tensors) num_bytes += item.second.nbytes();
  return fmt::format("--weights: {} tensors of {} bytes with the hash {}", content.tensors.size(), num_bytes,
                     hash_of_tensors(content.tensors));
}

std::string agreed_training_data(const std::string& options, const Task& task) {
  return fmt::format("{}: {} batches an epoch of data with the hash {}", options, task.num_batches(), task.data_hash());
}

std::string agreed_test_data(const std::string& options, const Task& task) {
  return fmt::format("{}: test data with the hash {}", options, task.test_hash());
}

}  // namespace gpipe::train

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
    switch (agreement_on(name)) {
      case Agreement::kValue:
        texts.push_back(fmt::format("{} {}", name, value));
        break;
      case Agreement::kPresence:
        texts.push_back(value.empty() ? fmt::format("no {}", name) : name);
        break;
      case Agreement::kNone:
        break;
    }
  }
  return texts;
}

}  // namespace gpipe::train

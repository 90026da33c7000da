#include "cli/option_names.h"

#include <cctype>
#include <string_view>

#include "cli/unknown_argument.h"

namespace gpipe::cli {
namespace {

struct OptionName {
  std::string_view in_library;
  const char* option;
};
constexpr OptionName kOptionNames[] = {
    {"num_stages", "--stages"},
    {"num_micro_batches", "--micro-batches"},
    {"chunks_per_worker", "--chunks"},
    {"chunks", "--chunks"},
    {"balance", "--balance"},
    {"threads_per_stage", "--threads-per-stage"},
    {"memory_limit_bytes", "--memory-limit"},
    {"mini_batch_samples", "--mini-batch"},
    {"worker_speed", "--worker-speed"},
    {"optimizer_slots", "--optimizer-slots"},
    {"warmup_steps", "--warmup"},
    {"total_steps", "--steps"},
    {"vocabulary_size", "--vocabulary"},
};

bool has_option(const CLI::App& app, const char* option) {
  for (const CLI::App* command = &named_command(app); command != nullptr; command = command->get_parent()) {
    if (command->get_option_no_throw(option) != nullptr) return true;
  }
  return false;
}

// A letter that makes a longer name of what it stands beside, or a quote.
bool joins(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
         std::string_view("_-'\"").find(letter) != std::string_view::npos;
}

// "balance" and "chunks" are words of plain sentences, too; where they are names, they say what they are or have.
bool is_name(std::string_view word, std::string_view behind) {
  if (word.find('_') != std::string_view::npos) return true;
  for (const std::string_view verb : {" is ", " has ", " gives ", " adds "}) {
    if (behind.substr(0, verb.size()) == verb) return true;
  }
  return false;
}

std::string replaced(const std::string& text, std::string_view word, const char* option) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t at; (at = text.find(word, from)) != std::string::npos;) {
    const std::size_t end = at + word.size();
    const bool is_whole = (at == 0 || !joins(text[at - 1])) && (end == text.size() || !joins(text[end]));
    out.append(text, from, at - from);
    out += is_whole && is_name(word, std::string_view(text).substr(end)) ? std::string(option) : std::string(word);
    from = end;
  }
  return out.append(text, from);
}

}  // namespace

std::string with_option_names(const std::string& message, const CLI::App& app) {
  std::string text = message;
  for (const OptionName& name : kOptionNames) {
    if (has_option(app, name.option)) text = replaced(text, name.in_library, name.option);
  }
  return text;
}

}  // namespace gpipe::cli

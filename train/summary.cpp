#include "train/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text.h"
#include "train/progress.h"

namespace gpipe::train {

std::string with_rate(const std::string& text, double count, double seconds) {
  return seconds > 0 ? fmt::format("{}, {} a second", text, format_rate(count / seconds)) : text;
}

std::string to_text(const Facts& facts) {
  std::size_t widest = 0;
  for (const auto& [name, value] : facts) widest = std::max(widest, name.size());
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("{:<{}}  {}\n", name, widest, cli::printable(value));
  return text;
}

}  // namespace gpipe::train

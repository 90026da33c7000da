#include "cli/text.h"

#include "gpipe/text/layout.h"
#include "gpipe/text/nearest_name.h"
#include "gpipe/text/printable.h"
#include "gpipe/text/utf8.h"

namespace gpipe::cli {

using detail::Align;
using detail::Column;
using detail::normalized_space;
using detail::quoted_name;
using detail::repaired_utf8;

std::string printable(std::string_view text) { return detail::printable(text); }

std::string printable_name(std::string_view name) {
  const std::string quoted = quoted_name(name);
  return quoted.substr(1, quoted.size() - 2);
}

std::string on_one_line(std::string_view text) { return normalized_space(repaired_utf8(text)); }

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  return detail::nearest_name(name, candidates);
}

std::string to_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  std::vector<Column> columns;
  for (const std::string& title : titles) {
    const bool is_left = title.rfind('<', 0) == 0;
    columns.push_back({title.substr(is_left ? 1 : 0), is_left ? Align::kLeft : Align::kRight});
  }
  return detail::to_table(columns, rows);
}

}  // namespace gpipe::cli

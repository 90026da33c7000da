#include "gpipe/text/layout.h"

#include <algorithm>

#include "gpipe/text/utf8.h"

namespace gpipe::detail {
namespace {

// Zero for a column that has no text in any row.
std::size_t column_width(const Column& column, const std::vector<std::vector<std::string>>& rows, std::size_t index) {
  std::size_t widest = 0;
  for (const std::vector<std::string>& row : rows) widest = std::max(widest, num_characters(row[index]));
  return widest == 0 ? 0 : std::max(widest, num_characters(column.title));
}

std::string padded(const std::string& text, Align align, std::size_t columns) {
  const std::string blanks(columns - num_characters(text), ' ');
  return align == Align::kLeft ? text + blanks : blanks + text;
}

}  // namespace

std::string to_table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (std::size_t index = 0; index < columns.size(); ++index) {
    titles.push_back(columns[index].title);
    widths.push_back(column_width(columns[index], rows, index));
  }
  std::string table;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t index = 0; index < cells.size(); ++index) {
      if (widths[index] == 0) continue;
      line += (line.empty() ? "" : "  ") + padded(cells[index], columns[index].align, widths[index]);
    }
    table += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  add_line(titles);
  for (const std::vector<std::string>& row : rows) add_line(row);
  return table;
}

}  // namespace gpipe::detail

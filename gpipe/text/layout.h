// Text laid out for people: on lines of a given width, and in tables.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gpipe {

// The words of `text` on lines of at most `width` letters (a longer word gets a line of its own); lines after the first
// start with `indent` blanks that count as none of them.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent = 0);

// `text` with its front replaced by ".." if it is longer than `width`: dotted names of layers differ at the end.
std::string shortened(const std::string& text, std::size_t width);

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
};

// The titles, then the rows, two blanks between columns, no blanks at the end of a line. A column with no text in any
// row is left out, its title too. REQUIRES: every row has one cell a column.
std::string to_table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows);

}  // namespace gpipe

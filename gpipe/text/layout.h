// Tables as aligned text.
#pragma once

#include <string>
#include <vector>

namespace gpipe::detail {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
};

// The titles, then the rows, two blanks between columns, no blanks at the end of a line. A column with no text in any
// row is left out, its title too. REQUIRES: every row has one cell a column.
std::string to_table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows);

}  // namespace gpipe::detail

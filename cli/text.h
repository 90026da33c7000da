// Text as the programs of this repository show it: for those of them that are built against gpipe's installed headers,
// which have none of this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpipe::cli {

// Text of unknown origin, fit to be shown on a terminal: control characters, bytes that are not UTF-8 and what changes
// the direction of writing become visible.
std::string printable(std::string_view text);

// The same on one line, as JSON writes it within quotes, and cut if it is long.
std::string printable_name(std::string_view name);

// Valid UTF-8 with single blanks for all white space, and none at either end.
std::string on_one_line(std::string_view text);

// The candidate that a mistyped name was probably meant to be; empty if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// A table as aligned text, two blanks between columns. A column with no text in any row is left out, its title too.
// Columns are aligned to the right, those whose title begins with '<' to the left. REQUIRES: every row has one cell a
// column.
std::string to_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows);

}  // namespace gpipe::cli

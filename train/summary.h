// What a training prints at its end.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe::train {

// A name and what there is to say, such as {"test accuracy", "89.1 %"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

// "TEXT, 8.37 a second"; the text alone if it took no time.
std::string with_rate(const std::string& text, double count, double seconds);

// One a line:
//
//   ended          done
//   steps          938 in 1:52, 8.37 a second
std::string to_text(const Facts& facts);

}  // namespace gpipe::train

#include "data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "data/data_error.h"
#include "data/gzip.h"
#include "gpipe/error.h"
#include "gpipe/text/utf8.h"

namespace gpipe::data {
namespace {

using detail::repaired_utf8;

void move_to(std::vector<std::string>& lines, std::vector<std::string>& target) {
  target.insert(target.end(), std::make_move_iterator(lines.begin()), std::make_move_iterator(lines.end()));
}

}  // namespace

TextCorpus split_text(std::string_view text, double dev_fraction, const std::string& file) {
  if (!(dev_fraction > 0 && dev_fraction < 1)) {
    throw InvalidArgument(fmt::format("dev_fraction is {}; expected more than 0 and less than 1", dev_fraction));
  }
  if (text.find('\0') != std::string_view::npos) {
    throw DataError(file, fmt::format("not text: a zero at byte {}", text.find('\0')), "name a text file");
  }
  TextCorpus corpus;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t last = line.find_last_not_of(" \t\r\v\f");
    if (last == std::string_view::npos) continue;
    std::size_t num_replaced = 0;
    corpus.train.push_back(repaired_utf8(line.substr(0, last + 1), &num_replaced));
    corpus.num_replaced_bytes += num_replaced;
  }
  const std::size_t num_lines = corpus.train.size();
  if (num_lines < 2) {
    throw DataError(file,
                    fmt::format("{} lines of text; expected at least one to train on and one held out", num_lines),
                    "name a longer text");
  }
  const auto num_wanted = static_cast<std::size_t>(std::llround(static_cast<double>(num_lines) * dev_fraction));
  const std::size_t num_dev = std::clamp<std::size_t>(num_wanted, 1, num_lines - 1);
  const auto border = corpus.train.end() - static_cast<std::ptrdiff_t>(num_dev);
  corpus.dev.assign(std::make_move_iterator(border), std::make_move_iterator(corpus.train.end()));
  corpus.train.erase(border, corpus.train.end());
  return corpus;
}

TextCorpus read_text(const std::vector<std::string>& paths, double dev_fraction) {
  if (paths.empty()) throw InvalidArgument("no text file given; expected at least one");
  TextCorpus corpus;
  for (const std::string& path : paths) {
    TextCorpus one = split_text(read_bytes(path), dev_fraction, path);
    move_to(one.train, corpus.train);
    move_to(one.dev, corpus.dev);
    corpus.num_replaced_bytes += one.num_replaced_bytes;
  }
  return corpus;
}

}  // namespace gpipe::data

// Plain text for language models: lines, the last part of them held out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::data {

struct TextCorpus {
  std::vector<std::string> train;  // lines that are not blank, without white space at their end
  std::vector<std::string> dev;
  std::size_t num_replaced_bytes = 0;  // that were no UTF-8; U+FFFD stands in their place
};

// Splits by position: the last `dev_fraction` of the lines, at least one, are dev.
// Throws DataError if that leaves train or dev empty; InvalidArgument unless 0 < dev_fraction < 1.
TextCorpus split_text(std::string_view text, double dev_fraction, const std::string& file);

// The same from files, plain or gzip, one after the other; each is split on its own.
TextCorpus read_text(const std::vector<std::string>& paths, double dev_fraction = 0.05);

}  // namespace gpipe::data

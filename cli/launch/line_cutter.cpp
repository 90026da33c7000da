#include "cli/launch/line_cutter.h"

#include <algorithm>
#include <utility>

#include "gpipe/text/utf8.h"

namespace gpipe::cli {

LineCutter::LineCutter(std::size_t longest_bytes, Take take) : longest_bytes_(longest_bytes), take_(std::move(take)) {}

void LineCutter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::size_t room =
        longest_bytes_ + 1 - begun_.size();  // one more tells a line that fits from one that does not
    const std::size_t count = std::min({end, bytes.size(), room});
    begun_.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    if (begun_.size() > longest_bytes_) {
      take_too_long();
    } else if (count == end) {
      take_(begun_);
      begun_.clear();
      bytes.remove_prefix(1);
    }
  }
}

void LineCutter::finish() {
  if (begun_.empty()) return;
  take_(begun_);
  begun_.clear();
}

void LineCutter::take_too_long() {
  constexpr std::size_t kLongestLetter = 4;
  const auto continues = [this](std::size_t at) { return continues_character(begun_[at]); };
  std::size_t end = longest_bytes_;
  while (end > longest_bytes_ - kLongestLetter + 1 && continues(end)) --end;
  if (continues(end)) end = longest_bytes_;  // not UTF-8 anyway
  take_(std::string_view(begun_).substr(0, end));
  begun_.erase(0, end);
}

}  // namespace gpipe::cli

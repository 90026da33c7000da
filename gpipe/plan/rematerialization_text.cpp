// The text form of a rematerialization, both ways.
#include <fmt/format.h>

#include <limits>

#include "gpipe/error.h"
#include "gpipe/plan/rematerialization.h"

namespace gpipe {
namespace {

constexpr int kMaxDepth = 256;
constexpr int kMaxLayer = std::numeric_limits<int>::max() - 1;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Rematerialization parse() {
    Rematerialization runs;
    if (text_.empty()) return runs;
    runs = parse_runs(0, std::numeric_limits<int>::max(), 1);
    if (position_ < text_.size()) fail("expected a comma or the end behind a run");
    return runs;
  }

 private:
  std::vector<RematerializedRun> parse_runs(int begin, int end, int depth) {
    if (depth > kMaxDepth) fail(fmt::format("runs are nested more than {} deep", kMaxDepth));
    std::vector<RematerializedRun> runs;
    do {
      runs.push_back(parse_run(begin, end, depth));
      begin = runs.back().end;
    } while (take(','));
    return runs;
  }

  RematerializedRun parse_run(int begin, int end, int depth) {
    const std::size_t start = position_;
    RematerializedRun run;
    run.begin = parse_layer();
    if (!take('-')) fail("expected '-' and the last layer of the run, such as 1-3");
    run.end = parse_layer() + 1;
    if (run.begin >= run.end) fail_at(start, "a run ends before it begins; expected first-last");
    if (run.begin < begin || run.end > end) {
      fail_at(start, depth == 1 ? "a run begins before the one in front of it ends; expected ascending, disjoint runs"
                                : "a nested run is not in what is left of the run around it");
    }
    if (depth > 1 && run.begin == begin && run.end == end && text_[start - 1] == '{') {
      fail_at(start, "a nested run is all of the run around it; leave it out");
    }
    if (take('{')) {
      run.nested = parse_runs(run.begin, run.end, depth + 1);
      if (!take('}')) fail("expected a comma or '}' behind a nested run");
    }
    return run;
  }

  int parse_layer() {
    if (position_ >= text_.size() || !is_digit(text_[position_])) fail("expected the number of a layer");
    const std::size_t start = position_;
    std::int64_t value = 0;
    for (; position_ < text_.size() && is_digit(text_[position_]); ++position_) {
      value = value * 10 + (text_[position_] - '0');
      if (value > kMaxLayer) fail_at(start, fmt::format("layers end at {}", kMaxLayer));
    }
    if (text_[start] == '0' && position_ > start + 1)
      fail_at(start, "a number begins with a zero that is not all of it");
    return static_cast<int>(value);
  }

  bool take(char c) {
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const { fail_at(position_, what); }

  [[noreturn]] void fail_at(std::size_t position, const std::string& what) const {
    const std::int64_t column = static_cast<std::int64_t>(position) + 1;
    throw ParseError(fmt::format("line 1, column {}: {}", column, what), 1, column);
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

void append_text(std::string& text, const std::vector<RematerializedRun>& runs) {
  for (std::size_t index = 0; index < runs.size(); ++index) {
    if (index > 0) text += ',';
    text += fmt::format("{}-{}", runs[index].begin, runs[index].end - 1);
    if (runs[index].nested.empty()) continue;
    text += '{';
    append_text(text, runs[index].nested);
    text += '}';
  }
}

}  // namespace

std::string to_text(const Rematerialization& rematerialization) {
  std::string text;
  append_text(text, rematerialization);
  return text;
}

Rematerialization parse_rematerialization(std::string_view text) { return Parser(text).parse(); }

}  // namespace gpipe

#include "gpipe/plan/rematerialization.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpipe/error.h"
#include "gpipe/plan/checked_rematerialization.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::require;

void check_runs(const std::vector<RematerializedRun>& runs, int begin, int end) {
  for (const RematerializedRun& run : runs) {
    require(
        run.begin >= begin && run.end <= end && run.begin < run.end,
        "the run of layers [{}, {}) is not in the layers [{}, {}) that are left for it; runs have to be in the chain "
        "or the run around them, ascending and disjoint",
        run.begin, run.end, begin, end);
    for (const RematerializedRun& nested : run.nested) {
      require(nested.begin != run.begin || nested.end != run.end,
              "the run of layers [{}, {}) is nested in one of the same layers; leave it out", run.begin, run.end);
    }
    check_runs(run.nested, run.begin, run.end);
    begin = run.end;
  }
}

// The operations of Note [What rematerialization costs], one by one.
class Walk {
 public:
  explicit Walk(const std::vector<RematerializationCosts>& costs) : costs_(costs) {}

  // Leaves behind what the layers [begin, end) keep.
  void forward(int begin, int end, const std::vector<RematerializedRun>& runs) {
    int layer = begin;
    const auto keep_until = [&](int next) {
      for (; layer < next; ++layer) {
        run_forward(layer);
        live_bytes_ += costs_[layer].activation_bytes;
      }
    };
    for (const RematerializedRun& run : runs) {
      keep_until(run.begin);
      live_bytes_ += input_bytes(run, begin);
      for (; layer < run.end; ++layer) run_forward(layer);
    }
    keep_until(end);
  }

  // Frees it.
  void backward(int begin, int end, const std::vector<RematerializedRun>& runs) {
    int layer = end;
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      while (layer > run->end) run_backward(--layer);
      forward_again(*run);
      backward(run->begin, run->end, run->nested);
      live_bytes_ -= input_bytes(*run, begin);
      layer = run->begin;
    }
    while (layer > begin) run_backward(--layer);
  }

  void begin_backward() {
    outcome_.kept_bytes = live_bytes_;
    in_backward_ = true;
  }
  const RematerializationOutcome& outcome() const { return outcome_; }

 private:
  // What keeping the input of a run takes if the layers around it begin at `outer_begin`.
  std::int64_t input_bytes(const RematerializedRun& run, int outer_begin) const {
    return run.begin == outer_begin ? 0 : costs_[run.begin - 1].output_bytes;
  }

  void forward_again(const RematerializedRun& run) {
    const std::int64_t waiting_bytes = costs_[run.end - 1].output_grad_bytes;
    live_bytes_ += waiting_bytes;
    forward(run.begin, run.end, run.nested);
    live_bytes_ -= waiting_bytes;
  }

  void run_forward(int layer) {
    work(layer);
    outcome_.seconds += costs_[layer].forward_seconds;
    if (in_backward_) outcome_.recompute_seconds += costs_[layer].forward_seconds;
  }

  void run_backward(int layer) {
    live_bytes_ -= costs_[layer].activation_bytes;
    work(layer);
    outcome_.seconds += costs_[layer].backward_seconds;
  }

  void work(int layer) {
    const std::int64_t own_bytes = std::max(costs_[layer].working_bytes, costs_[layer].activation_bytes);
    std::int64_t& peak = in_backward_ ? outcome_.backward_peak_bytes : outcome_.forward_peak_bytes;
    peak = std::max(peak, live_bytes_ + own_bytes);
    outcome_.peak_bytes = std::max(outcome_.peak_bytes, peak);
  }

  const std::vector<RematerializationCosts>& costs_;
  std::int64_t live_bytes_ = 0;
  bool in_backward_ = false;
  RematerializationOutcome outcome_;
};

constexpr int kMostNested = 256;
constexpr int kMaxLayer = std::numeric_limits<int>::max() - 1;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Rematerialization parse() {
    if (text_.empty()) return {};
    Rematerialization runs = parse_runs(0, std::numeric_limits<int>::max(), 1);
    if (position_ < text_.size()) fail("expected a comma or the end behind a run");
    return runs;
  }

 private:
  std::vector<RematerializedRun> parse_runs(int begin, int end, int depth) {
    if (depth > kMostNested) fail(fmt::format("runs are nested more than {} deep", kMostNested));
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

}  // namespace

bool operator==(const RematerializedRun& a, const RematerializedRun& b) {
  return a.begin == b.begin && a.end == b.end && a.nested == b.nested;
}

void detail::check_rematerialization_costs(const std::vector<RematerializationCosts>& costs) {
  require(!costs.empty(), "there are no layers to rematerialize; expected at least one");
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  for (std::size_t layer = 0; layer < costs.size(); ++layer) {
    const RematerializationCosts& one = costs[layer];
    for (const double seconds : {one.forward_seconds, one.backward_seconds}) {
      require(std::isfinite(seconds) && seconds >= 0, "layer {} takes {} seconds; expected a finite number, 0 or more",
              layer, seconds);
    }
    for (const std::int64_t bytes :
         {one.activation_bytes, one.output_bytes, one.working_bytes, one.output_grad_bytes}) {
      require(bytes >= 0, "layer {} has {} bytes; expected 0 or more", layer, bytes);
      require(bytes <= left, "the bytes of layers 0 to {} add up to 2^63 or more; expected less", layer);
      left -= bytes;
    }
  }
}

void detail::check_rematerialization(const Rematerialization& rematerialization, int num_layers) {
  check_runs(rematerialization, 0, num_layers);
}

RematerializationOutcome evaluate(const std::vector<RematerializationCosts>& costs,
                                  const Rematerialization& rematerialization) {
  detail::check_rematerialization_costs(costs);
  const int num_layers = static_cast<int>(costs.size());
  detail::check_rematerialization(rematerialization, num_layers);
  Walk walk(costs);
  walk.forward(0, num_layers, rematerialization);
  walk.begin_backward();
  walk.backward(0, num_layers, rematerialization);
  return walk.outcome();
}

std::string to_text(const Rematerialization& rematerialization) {
  std::vector<std::string> runs;
  for (const RematerializedRun& run : rematerialization) {
    const std::string nested = run.nested.empty() ? "" : fmt::format("{{{}}}", to_text(run.nested));
    runs.push_back(fmt::format("{}-{}{}", run.begin, run.end - 1, nested));
  }
  return fmt::format("{}", fmt::join(runs, ","));
}

Rematerialization parse_rematerialization(std::string_view text) { return Parser(text).parse(); }

}  // namespace gpipe

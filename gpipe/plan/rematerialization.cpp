#include "gpipe/plan/rematerialization.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpipe/error.h"

namespace gpipe {
namespace {

void check_runs(const std::vector<RematerializedRun>& runs, int begin, int end) {
  for (const RematerializedRun& run : runs) {
    if (run.begin < begin || run.end > end || run.begin >= run.end) {
      throw InvalidArgument(fmt::format(
          "the run of layers [{}, {}) is not in the layers [{}, {}) that are left for it; runs have to be in "
          "the chain or the run around them, ascending and disjoint",
          run.begin, run.end, begin, end));
    }
    for (const RematerializedRun& nested : run.nested) {
      if (nested.begin == run.begin && nested.end == run.end) {
        throw InvalidArgument(fmt::format(
            "the run of layers [{}, {}) is nested in one of the same layers; leave it out", run.begin, run.end));
      }
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
    const RematerializedRun none{end, end};
    int layer = begin;
    for (std::size_t index = 0; index <= runs.size(); ++index) {
      const RematerializedRun& run = index < runs.size() ? runs[index] : none;
      for (; layer < run.begin; ++layer) {
        run_forward(layer);
        live_bytes_ += costs_[layer].activation_bytes;
      }
      if (index < runs.size()) live_bytes_ += input_bytes(run, begin);
      for (; layer < run.end; ++layer) run_forward(layer);
    }
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

}  // namespace

bool operator==(const RematerializedRun& a, const RematerializedRun& b) {
  return a.begin == b.begin && a.end == b.end && a.nested == b.nested;
}

void check_rematerialization_costs(const std::vector<RematerializationCosts>& costs) {
  if (costs.empty()) throw InvalidArgument("there are no layers to rematerialize; expected at least one");
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  for (std::size_t layer = 0; layer < costs.size(); ++layer) {
    const RematerializationCosts& one = costs[layer];
    for (const double seconds : {one.forward_seconds, one.backward_seconds}) {
      if (!std::isfinite(seconds) || seconds < 0) {
        throw InvalidArgument(
            fmt::format("layer {} takes {} seconds; expected a finite number, 0 or more", layer, seconds));
      }
    }
    for (const std::int64_t bytes :
         {one.activation_bytes, one.output_bytes, one.working_bytes, one.output_grad_bytes}) {
      if (bytes < 0) throw InvalidArgument(fmt::format("layer {} has {} bytes; expected 0 or more", layer, bytes));
      if (bytes > left) {
        throw InvalidArgument(fmt::format("the bytes of layers 0 to {} add up to 2^63 or more; expected less", layer));
      }
      left -= bytes;
    }
  }
}

void check_rematerialization(const Rematerialization& rematerialization, int num_layers) {
  check_runs(rematerialization, 0, num_layers);
}

RematerializationOutcome evaluate(const std::vector<RematerializationCosts>& costs,
                                  const Rematerialization& rematerialization) {
  check_rematerialization_costs(costs);
  const int num_layers = static_cast<int>(costs.size());
  check_rematerialization(rematerialization, num_layers);
  Walk walk(costs);
  walk.forward(0, num_layers, rematerialization);
  walk.begin_backward();
  walk.backward(0, num_layers, rematerialization);
  return walk.outcome();
}

}  // namespace gpipe

#include "gpipe/report/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "gpipe/report/chart.h"
#include "gpipe/text/json.h"

namespace gpipe {
namespace {

using detail::one_line_json;

constexpr int kProcess = 1;
constexpr double kNanosecond = 1e3;  // in picoseconds

// Colours of chrome://tracing, in the order of the kinds: blue, light blue, orange, red, green, purple.
constexpr const char* kColourNames[chart::kNumKinds] = {"rail_response",        "thread_state_runnable",
                                                        "thread_state_iowait",  "rail_animation",
                                                        "thread_state_running", "detailed_memory_dump"};

// A slice of the trace, in whole picoseconds: where one slice ends and the next begins, both print the same number.
struct Slice {
  int worker = -1;  // none
  double begin = 0;
  double end = 0;
  // Where arrows touch: inside, near the edges. On an edge a viewer could take the neighbour.
  double arrival() const { return begin + std::min(kNanosecond, (end - begin) / 4); }
  double departure() const { return end - std::min(kNanosecond, (end - begin) / 4); }
};

double to_picoseconds(double seconds) {
  const double picoseconds = std::round(seconds * 1e12);
  return std::isfinite(picoseconds) ? picoseconds : 0;
}

double to_microseconds(double picoseconds) { return picoseconds / 1e6; }

Slice make_slice(int worker, double start_seconds, double end_seconds) {
  const double begin = to_picoseconds(start_seconds);
  return {worker, begin, std::max(begin, to_picoseconds(end_seconds))};
}

// The slices a message can leave or reach.
struct StageSlices {
  std::vector<Slice> forward;   // by micro-batch
  std::vector<Slice> backward;  // by micro-batch: B or I
  Slice last_weight_grad;       // B or W
  std::optional<Slice> update;  // U
  int worker = -1;
};

class Trace {
 public:
  explicit Trace(const Timeline& timeline) : timeline_(timeline), stages_(std::max(0, timeline.num_stages)) {}

  std::string write() {
    nlohmann::json about = {{"schedule", timeline_.name},
                            {"num_stages", timeline_.num_stages},
                            {"num_micro_batches", timeline_.num_micro_batches},
                            {"makespan_seconds", timeline_.makespan_seconds},
                            {"bubble_fraction", timeline_.bubble_fraction}};
    if (!timeline_.notes.empty()) about["notes"] = timeline_.notes;
    out_ = fmt::format("{{\"displayTimeUnit\":\"{}\",\"otherData\":{},\"traceEvents\":[",
                       timeline_.makespan_seconds < 1e-3 ? "ns" : "ms", one_line_json(about));
    names();
    for (int worker = 0; worker < timeline_.num_workers(); ++worker) slices(worker);
    for (const Flow& flow : timeline_.flows) arrows(flow);
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    out_ += is_first_ ? "\n" : ",\n";
    is_first_ = false;
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void names() {
    event(R"({{"ph":"M","pid":{},"tid":0,"name":"process_name","args":{{"name":{}}}}})", kProcess,
          one_line_json(nlohmann::json(timeline_.name.empty() ? "timeline" : timeline_.name)));
    for (int worker = 0; worker < timeline_.num_workers(); ++worker) {
      event(R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_name","args":{{"name":"worker {1}"}}}})", kProcess,
            worker);
      event(R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{1}}}}})", kProcess,
            worker);
    }
  }

  void slices(int worker) {
    const WorkerTimeline& source = timeline_.workers[worker];
    const bool several_stages = std::any_of(source.spans.begin(), source.spans.end(), [&](const Span& span) {
      return span.action.stage != source.spans.front().action.stage;
    });
    for (const Span& span : source.spans) {
      const Slice slice = make_slice(worker, span.start_seconds, span.end_seconds);
      begin_slice(slice, chart::label(span.action, several_stages), static_cast<int>(span.action.kind));
      if (span.action.kind == ActionKind::kUpdate) {
        fmt::format_to(std::back_inserter(out_), R"(,"args":{{"stage":{}}}}})", span.action.stage);
      } else {
        fmt::format_to(std::back_inserter(out_), R"(,"args":{{"stage":{},"micro_batch":{}}}}})", span.action.stage,
                       span.action.micro_batch);
      }
      remember(span.action, slice);
    }
    if (source.update_end_seconds > source.update_start_seconds) {
      begin_slice(update_slice(worker), "U", chart::kUpdate);
      out_ += '}';
    }
  }

  // Leaves the object open.
  void begin_slice(const Slice& slice, const std::string& label, int kind) {
    event(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":"{}","cat":"{}","cname":"{}")", kProcess,
          slice.worker, to_microseconds(slice.begin), to_microseconds(slice.end - slice.begin), label,
          chart::kind_name(kind), kColourNames[kind]);
  }

  Slice update_slice(int worker) const {
    const WorkerTimeline& source = timeline_.workers[worker];
    return make_slice(worker, source.update_start_seconds, source.update_end_seconds);
  }

  void remember(const Action& action, const Slice& slice) {
    if (!is_stage(action.stage) || action.micro_batch < 0 || action.micro_batch >= timeline_.num_micro_batches) return;
    StageSlices& stage = stages_[action.stage];
    stage.worker = slice.worker;
    const auto put = [&](std::vector<Slice>& slices) {
      slices.resize(timeline_.num_micro_batches);
      slices[action.micro_batch] = slice;
    };
    if (action.kind == ActionKind::kForward) put(stage.forward);
    if (makes_input_grad(action.kind)) put(stage.backward);
    if (makes_weight_grad(action.kind)) stage.last_weight_grad = slice;
    if (action.kind == ActionKind::kUpdate) stage.update = slice;
  }

  bool is_stage(int stage) const { return stage >= 0 && stage < static_cast<int>(stages_.size()); }

  void arrows(const Flow& flow) {
    if (!is_stage(flow.source) || !is_stage(flow.destination)) return;
    const StageSlices& source = stages_[flow.source];
    const StageSlices& destination = stages_[flow.destination];
    if (flow.kind == FlowKind::kTie) {
      if (destination.worker < 0) return;
      const Slice update = destination.update ? *destination.update : update_slice(destination.worker);
      if (update.end > update.begin) arrow(to_string(flow), source.last_weight_grad, update);
      return;
    }
    const bool is_forward = flow.kind == FlowKind::kActivation || flow.kind == FlowKind::kSkip;
    const std::vector<Slice>& from = is_forward ? source.forward : source.backward;
    const std::vector<Slice>& to = is_forward ? destination.forward : destination.backward;
    const std::string name = to_string(flow);
    for (std::size_t micro_batch = 0; micro_batch < std::min(from.size(), to.size()); ++micro_batch) {
      arrow(name, from[micro_batch], to[micro_batch]);
    }
  }

  void arrow(const std::string& name, const Slice& from, const Slice& to) {
    if (from.worker < 0 || to.worker < 0) return;
    event(R"({{"ph":"s","pid":{},"tid":{},"ts":{},"id":{},"name":"{}","cat":"message"}})", kProcess, from.worker,
          to_microseconds(from.departure()), num_arrows_, name);
    event(R"({{"ph":"f","bp":"e","pid":{},"tid":{},"ts":{},"id":{},"name":"{}","cat":"message"}})", kProcess, to.worker,
          to_microseconds(to.arrival()), num_arrows_, name);
    ++num_arrows_;
  }

  const Timeline& timeline_;
  std::vector<StageSlices> stages_;
  std::string out_;
  bool is_first_ = true;
  std::int64_t num_arrows_ = 0;
};

}  // namespace

std::string to_chrome_trace(const Timeline& timeline) { return Trace(timeline).write(); }

}  // namespace gpipe

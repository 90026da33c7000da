#include "gpipe/execute/group/step_report.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/wire_table.h"

namespace gpipe::detail {
namespace {

constexpr const char* kNotAReport = "this is not a report of a step";

constexpr std::tuple kSpanColumns(column(
                                      "span_kinds", [](auto& span) -> auto& { return span.action.kind; }, 0,
                                      kNumActionKinds - 1),
                                  column(
                                      "span_stages", [](auto& span) -> auto& { return span.action.stage; }, 0),
                                  column(
                                      "span_micro_batches", [](auto& span) -> auto& { return span.action.micro_batch; },
                                      0),
                                  column("span_starts", &Span::start_seconds), column("span_ends", &Span::end_seconds));

struct MemoryOfStage : StageMemory {
  int stage = 0;
};

constexpr auto memory_columns(int num_stages = std::numeric_limits<int>::max()) {
  return std::tuple(column("memory_stages", &MemoryOfStage::stage, 0, num_stages - 1),
                    column("live_bytes", &MemoryOfStage::live_bytes), column("peak_bytes", &MemoryOfStage::peak_bytes),
                    column("parameter_bytes", &MemoryOfStage::parameter_bytes),
                    column("gradient_bytes", &MemoryOfStage::gradient_bytes),
                    column("optimizer_bytes", &MemoryOfStage::optimizer_bytes),
                    column("input_bytes", &MemoryOfStage::input_bytes));
}

using NamedMetric = std::pair<std::string, LossParts::Metric>;
constexpr std::tuple kMetricColumns(column("metric_names", &NamedMetric::first),
                                    column(
                                        "metric_is_scalar",
                                        [](auto& metric) -> auto& { return metric.second.is_scalar; }),
                                    column(
                                        "metric_parts", [](auto& metric) -> auto& { return metric.second.parts; }));

LossParts read_loss(WireReader& reader) {
  LossParts loss;
  loss.losses = reader.tensor("losses");
  loss.weights = reader.tensor("weights");
  if (loss.weights.defined() && loss.weights.scalar_type() != at::kDouble) {
    throw InvalidArgument(std::string(kNotAReport) + ": 'weights' are not doubles");
  }
  for (NamedMetric& metric : read_table<NamedMetric>(reader, kMetricColumns)) loss.metrics.insert(std::move(metric));
  return loss;
}

// What a rank has told of itself.
struct ToldReport {
  int worker = 0;
  std::int64_t start_nanoseconds = 0;
  double processor_seconds = 0;
  std::vector<Span> spans;
  std::vector<MemoryOfStage> memory;
  LossParts loss;
  std::string refusal;
  std::vector<std::string> notes;
};

// Of a rank whose step has the workers, and the stages with memory, that `own` has.
ToldReport read_step_report(const WireRecord& record, const StepResult& own) {
  WireReader reader(record, kNotAReport);
  ToldReport report;
  report.worker = reader.integer<int>("worker", 0, static_cast<int>(own.timeline.workers.size()) - 1);
  report.start_nanoseconds = reader.integer("start_nanoseconds");
  report.processor_seconds = reader.number("processor_seconds");
  report.spans = read_table<Span>(reader, kSpanColumns);
  report.memory = read_table<MemoryOfStage>(reader, memory_columns(static_cast<int>(own.memory.size())));
  report.loss = read_loss(reader);
  report.refusal = reader.text("refusal");
  report.notes = reader.texts("notes");
  reader.finish();
  return report;
}

}  // namespace

WireRecord to_record(const StepReport& report, const StepResult& own) {
  const std::int64_t nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(report.start.time_since_epoch()).count();
  const LossParts& loss = report.loss;
  std::vector<MemoryOfStage> memory;
  for (const int stage : own.memory.empty() ? std::vector<int>() : report.stages) {
    memory.push_back({own.memory[stage], stage});
  }
  WireRecord record;
  record.add("worker", report.worker);
  record.add("start_nanoseconds", nanoseconds);
  record.add("processor_seconds", own.timeline.workers[report.worker].processor_seconds);
  add_table(record, own.timeline.workers[report.worker].spans, kSpanColumns);
  add_table(record, memory, memory_columns());
  record.add("losses", loss.losses);
  record.add("weights", loss.weights);
  add_table(record, std::vector<NamedMetric>(loss.metrics.begin(), loss.metrics.end()), kMetricColumns);
  record.add("refusal", report.refusal);
  record.add("notes", own.timeline.notes);
  return record;
}

std::string merge(StepResult& own, const std::vector<WireRecord>& of_rank, const World& world, int last_worker) {
  std::vector<ToldReport> reports;
  for (const WireRecord& record : of_rank) reports.push_back(read_step_report(record, own));
  const auto first = reports.begin() + world.replica() * world.num_stages();
  const auto end = first + world.num_stages();
  const std::int64_t first_start = std::min_element(first, end, [](const ToldReport& a, const ToldReport& b) {
                                     return a.start_nanoseconds < b.start_nanoseconds;
                                   })->start_nanoseconds;
  own.timeline.notes.clear();
  const bool one_clock = world.local_size == world.size;
  for (auto report = first; report != end; ++report) {
    const double offset = one_clock ? static_cast<double>(report->start_nanoseconds - first_start) * 1e-9 : 0;
    for (Span& span : report->spans) {
      span.start_seconds += offset;
      span.end_seconds += offset;
    }
    own.timeline.workers[report->worker].spans = std::move(report->spans);
    own.timeline.workers[report->worker].processor_seconds = report->processor_seconds;
    std::move(report->notes.begin(), report->notes.end(), std::back_inserter(own.timeline.notes));
    for (const MemoryOfStage& memory : report->memory) own.memory[memory.stage] = memory;
  }
  add_up(own.timeline);
  LossParts loss;
  std::string refusal;
  for (int replica = 0; replica < world.num_replicas; ++replica) {
    const ToldReport& report = reports.at(static_cast<std::size_t>(replica * world.num_stages() + last_worker));
    append(loss, report.loss);
    if (refusal.empty()) refusal = report.refusal;
  }
  add_up(loss, own);
  return refusal;
}

}  // namespace gpipe::detail

#include "gpipe/execute/group/step_report.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

constexpr const char* kNotAReport = "this is not a report of a step";

// What is measured of a stage's memory, as columns of a table.
constexpr std::pair<const char*, std::int64_t StageMemory::*> kMemoryColumns[] = {
    {"live_bytes", &StageMemory::live_bytes},           {"peak_bytes", &StageMemory::peak_bytes},
    {"parameter_bytes", &StageMemory::parameter_bytes}, {"gradient_bytes", &StageMemory::gradient_bytes},
    {"optimizer_bytes", &StageMemory::optimizer_bytes}, {"input_bytes", &StageMemory::input_bytes}};

void add_spans(detail::WireRecord& record, const std::vector<Span>& spans) {
  std::vector<int> kinds;
  std::vector<int> stages;
  std::vector<int> micro_batches;
  std::vector<double> starts;
  std::vector<double> ends;
  for (const Span& span : spans) {
    kinds.push_back(static_cast<int>(span.action.kind));
    stages.push_back(span.action.stage);
    micro_batches.push_back(span.action.micro_batch);
    starts.push_back(span.start_seconds);
    ends.push_back(span.end_seconds);
  }
  record.add("span_kinds", kinds);
  record.add("span_stages", stages);
  record.add("span_micro_batches", micro_batches);
  record.add("span_starts", std::move(starts));
  record.add("span_ends", std::move(ends));
}

std::vector<Span> read_spans(detail::WireReader& reader) {
  const std::size_t count =
      reader.num_rows({"span_kinds", "span_stages", "span_micro_batches", "span_starts", "span_ends"});
  const std::vector<int> kinds = reader.integers<int>("span_kinds", 0, kNumActionKinds - 1);
  const std::vector<int> stages = reader.integers<int>("span_stages", 0);
  const std::vector<int> micro_batches = reader.integers<int>("span_micro_batches", 0);
  const std::vector<double>& starts = reader.numbers("span_starts");
  const std::vector<double>& ends = reader.numbers("span_ends");
  std::vector<Span> spans(count);
  for (std::size_t index = 0; index < count; ++index) {
    spans[index].action = {static_cast<ActionKind>(kinds[index]), stages[index], micro_batches[index]};
    spans[index].start_seconds = starts[index];
    spans[index].end_seconds = ends[index];
  }
  return spans;
}

void add_memory(detail::WireRecord& record, const StepReport& report, const StepResult& own) {
  const std::vector<int> stages = own.memory.empty() ? std::vector<int>() : report.stages;
  record.add("memory_stages", stages);
  for (const auto& [name, member] : kMemoryColumns) {
    std::vector<std::int64_t> column;
    for (const int stage : stages) column.push_back(own.memory[stage].*member);
    record.add(name, column);
  }
}

// The stages and their memory.
std::vector<std::pair<int, StageMemory>> read_memory(detail::WireReader& reader, int num_stages) {
  std::vector<std::pair<int, StageMemory>> memory;
  for (const int stage : reader.integers<int>("memory_stages", 0, num_stages - 1)) {
    memory.emplace_back(stage, StageMemory());
  }
  for (const auto& [name, member] : kMemoryColumns) {
    reader.num_rows({"memory_stages", name});
    const std::vector<std::int64_t> column = reader.integers(name);
    for (std::size_t row = 0; row < memory.size(); ++row) memory[row].second.*member = column[row];
  }
  return memory;
}

void add_loss(detail::WireRecord& record, const LossParts& loss) {
  std::vector<std::string> names;
  std::vector<bool> are_scalar;
  Tensors parts;
  for (const auto& [name, metric] : loss.metrics) {
    names.push_back(name);
    are_scalar.push_back(metric.is_scalar);
    parts.push_back(metric.parts);
  }
  record.add("losses", loss.losses);
  record.add("weights", loss.weights);
  record.add("metric_names", std::move(names));
  record.add("metric_is_scalar", are_scalar);
  record.add("metric_parts", parts);
}

LossParts read_loss(detail::WireReader& reader) {
  LossParts loss;
  loss.losses = reader.tensor("losses");
  loss.weights = reader.tensor("weights");
  if (loss.weights.defined() && loss.weights.scalar_type() != at::kDouble) {
    throw InvalidArgument(std::string(kNotAReport) + ": 'weights' are not doubles");
  }
  const std::size_t count = reader.num_rows({"metric_names", "metric_is_scalar", "metric_parts"});
  const std::vector<std::string>& names = reader.texts("metric_names");
  const std::vector<bool> are_scalar = reader.flags("metric_is_scalar");
  const Tensors parts = reader.tensors("metric_parts");
  for (std::size_t index = 0; index < count; ++index) loss.metrics[names[index]] = {parts[index], are_scalar[index]};
  return loss;
}

// What a rank has told of itself.
struct ToldReport {
  int worker = 0;
  std::int64_t start_nanoseconds = 0;
  std::vector<Span> spans;
  std::vector<std::pair<int, StageMemory>> memory;  // by stage
  LossParts loss;
  std::string refusal;
  std::vector<std::string> notes;
};

// Of a rank whose step has the workers, and the stages with memory, that `own` has.
ToldReport read_step_report(const detail::WireRecord& record, const StepResult& own) {
  detail::WireReader reader(record, kNotAReport);
  ToldReport report;
  report.worker = reader.integer<int>("worker", 0, static_cast<int>(own.timeline.workers.size()) - 1);
  report.start_nanoseconds = reader.integer("start_nanoseconds");
  report.spans = read_spans(reader);
  report.memory = read_memory(reader, static_cast<int>(own.memory.size()));
  report.loss = read_loss(reader);
  report.refusal = reader.text("refusal");
  report.notes = reader.texts("notes");
  reader.finish();
  return report;
}

}  // namespace

detail::WireRecord to_record(const StepReport& report, const StepResult& own) {
  const std::int64_t nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(report.start.time_since_epoch()).count();
  detail::WireRecord record;
  record.add("worker", report.worker);
  record.add("start_nanoseconds", nanoseconds);
  add_spans(record, own.timeline.workers[report.worker].spans);
  add_memory(record, report, own);
  add_loss(record, report.loss);
  record.add("refusal", report.refusal);
  record.add("notes", own.timeline.notes);
  return record;
}

std::string merge(StepResult& own, const std::vector<detail::WireRecord>& of_rank, const World& world,
                  int last_worker) {
  std::vector<ToldReport> reports;
  for (const detail::WireRecord& record : of_rank) reports.push_back(read_step_report(record, own));
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
    std::move(report->notes.begin(), report->notes.end(), std::back_inserter(own.timeline.notes));
    for (const auto& [stage, memory] : report->memory) own.memory[stage] = memory;
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

}  // namespace gpipe

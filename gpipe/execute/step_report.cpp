#include "gpipe/execute/step_report.h"

#include <torch/torch.h>

#include <algorithm>

#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {
namespace {

// Where things are in an encoded report; the metrics follow.
enum Place : std::size_t { kHead, kSpans, kMemory, kLoss, kNames, kRefusal, kMetrics };

constexpr std::int64_t kSpanColumns = 5;
constexpr std::int64_t kMemoryColumns = 7;

at::Tensor encode_spans(const std::vector<Span>& spans) {
  at::Tensor table = at::empty({static_cast<std::int64_t>(spans.size()), kSpanColumns}, at::kDouble);
  double* cell = table.data_ptr<double>();
  for (const Span& span : spans) {
    *cell++ = static_cast<double>(span.action.kind);
    *cell++ = span.action.stage;
    *cell++ = span.action.micro_batch;
    *cell++ = span.start_seconds;
    *cell++ = span.end_seconds;
  }
  return table;
}

std::vector<Span> decode_spans(const at::Tensor& table, double offset) {
  std::vector<Span> spans(static_cast<std::size_t>(table.size(0)));
  const double* cell = table.data_ptr<double>();
  for (Span& span : spans) {
    span.action = {static_cast<ActionKind>(static_cast<int>(cell[0])), static_cast<int>(cell[1]),
                   static_cast<int>(cell[2])};
    span.start_seconds = cell[3] + offset;
    span.end_seconds = cell[4] + offset;
    cell += kSpanColumns;
  }
  return spans;
}

at::Tensor encode_memory(const StepReport& report) {
  if (report.result.memory.empty()) return at::empty({0, kMemoryColumns}, at::kLong);
  at::Tensor table = at::empty({static_cast<std::int64_t>(report.stages.size()), kMemoryColumns}, at::kLong);
  auto* cell = table.data_ptr<std::int64_t>();
  for (const int stage : report.stages) {
    const StageMemory& memory = report.result.memory[stage];
    for (const std::int64_t value :
         {static_cast<std::int64_t>(stage), memory.live_bytes, memory.peak_bytes, memory.parameter_bytes,
          memory.gradient_bytes, memory.optimizer_bytes, memory.input_bytes}) {
      *cell++ = value;
    }
  }
  return table;
}

void decode_memory(const at::Tensor& table, std::vector<StageMemory>& memory) {
  const auto* cell = table.data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < table.size(0); ++row, cell += kMemoryColumns) {
    memory.at(static_cast<std::size_t>(cell[0])) = {cell[1], cell[2], cell[3], cell[4], cell[5], cell[6]};
  }
}

}  // namespace

Tensors encode(const StepReport& report) {
  const std::int64_t nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(report.start.time_since_epoch()).count();
  Fingerprint names;
  Tensors encoded(kMetrics);
  encoded[kHead] = torch::tensor({static_cast<std::int64_t>(report.worker), nanoseconds}, torch::kLong);
  encoded[kSpans] = encode_spans(report.result.timeline.workers[report.worker].spans);
  encoded[kMemory] = encode_memory(report);
  encoded[kLoss] = report.result.loss;
  for (const auto& [name, metric] : report.result.metrics) {
    names.emplace_back(name, "");
    encoded.push_back(metric);
  }
  encoded[kNames] = to_tensor(encode(names));
  encoded[kRefusal] = to_tensor(report.refusal);
  return encoded;
}

std::string merge(StepResult& own, const std::vector<Tensors>& of_rank, std::size_t last, bool one_clock) {
  const auto start_of = [](const Tensors& report) { return report.at(kHead).data_ptr<std::int64_t>()[1]; };
  std::int64_t first_start = start_of(of_rank.front());
  for (const Tensors& report : of_rank) first_start = std::min(first_start, start_of(report));
  for (const Tensors& report : of_rank) {
    const auto worker = static_cast<std::size_t>(report.at(kHead).data_ptr<std::int64_t>()[0]);
    const double offset = one_clock ? static_cast<double>(start_of(report) - first_start) * 1e-9 : 0;
    own.timeline.workers.at(worker).spans = decode_spans(report.at(kSpans), offset);
    decode_memory(report.at(kMemory), own.memory);
  }
  add_up(own.timeline);
  const Tensors& result = of_rank.at(last);
  own.loss = result.at(kLoss);
  own.metrics.clear();
  std::size_t next = kMetrics;
  for (const auto& [name, nothing] : decode_fingerprint(to_text(result.at(kNames)))) {
    own.metrics[name] = result.at(next++);
  }
  return to_text(result.at(kRefusal));
}

}  // namespace gpipe

#include "gpipe/execute/group/step_report.h"

#include <torch/torch.h>

#include <algorithm>

#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {
namespace {

// Where things are in an encoded report; the metrics follow.
enum Place : std::size_t { kHead, kSpans, kMemory, kLoss, kWeights, kNames, kRefusal, kMetrics };

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
  if (report.result->memory.empty()) return at::empty({0, kMemoryColumns}, at::kLong);
  at::Tensor table = at::empty({static_cast<std::int64_t>(report.stages.size()), kMemoryColumns}, at::kLong);
  auto* cell = table.data_ptr<std::int64_t>();
  for (const int stage : report.stages) {
    const StageMemory& memory = report.result->memory[stage];
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

LossParts decode_loss(const Tensors& report) {
  LossParts loss;
  loss.losses = report.at(kLoss);
  loss.weights = report.at(kWeights);
  std::size_t next = kMetrics;
  for (const auto& [name, kind] : decode_fingerprint(to_text(report.at(kNames)))) {
    loss.metrics[name] = {report.at(next++), kind == "scalar"};
  }
  return loss;
}

}  // namespace

Tensors encode(const StepReport& report) {
  const std::int64_t nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(report.start.time_since_epoch()).count();
  Fingerprint names;
  Tensors encoded(kMetrics);
  encoded[kHead] = torch::tensor({static_cast<std::int64_t>(report.worker), nanoseconds}, torch::kLong);
  encoded[kSpans] = encode_spans(report.result->timeline.workers[report.worker].spans);
  encoded[kMemory] = encode_memory(report);
  encoded[kLoss] = report.loss.losses;
  encoded[kWeights] = report.loss.weights;
  for (const auto& [name, metric] : report.loss.metrics) {
    names.emplace_back(name, metric.is_scalar ? "scalar" : "rows");
    encoded.push_back(metric.parts);
  }
  encoded[kNames] = to_tensor(encode(names));
  encoded[kRefusal] = to_tensor(report.refusal);
  return encoded;
}

std::string merge(StepResult& own, const std::vector<Tensors>& of_rank, const World& world, int last_worker) {
  const auto start_of = [](const Tensors& report) { return report.at(kHead).data_ptr<std::int64_t>()[1]; };
  const auto first_rank = of_rank.begin() + world.replica() * world.num_stages();
  const std::vector<Tensors> of_replica(first_rank, first_rank + world.num_stages());
  std::int64_t first_start = start_of(of_replica.front());
  for (const Tensors& report : of_replica) first_start = std::min(first_start, start_of(report));
  const bool one_clock = world.local_size == world.size;
  for (const Tensors& report : of_replica) {
    const auto worker = static_cast<std::size_t>(report.at(kHead).data_ptr<std::int64_t>()[0]);
    const double offset = one_clock ? static_cast<double>(start_of(report) - first_start) * 1e-9 : 0;
    own.timeline.workers.at(worker).spans = decode_spans(report.at(kSpans), offset);
    decode_memory(report.at(kMemory), own.memory);
  }
  add_up(own.timeline);
  LossParts loss;
  std::string refusal;
  for (int replica = 0; replica < world.num_replicas; ++replica) {
    const Tensors& report = of_rank.at(static_cast<std::size_t>(replica * world.num_stages() + last_worker));
    append(loss, decode_loss(report));
    if (refusal.empty()) refusal = to_text(report.at(kRefusal));
  }
  add_up(loss, own);
  return refusal;
}

}  // namespace gpipe

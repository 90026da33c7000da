#include "gpipe/execute/group/step_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "gpipe/error.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

std::string flags_text(const std::vector<bool>& flags) {
  std::string text;
  for (const bool flag : flags) text += flag ? '1' : '0';
  return text;
}

std::string number_text(std::int64_t number) { return number < 0 ? "" : std::to_string(number); }

// Where all ranks that say something must say the same. Empty: it says nothing.
struct Field {
  const char* name;
  std::string (*value)(const StepCall&);
};
using Fields = std::initializer_list<Field>;

// Of all ranks.
constexpr Fields kWorldFields = {
    {"the call", [](const StepCall& call) { return call.name; }},
    {"the step", [](const StepCall& call) { return std::to_string(call.step); }},
    {"training", [](const StepCall& call) { return std::string(call.training ? "on" : "off"); }},
    {"the gradient mode", [](const StepCall& call) { return std::string(call.grad_mode ? "on" : "off"); }}};

// Of the ranks of one replica.
constexpr Fields kReplicaFields = {
    {"the forward that it belongs to", [](const StepCall& call) { return number_text(call.assembly); }},
    {"the number of rows of the inputs", [](const StepCall& call) { return number_text(call.input_rows); }},
    {"the number of rows of the targets", [](const StepCall& call) { return number_text(call.target_rows); }},
    {"what inputs require a gradient",
     [](const StepCall& call) { return call.requires_grad ? "[" + flags_text(*call.requires_grad) + "]" : ""; }}};

// Consecutive ones.
struct RankRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

void check_same(const std::vector<StepCall>& of_rank, RankRange ranks, Fields fields) {
  for (const Field& field : fields) {
    std::size_t first = ranks.begin;
    for (std::size_t rank = ranks.begin; rank < ranks.end; ++rank) {
      const std::string before = field.value(of_rank[first]);
      const std::string value = field.value(of_rank[rank]);
      if (before.empty()) first = rank;
      if (before.empty() || value.empty() || value == before) continue;
      throw FingerprintError(
          fmt::format(
              "the ranks do not make the same call: {} is {} on rank {}, but {} on rank {}; every rank has to make "
              "the same calls in the same order",
              field.name, before, first, value, rank),
          field.name, static_cast<int>(rank));
    }
  }
}

StepCall put_together(const std::vector<StepCall>& of_rank, RankRange ranks) {
  StepCall agreed = of_rank[ranks.begin];
  std::map<int, std::size_t> num_idle;
  std::size_t input_rank = ranks.begin;
  std::size_t target_rank = ranks.begin;
  for (std::size_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const StepCall& call = of_rank[rank];
    if (agreed.input_rows < 0 && call.input_rows >= 0) input_rank = rank;
    if (agreed.target_rows < 0 && call.target_rows >= 0) target_rank = rank;
    agreed.input_rows = std::max(agreed.input_rows, call.input_rows);
    agreed.target_rows = std::max(agreed.target_rows, call.target_rows);
    agreed.assembly = std::max(agreed.assembly, call.assembly);
    if (!agreed.requires_grad) agreed.requires_grad = call.requires_grad;
    for (const int assembly : call.idle) ++num_idle[assembly];
  }
  agreed.idle.clear();
  for (const auto& [assembly, count] : num_idle) {
    if (count == ranks.end - ranks.begin) agreed.idle.push_back(assembly);
  }
  if (agreed.target_rows >= 0 && agreed.target_rows != agreed.input_rows) {
    throw InvalidArgument(fmt::format("the inputs have {} rows on rank {}, but the targets have {} on rank {}",
                                      agreed.input_rows, input_rank, agreed.target_rows, target_rank));
  }
  return agreed;
}

}  // namespace

WireRecord to_record(const StepCall& call) {
  WireRecord record;
  record.add("name", call.name);
  record.add("step", call.step);
  record.add("training", call.training);
  record.add("grad_mode", call.grad_mode);
  record.add("needs_grad", call.needs_grad);
  record.add("input_rows", call.input_rows);
  record.add("target_rows", call.target_rows);
  record.add("assembly", call.assembly);
  record.add("refusal", call.refusal);
  if (call.requires_grad) record.add("requires_grad", *call.requires_grad);
  record.add("idle", call.idle);
  return record;
}

StepCall read_step_call(const WireRecord& record, WireRecord* rest) {
  WireReader reader(record, "this is not a call of a rank");
  StepCall call;
  call.name = reader.text("name");
  call.step = reader.integer("step");
  call.training = reader.flag("training");
  call.grad_mode = reader.flag("grad_mode");
  call.needs_grad = reader.flag("needs_grad");
  call.input_rows = reader.integer<std::int64_t>("input_rows", -1);
  call.target_rows = reader.integer<std::int64_t>("target_rows", -1);
  call.assembly = reader.integer<int>("assembly", -1);
  call.refusal = reader.text("refusal");
  if (reader.has("requires_grad")) call.requires_grad = reader.flags("requires_grad");
  call.idle = reader.integers<int>("idle", 0);
  if (rest == nullptr) reader.finish();
  if (rest != nullptr) *rest = reader.rest();
  return call;
}

std::vector<StepCall> agreed_calls(const std::vector<StepCall>& of_rank, int num_replicas) {
  bool needs_grad = false;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    const StepCall& call = of_rank[rank];
    needs_grad |= call.needs_grad;
    if (call.refusal.empty()) continue;
    throw InvalidArgument(fmt::format("rank {} cannot run this {}: {}", rank, call.name, call.refusal));
  }
  check_same(of_rank, {0, of_rank.size()}, kWorldFields);
  const std::size_t size = of_rank.size() / static_cast<std::size_t>(num_replicas);
  std::vector<StepCall> of_replica;
  for (std::size_t begin = 0; begin < of_rank.size(); begin += size) {
    check_same(of_rank, {begin, begin + size}, kReplicaFields);
    of_replica.push_back(put_together(of_rank, {begin, begin + size}));
    of_replica.back().needs_grad = needs_grad;
  }
  return of_replica;
}

}  // namespace gpipe::detail

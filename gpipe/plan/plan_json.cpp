#include "gpipe/plan/plan_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/checked_rematerialization.h"
#include "gpipe/plan/given_partition.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/text/json.h"
#include "gpipe/text/json_record.h"

namespace gpipe {
namespace {

using detail::check_json_tables;
using detail::find_json_table;
using detail::json_fail_at;
using detail::JsonField;
using detail::JsonForm;
using detail::JsonReader;
using detail::JsonTable;
using detail::JsonTables;
using detail::parse_json_tables;
using detail::table_json;

using Json = nlohmann::ordered_json;

const JsonForm kPlanForm = {"plan",
                            {"schedule", "chunks", "num_micro_batches", "recompute", "predicted_step_seconds",
                             "link_latency_seconds", "link_bytes_per_second"},
                            6};
const JsonForm kStageForm = {"stage",
                             {"layers",
                              "seconds",
                              "bytes",
                              "forward_seconds",
                              "backward_seconds",
                              "input_grad_seconds",
                              "weight_grad_seconds",
                              "recompute_seconds",
                              "update_seconds",
                              "static_bytes",
                              "activation_bytes",
                              "input_bytes",
                              "output_bytes",
                              "kept_input_bytes",
                              "forward_working_bytes",
                              "backward_working_bytes",
                              "deferred_bytes",
                              "input_grad_working_bytes",
                              "weight_grad_working_bytes",
                              "recompute",
                              "rematerialization"},
                             16};
const JsonForm kWorkerForm = {
    "worker",
    {"predicted_peak_bytes", "speed", "memory_limit_bytes", "link_latency_seconds", "link_bytes_per_second", "actions"},
    0};
const JsonForm kPlanSkipForm = {"skip", {"from_stage", "to_stage", "bytes"}, 3};
const std::vector<std::string> kPlanTables = {"stages", "workers", "skips"};

// The seconds and the bytes of a stage by their names in the file.
constexpr std::pair<const char*, double StageCosts::*> kSeconds[] = {
    {"forward_seconds", &StageCosts::forward_seconds},       {"backward_seconds", &StageCosts::backward_seconds},
    {"input_grad_seconds", &StageCosts::input_grad_seconds}, {"weight_grad_seconds", &StageCosts::weight_grad_seconds},
    {"recompute_seconds", &StageCosts::recompute_seconds},   {"update_seconds", &StageCosts::update_seconds},
};
constexpr std::pair<const char*, std::int64_t StageCosts::*> kBytes[] = {
    {"static_bytes", &StageCosts::static_bytes},
    {"activation_bytes", &StageCosts::activation_bytes},
    {"input_bytes", &StageCosts::input_bytes},
    {"output_bytes", &StageCosts::output_bytes},
    {"kept_input_bytes", &StageCosts::kept_input_bytes},
    {"forward_working_bytes", &StageCosts::forward_working_bytes},
    {"backward_working_bytes", &StageCosts::backward_working_bytes},
};
constexpr std::pair<const char*, std::int64_t SplitBytes::*> kSplitBytes[] = {
    {"deferred_bytes", &SplitBytes::deferred_bytes},
    {"input_grad_working_bytes", &SplitBytes::input_grad_working_bytes},
    {"weight_grad_working_bytes", &SplitBytes::weight_grad_working_bytes},
};

Json stage_object(const Plan& plan, std::size_t stage) {
  Json json;
  json["layers"] = plan.layers_per_stage[stage];
  json["seconds"] = plan.partition.stages[stage].seconds;
  json["bytes"] = plan.partition.stages[stage].bytes;
  for (const auto& [name, member] : kSeconds) json[name] = plan.costs.stages[stage].*member;
  for (const auto& [name, member] : kBytes) json[name] = plan.costs.stages[stage].*member;
  if (const std::optional<SplitBytes>& split = plan.costs.stages[stage].split) {
    for (const auto& [name, member] : kSplitBytes) json[name] = *split.*member;
  }
  if (!plan.recompute_by_stage.empty()) json["recompute"] = name(plan.recompute_by_stage[stage]);
  if (!plan.rematerialization.empty()) json["rematerialization"] = to_text(plan.rematerialization[stage]);
  return json;
}

void add_link(Json& json, const LinkCosts& link) {
  json["link_latency_seconds"] = link.latency_seconds;
  if (std::isfinite(link.bytes_per_second)) json["link_bytes_per_second"] = link.bytes_per_second;
}

// `lines`: of the text form of the plan's order, if it has one.
Json worker_object(const Plan& plan, std::size_t worker, const std::vector<std::string>& lines) {
  Json json = Json::object();
  if (!plan.predicted_peak_bytes.empty()) json["predicted_peak_bytes"] = plan.predicted_peak_bytes[worker];
  if (plan.order) json["actions"] = lines[worker];
  if (plan.costs.workers.empty()) return json;
  const WorkerCosts& costs = plan.costs.workers[worker];
  json["speed"] = costs.speed;
  if (costs.memory_limit_bytes) json["memory_limit_bytes"] = *costs.memory_limit_bytes;
  if (costs.link_to_next) add_link(json, *costs.link_to_next);
  return json;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// All of it or nothing.
std::optional<SplitBytes> read_split_bytes(const JsonReader& record) {
  const auto is_given = [&](const auto& field) { return record.has(field.first); };
  if (std::none_of(std::begin(kSplitBytes), std::end(kSplitBytes), is_given)) return std::nullopt;
  SplitBytes split;
  for (const auto& [name, member] : kSplitBytes) {
    if (!record.has(name)) {
      record.fail(record.offset(), fmt::format("\"{}\" is missing, and others that go with it are given", name));
    }
    split.*member = record.bytes(name);
  }
  return split;
}

Recompute read_mode(const JsonReader& record) {
  const JsonField& field = record.field("recompute");
  const std::string word = record.string("recompute");
  for (const Recompute mode : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever, Recompute::kAuto}) {
    if (word == name(mode)) return mode;
  }
  record.fail_value(field, "always, except-last, never or auto");
}

Rematerialization read_rematerialization(const JsonReader& record) {
  const JsonField& field = record.field("rematerialization");
  const std::string text = record.string("rematerialization");
  const int num_layers = record.count("layers", 1);
  try {
    Rematerialization runs = parse_rematerialization(text);
    detail::check_rematerialization(runs, num_layers);
    return runs;
  } catch (const ParseError& error) {  // its line and column are those of the text
    record.fail_value(field, fmt::format("runs of layers, such as 1-3{{1-2}},5-6: {}", error.what()));
  } catch (const InvalidArgument& error) {
    record.fail(field.value_offset, error.what());
  }
}

LinkCosts read_link_fields(const JsonReader& record) {
  LinkCosts link;
  if (record.has("link_latency_seconds")) link.latency_seconds = record.seconds("link_latency_seconds");
  if (record.has("link_bytes_per_second")) link.bytes_per_second = record.positive("link_bytes_per_second");
  return link;
}

// Reads the parts of a plan, one table after the other.
class PlanReader {
 public:
  explicit PlanReader(std::string_view json) : json_(json), tables_(parse_json_tables(json)) {
    check_json_tables(json_, tables_, kPlanForm, kPlanTables);
  }

  Plan read() {
    const JsonReader top(json_, tables_.top, kPlanForm, "");
    read_top(top);
    for_each("stages", kStageForm, [this](const JsonReader& stage) { read_stage(stage); });
    check_stages(top);
    for_each("workers", kWorkerForm, [this](const JsonReader& worker) { read_worker(worker); });
    check_workers();
    read_order();
    for_each("skips", kPlanSkipForm, [this](const JsonReader& skip) { read_skip(skip); });
    detail::add_up(plan_.partition, plan_.num_micro_batches);
    return std::move(plan_);
  }

 private:
  template <typename Read>
  void for_each(const char* name, const JsonForm& form, const Read& read) {
    const JsonTable* table = find_json_table(tables_, name);
    if (table == nullptr) json_fail_at(json_, tables_.top.offset, fmt::format("\"{}\" is missing", name));
    for (std::size_t index = 0; index < table->records.size(); ++index) {
      read(JsonReader(json_, table->records[index], form, fmt::format("{} {}: ", form.what, index)));
    }
  }

  void read_top(const JsonReader& top) {
    plan_.schedule = top.string("schedule");
    plan_.chunks = top.count("chunks", 1);
    plan_.num_micro_batches = top.count("num_micro_batches", 1);
    plan_.recompute = read_mode(top);
    plan_.predicted_step_seconds = top.seconds("predicted_step_seconds");
    plan_.costs.link = read_link_fields(top);
    if (plan_.schedule == kSearchedSchedule) return;
    try {
      const ScheduleInfo& info = find_schedule(plan_.schedule);
      if (!takes_chunks(info, plan_.chunks)) {
        top.fail_value(top.field("chunks"), fmt::format("{}, as {} has", valid_chunks(info), info.name));
      }
    } catch (const InvalidArgument& error) {
      top.fail(top.field("schedule").value_offset, error.what());
    }
  }

  void read_stage(const JsonReader& record) {
    plan_.layers_per_stage.push_back(record.count("layers", 1));
    plan_.partition.stages.push_back({plan_.layers_per_stage.back(), record.seconds("seconds"), record.bytes("bytes")});
    StageCosts costs;
    for (const auto& [name, member] : kSeconds) costs.*member = record.seconds(name);
    for (const auto& [name, member] : kBytes) costs.*member = record.bytes(name);
    costs.split = read_split_bytes(record);
    plan_.costs.stages.push_back(costs);
    const bool is_auto = plan_.recompute == Recompute::kAuto;
    if (is_auto != record.has("recompute")) {
      record.fail(record.offset(), is_auto ? "\"recompute\" is missing, and that of the plan is auto"
                                           : "\"recompute\" is given, but that of the plan is not auto");
    }
    if (is_auto) {
      plan_.recompute_by_stage.push_back(read_mode(record));
      if (plan_.recompute_by_stage.back() == Recompute::kAuto) {
        record.fail_value(record.field("recompute"), "always, except-last or never");
      }
    }
    if (record.has("rematerialization")) plan_.rematerialization.push_back(read_rematerialization(record));
  }

  void check_stages(const JsonReader& top) const {
    const std::size_t num_stages = plan_.layers_per_stage.size();
    const JsonTable& table = *find_json_table(tables_, "stages");
    if (num_stages == 0) json_fail_at(json_, table.name_offset, "\"stages\" is empty; expected at least one stage");
    if (num_stages % static_cast<std::size_t>(plan_.chunks) != 0) {
      top.fail_value(top.field("chunks"), fmt::format("a divisor of the number of stages, {}", num_stages));
    }
    if (!plan_.rematerialization.empty() && plan_.rematerialization.size() != num_stages) {
      json_fail_at(json_, table.name_offset, "\"rematerialization\" is given for some stages and not for others");
    }
  }

  void read_worker(const JsonReader& record) {
    if (record.has("predicted_peak_bytes")) {
      plan_.predicted_peak_bytes.push_back(record.bytes("predicted_peak_bytes"));
    }
    const bool is_searched = plan_.schedule == kSearchedSchedule;
    if (is_searched != record.has("actions")) {
      record.fail(record.offset(), is_searched ? "\"actions\" is missing, and the schedule of the plan is a search's"
                                               : "\"actions\" is given, but the schedule of the plan has a name");
    }
    if (is_searched) order_text_ += record.string("actions") + "\n";
    if (!record.has("speed")) {
      for (const char* name : {"memory_limit_bytes", "link_latency_seconds", "link_bytes_per_second"}) {
        if (record.has(name)) record.fail(record.offset(), "\"speed\" is missing");
      }
      return;
    }
    WorkerCosts& worker = plan_.costs.workers.emplace_back();
    worker.speed = record.positive("speed");
    if (record.has("memory_limit_bytes")) worker.memory_limit_bytes = record.bytes("memory_limit_bytes");
    const bool has_link = record.has("link_latency_seconds") || record.has("link_bytes_per_second");
    if (has_link) worker.link_to_next = read_link_fields(record);
  }

  void read_order() {
    if (plan_.schedule != kSearchedSchedule) return;
    const JsonTable& table = *find_json_table(tables_, "workers");
    const auto fail = [&](const std::string& why) { json_fail_at(json_, table.name_offset, why); };
    Schedule order;
    try {
      order = parse_text(order_text_);
      ValidateOptions prove_only;
      prove_only.compute_capacities = false;
      validate(order, prove_only);
    } catch (const Error& error) {
      fail(fmt::format("the actions are no schedule: {}", error.what()));
    }
    const bool fits = order.num_workers() == plan_.num_workers() &&
                      order.num_stages == static_cast<int>(plan_.layers_per_stage.size()) &&
                      order.num_micro_batches == plan_.num_micro_batches;
    if (!fits) {
      fail(fmt::format("the actions are for {} workers, {} stages and {} micro-batches; expected {}, {} and {}",
                       order.num_workers(), order.num_stages, order.num_micro_batches, plan_.num_workers(),
                       plan_.layers_per_stage.size(), plan_.num_micro_batches));
    }
    order.name = plan_.schedule;
    plan_.order = std::move(order);
  }

  void check_workers() const {
    const JsonTable& table = *find_json_table(tables_, "workers");
    const auto num_workers = static_cast<std::size_t>(plan_.num_workers());
    if (table.records.size() != num_workers) {
      json_fail_at(json_, table.name_offset,
                   fmt::format("\"workers\" has {} elements; expected {}, one for each {} of the {} stages",
                               table.records.size(), num_workers, plan_.chunks, plan_.layers_per_stage.size()));
    }
    for (const std::size_t given : {plan_.predicted_peak_bytes.size(), plan_.costs.workers.size()}) {
      if (given == 0 || given == num_workers) continue;
      json_fail_at(json_, table.name_offset, "the workers have different fields; expected the same of all");
    }
  }

  void read_skip(const JsonReader& record) {
    const SkipRoute route = {record.count("from_stage", 0), record.count("to_stage", 0)};
    if (route.from_stage >= route.to_stage || route.to_stage >= static_cast<int>(plan_.layers_per_stage.size())) {
      record.fail_value(record.field("to_stage"), fmt::format("a stage above {}, and at most {}", route.from_stage,
                                                              plan_.layers_per_stage.size() - 1));
    }
    plan_.costs.routes.skips.push_back(route);
    plan_.costs.skip_bytes.push_back(record.bytes("bytes"));
  }

  const std::string_view json_;
  const JsonTables tables_;
  Plan plan_;
  std::string order_text_;  // of a searched schedule
};

}  // namespace

std::string to_json(const Plan& plan) {
  Json top;
  top["schedule"] = plan.schedule;
  top["chunks"] = plan.chunks;
  top["num_micro_batches"] = plan.num_micro_batches;
  top["recompute"] = name(plan.recompute);
  top["predicted_step_seconds"] = plan.predicted_step_seconds;
  add_link(top, plan.costs.link);
  top["stages"] = Json::array();
  top["workers"] = Json::array();
  top["skips"] = Json::array();
  for (std::size_t stage = 0; stage < plan.layers_per_stage.size(); ++stage) {
    top["stages"].push_back(stage_object(plan, stage));
  }
  const std::vector<std::string> lines = plan.order ? lines_of(to_text(*plan.order)) : std::vector<std::string>();
  for (int worker = 0; worker < plan.num_workers(); ++worker) {
    top["workers"].push_back(worker_object(plan, worker, lines));
  }
  for (std::size_t skip = 0; skip < plan.costs.skip_bytes.size(); ++skip) {
    const SkipRoute& route = plan.costs.routes.skips[skip];
    top["skips"].push_back(
        {{"from_stage", route.from_stage}, {"to_stage", route.to_stage}, {"bytes", plan.costs.skip_bytes[skip]}});
  }
  return table_json(top);
}

Plan parse_plan(std::string_view json) { return PlanReader(json).read(); }

}  // namespace gpipe

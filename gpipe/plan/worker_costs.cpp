#include "gpipe/plan/worker_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "gpipe/error.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/json.h"
#include "gpipe/text/json_record.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::check_json_tables;
using detail::find_json_table;
using detail::json_fail_at;
using detail::JsonForm;
using detail::JsonReader;
using detail::JsonRecord;
using detail::JsonTable;
using detail::JsonTables;
using detail::parse_bytes;
using detail::parse_bytes_per_second;
using detail::parse_json_tables;
using detail::require;
using detail::table_json;

const JsonForm kWorkersForm = {"file of workers", {}, 0};
const JsonForm kWorkerCostsForm = {"worker", {"speed", "memory", "link"}, 0};
const JsonForm kLinkForm = {"link", {"latency", "bandwidth"}, 0};

// What the text of a field with a unit stands for.
template <typename Value>
Value read_unit(const JsonReader& record, const char* name, Value (*parse)(std::string_view), const char* example) {
  constexpr std::size_t kLongest = 60;
  const std::string text = record.string(name);
  try {
    if (text.size() <= kLongest) return parse(text);
  } catch (const InvalidArgument&) {  // NOLINT(bugprone-empty-catch) the message below says it, with the place
  }
  record.fail_value(record.field(name), fmt::format("a number, or one with a unit such as \"{}\"", example));
}

bool is_text(const JsonReader& record, const char* name) {
  return std::holds_alternative<std::string>(record.field(name).value);
}

LinkCosts read_link(const JsonReader& record, LinkCosts link) {
  if (record.has("latency")) link.latency_seconds = record.seconds("latency");
  if (record.has("bandwidth")) {
    link.bytes_per_second = is_text(record, "bandwidth")
                                ? read_unit(record, "bandwidth", parse_bytes_per_second, "10GiB")
                                : record.positive("bandwidth");
  }
  return link;
}

WorkerCosts read_worker_costs(std::string_view json, const JsonReader& record, const std::string& where,
                              const LinkCosts& for_all) {
  WorkerCosts worker;
  if (record.has("speed")) worker.speed = record.positive("speed");
  if (record.has("memory")) {
    worker.memory_limit_bytes =
        is_text(record, "memory") ? read_unit(record, "memory", parse_bytes, "16GiB") : record.bytes("memory");
  }
  if (record.has("link")) {
    const JsonRecord& link = record.field("link").object.front();
    worker.link_to_next = read_link(JsonReader(json, link, kLinkForm, where + "\"link\": "), for_all);
  }
  return worker;
}

nlohmann::ordered_json to_object(const WorkerCosts& worker, bool is_last) {
  nlohmann::ordered_json json = {{"speed", worker.speed}};
  if (worker.memory_limit_bytes) json["memory"] = *worker.memory_limit_bytes;
  if (!worker.link_to_next || is_last) return json;
  json["link"] = {{"latency", worker.link_to_next->latency_seconds}};
  if (std::isfinite(worker.link_to_next->bytes_per_second)) {
    json["link"]["bandwidth"] = worker.link_to_next->bytes_per_second;
  }
  return json;
}

}  // namespace

std::vector<WorkerCosts> workers_of_speed(const std::vector<double>& speeds) {
  std::vector<WorkerCosts> workers(speeds.size());
  for (std::size_t worker = 0; worker < speeds.size(); ++worker) workers[worker].speed = speeds[worker];
  return workers;
}

double speed_of(const std::vector<WorkerCosts>& workers, int worker) {
  return workers.empty() ? 1 : workers[worker].speed;
}

std::int64_t memory_limit_of(const std::vector<WorkerCosts>& workers, const std::optional<std::int64_t>& for_all,
                             int worker) {
  if (!workers.empty() && workers[worker].memory_limit_bytes) return *workers[worker].memory_limit_bytes;
  return for_all.value_or(kNoMemoryLimit);
}

LinkCosts link_between(const std::vector<WorkerCosts>& workers, const LinkCosts& for_all, int a, int b) {
  const bool is_known = std::any_of(workers.begin(), workers.end(),
                                    [](const WorkerCosts& worker) { return worker.link_to_next.has_value(); });
  if (!is_known) return for_all;
  LinkCosts way;
  for (int worker = std::min(a, b); worker < std::max(a, b); ++worker) {
    const LinkCosts& link = workers[worker].link_to_next ? *workers[worker].link_to_next : for_all;
    way.latency_seconds += link.latency_seconds;
    way.bytes_per_second = std::min(way.bytes_per_second, link.bytes_per_second);
  }
  return way;
}

std::vector<WorkerCosts> workers_by_stage(const std::vector<WorkerCosts>& workers, const LinkCosts& for_all,
                                          const std::vector<int>& worker_of_stage) {
  std::vector<WorkerCosts> stages;
  if (workers.empty()) return stages;
  for (std::size_t stage = 0; stage < worker_of_stage.size(); ++stage) {
    const int worker = worker_of_stage[stage];
    WorkerCosts& costs = stages.emplace_back(workers[worker]);
    if (costs.memory_limit_bytes) {
      *costs.memory_limit_bytes /= std::count(worker_of_stage.begin(), worker_of_stage.end(), worker);
    }
    costs.link_to_next.reset();
    if (stage + 1 < worker_of_stage.size()) {
      costs.link_to_next = link_between(workers, for_all, worker, worker_of_stage[stage + 1]);
    }
  }
  return stages;
}

void check_link(const std::string& name, const LinkCosts& link) {
  require(std::isfinite(link.latency_seconds) && link.latency_seconds >= 0,
          "{}.latency_seconds is {}; expected a finite number, 0 or more", name, link.latency_seconds);
  require(link.bytes_per_second > 0, "{}.bytes_per_second is {}; expected a number above 0", name,
          link.bytes_per_second);
}

void check_workers(const std::vector<WorkerCosts>& workers, int expected, const char* what) {
  require(workers.empty() || static_cast<int>(workers.size()) == expected,
          "workers has {} entries for {} {}; expected one for each, or none", workers.size(), expected, what);
  for (std::size_t index = 0; index < workers.size(); ++index) {
    const std::string name = fmt::format("workers[{}]", index);
    const WorkerCosts& worker = workers[index];
    require(std::isfinite(worker.speed) && worker.speed > 0, "{}.speed is {}; expected a number above 0", name,
            worker.speed);
    require(worker.memory_limit_bytes.value_or(0) >= 0, "{}.memory_limit_bytes is {}; expected 0 or more", name,
            worker.memory_limit_bytes.value_or(0));
    if (worker.link_to_next) check_link(name + ".link_to_next", *worker.link_to_next);
  }
}

std::vector<WorkerCosts> parse_workers(std::string_view json, const LinkCosts& for_all) {
  const JsonTables tables = parse_json_tables(json, {"link"});
  check_json_tables(json, tables, kWorkersForm, {"workers"});
  const JsonTable* table = find_json_table(tables, "workers");
  if (table == nullptr) json_fail_at(json, tables.top.offset, "\"workers\" is missing");
  if (table->records.empty()) {
    json_fail_at(json, table->name_offset, "\"workers\" is empty; expected at least one worker");
  }
  std::vector<WorkerCosts> workers;
  for (const JsonRecord& record : table->records) {
    const std::string where = fmt::format("worker {}: ", workers.size());
    const JsonReader reader(json, record, kWorkerCostsForm, where);
    const bool is_last = &record == &table->records.back();
    if (is_last && reader.has("link")) {
      reader.fail(reader.field("link").name_offset,
                  "\"link\" is the one to the next worker, and this is the last; leave it out");
    }
    workers.push_back(read_worker_costs(json, reader, where, for_all));
  }
  return workers;
}

std::string to_json(const std::vector<WorkerCosts>& workers) {
  nlohmann::ordered_json json;
  json["workers"] = nlohmann::ordered_json::array();
  for (const WorkerCosts& worker : workers) json["workers"].push_back(to_object(worker, &worker == &workers.back()));
  return table_json(json);
}

}  // namespace gpipe

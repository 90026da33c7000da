#include "cli/certificate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "cli/quantity.h"
#include "cli/schedule_summary.h"
#include "gpipe/text/json_text.h"
#include "gpipe/text/table.h"

namespace gpipe::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostRows = 40;

std::vector<Action> all_actions(const Schedule& schedule) {
  std::vector<Action> all;
  for (const std::vector<Action>& actions : schedule.workers) all.insert(all.end(), actions.begin(), actions.end());
  return all;
}

// Flows that differ only in where along the chain they are: s -> s + step for `count` stages from `first`, with free
// capacities that stay, or rise or fall by one a stage.
struct FlowRun {
  FlowCertificate first;
  FlowCertificate last;
  int count = 1;
};

bool continues(const FlowRun& run, const FlowCertificate& next) {
  const FlowCertificate& last = run.last;
  if (last.flow.kind != next.flow.kind || last.is_local != next.is_local || last.live_capacity != next.live_capacity ||
      last.free_capacity.has_value() != next.free_capacity.has_value() || next.flow.source != last.flow.source + 1 ||
      next.flow.destination != last.flow.destination + 1) {
    return false;
  }
  if (!next.free_capacity) return true;
  const int step = *next.free_capacity - *last.free_capacity;
  const int all_steps = *last.free_capacity - *run.first.free_capacity;
  return std::abs(step) <= 1 && (run.count == 1 || all_steps == step * (run.count - 1));
}

std::vector<FlowRun> collapse(std::vector<FlowCertificate> flows) {
  std::stable_sort(flows.begin(), flows.end(), [](const FlowCertificate& a, const FlowCertificate& b) {
    return std::tie(a.flow.kind, a.flow.source) < std::tie(b.flow.kind, b.flow.source);
  });
  std::vector<FlowRun> runs;
  for (const FlowCertificate& flow : flows) {
    if (!runs.empty() && continues(runs.back(), flow)) {
      runs.back().last = flow;
      ++runs.back().count;
    } else {
      runs.push_back({flow, flow, 1});
    }
  }
  return runs;
}

// "activation s -> s+1 for s = 0..6"
std::string describe_flows(const FlowRun& run) {
  const std::string one = to_string(run.first.flow);
  if (run.count == 1) return one;
  const std::string kind = one.substr(0, one.find_last_not_of("0123456789-> ") + 1);
  return fmt::format("{} s -> s{:+} for s = {}..{}", kind, run.first.flow.destination - run.first.flow.source,
                     run.first.flow.source, run.last.flow.source);
}

std::string describe_free_capacity(const FlowRun& run) {
  if (!run.first.free_capacity) return "not computed";
  if (run.first.free_capacity == run.last.free_capacity) return fmt::format("{}", *run.first.free_capacity);
  return fmt::format("{}..{}", *run.first.free_capacity, *run.last.free_capacity);
}

std::string flow_table(const std::vector<FlowCertificate>& flows) {
  const std::vector<FlowRun> runs = collapse(flows);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t index = 0; index < std::min(runs.size(), kMostRows); ++index) {
    const FlowRun& run = runs[index];
    rows.push_back({describe_flows(run), fmt::format("{}", run.first.live_capacity), describe_free_capacity(run),
                    run.first.is_local ? "within a worker" : ""});
  }
  std::string table = to_table({{"flow", Align::kLeft}, {"live"}, {"free"}, {"", Align::kLeft}}, rows);
  if (runs.size() > kMostRows)
    table += fmt::format("... and {} more rows; --json has them all\n", runs.size() - kMostRows);
  return table;
}

// "8 on every worker", "4, 3, 2, 1", "32, 31, 30, ..., 3, 2, 1"
template <typename Value, typename Format>
std::string per_worker(const std::vector<Value>& values, Format format) {
  constexpr std::size_t kMostValues = 10;
  constexpr std::size_t kEnd = 3;
  const bool all_equal = std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
  if (values.size() > 1 && all_equal) return fmt::format("{} on every worker", format(values.front()));
  std::vector<std::string> shown;
  for (std::size_t worker = 0; worker < values.size(); ++worker) {
    const bool is_inside = worker >= kEnd && worker + kEnd < values.size();
    if (values.size() <= kMostValues || !is_inside) shown.push_back(format(values[worker]));
    if (values.size() > kMostValues && worker == kEnd) shown.emplace_back("...");
  }
  return fmt::format("{}", fmt::join(shown, ", "));
}

std::string describe_survival(const char* transport, const Survival& survival) {
  std::string lines = fmt::format("{:<20}{}\n", transport, survival.survives ? "survives" : "fails:");
  for (const std::string& edge : survival.counter_example) lines += fmt::format("  {}\n", edge);
  return lines;
}

std::string describe_accumulation(const Certificate& certificate) {
  if (certificate.forward_only) return "no gradients: forwards only";
  if (!certificate.canonical) return "not canonical: " + certificate.non_canonical_because;
  return "canonical: ascending micro-batch order in every stage";
}

ordered_json to_json(const Survival& survival) {
  return {{"survives", survival.survives}, {"counter_example", survival.counter_example}};
}

ordered_json size_json(const Schedule& schedule) {
  return {{"num_workers", schedule.num_workers()},
          {"num_stages", schedule.num_stages},
          {"num_micro_batches", schedule.num_micro_batches},
          {"num_actions", schedule.num_actions()}};
}

}  // namespace

std::string certificate_report(const Schedule& schedule, const Certificate& certificate) {
  std::string report = "proven: runs to its end for any timing\n\n";
  report += fmt::format("{:<20}{}\n", "size",
                        describe_size(schedule.num_workers(), schedule.num_stages, schedule.num_micro_batches));
  report += fmt::format("{:<20}{} ({})\n", "actions", schedule.num_actions(), count_kinds(all_actions(schedule)));
  report += fmt::format("{:<20}{}\n", "accumulation", describe_accumulation(certificate));
  report +=
      fmt::format("{:<20}{} (in micro-batches)\n", "peak activations",
                  per_worker(certificate.peak_activations, [](double peak) { return fmt::format("{:.4g}", peak); }));
  if (!certificate.peak_bytes.empty()) {
    report += fmt::format("{:<20}{}\n", "peak bytes", per_worker(certificate.peak_bytes, format_bytes));
  }
  if (!certificate.flows.empty()) {
    report += "\nMessages each flow must hold to be live (no deadlock) and free (no sender waits)\n";
    report += flow_table(certificate.flows);
  }
  report += "\nOn a transport that promises less than a channel for every flow\n";
  report += describe_survival("rendezvous sends", certificate.rendezvous);
  report += describe_survival("one channel a pair", certificate.one_channel_per_pair);
  return report;
}

std::string certificate_json(const Schedule& schedule, const Certificate& certificate) {
  ordered_json json = {{"valid", true}};
  json.update(size_json(schedule));
  json["forward_only"] = certificate.forward_only;
  json["canonical"] = certificate.canonical;
  json["non_canonical_because"] = certificate.non_canonical_because;
  json["peak_activations"] = certificate.peak_activations;
  json["peak_bytes"] = certificate.peak_bytes.empty() ? ordered_json(nullptr) : ordered_json(certificate.peak_bytes);
  json["flows"] = ordered_json::array();
  for (const FlowCertificate& flow : certificate.flows) {
    json["flows"].push_back({{"flow", to_string(flow.flow)},
                             {"source", flow.flow.source},
                             {"destination", flow.flow.destination},
                             {"is_local", flow.is_local},
                             {"live_capacity", flow.live_capacity},
                             {"free_capacity", flow.free_capacity ? ordered_json(*flow.free_capacity) : nullptr}});
  }
  json["rendezvous"] = to_json(certificate.rendezvous);
  json["one_channel_per_pair"] = to_json(certificate.one_channel_per_pair);
  return indented_json(json);
}

std::string refusal_json(const Schedule& schedule, const ScheduleError& error) {
  ordered_json json = {{"valid", false}};
  json.update(size_json(schedule));
  json["rule"] = name(error.rule());
  json["message"] = error.what();
  json["actions"] = ordered_json::array();
  for (const Action& action : error.actions()) json["actions"].push_back(to_string(action));
  json["cycle"] = error.cycle();
  return indented_json(json);
}

}  // namespace gpipe::cli

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "cli/schedule_options.h"
#include "cli/terminal.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/text/json.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/printable.h"

namespace gpipe::cli {
namespace {

using detail::Align;
using detail::indented_json;

using nlohmann::ordered_json;

constexpr std::size_t kMostRows = 40;

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
  std::string table = detail::to_table({{"flow", Align::kLeft}, {"live"}, {"free"}, {"", Align::kLeft}}, rows);
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

std::string certificate_report(const Schedule& schedule, const Certificate& certificate) {
  std::string report = "proven: runs to its end for any timing\n\n";
  report += fmt::format("{:<20}{}\n", "size",
                        describe_size(schedule.num_workers(), schedule.num_stages, schedule.num_micro_batches));
  report += fmt::format("{:<20}{} ({})\n", "actions", schedule.num_actions(), count_kinds(schedule.workers));
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
  report += describe_survival("one engine a worker", certificate.one_engine);
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
  json["one_engine"] = to_json(certificate.one_engine);
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

struct CheckCommand {
  std::string file;
  Routes routes;
  StageBytes bytes;
  std::optional<std::int64_t> memory_limit_bytes;
  bool canonical = false;
  bool json = false;
};

SkipRoute parse_skip(std::string_view word) {
  const auto [from, to] = parse_pair(word);
  return {from, to};
}

TieRoute parse_tie(std::string_view word) {
  const auto [owner, stage] = parse_pair(word);
  return {owner, stage};
}

ValidateOptions make_options(const CheckCommand& command, const Schedule& schedule) {
  ValidateOptions options;
  options.routes = command.routes;
  if (command.memory_limit_bytes) {
    options.memory_limit_bytes.assign(schedule.num_workers(), *command.memory_limit_bytes);
  }
  const StageBytes& bytes = command.bytes;
  if (bytes.static_bytes > 0 || bytes.activation_bytes > 0 || bytes.input_bytes > 0) {
    options.stages.assign(static_cast<std::size_t>(schedule.num_stages), bytes);
  } else if (command.memory_limit_bytes) {
    throw UsageError("--memory-limit needs to know what a stage holds",
                     "add --activation-bytes, --static-bytes or --input-bytes");
  }
  return options;
}

int refuse(const CheckCommand& command, const Schedule& schedule, const ScheduleError& error) {
  print(command.json ? refusal_json(schedule, error) : fmt::format("{}\n", detail::printable(error.what())));
  flush_output();
  print_error(fmt::format("{} is refused: {}", input_name(command.file), name(error.rule())));
  return kNegativeAnswer;
}

int run_check(const CheckCommand& command) {
  refuse_if(command.file.empty(), "which schedule? No FILE is given", "name a file, or '-' for standard input");
  const Schedule schedule = read_schedule(command.file);
  const ValidateOptions options = make_options(command, schedule);
  try {
    const Certificate certificate = validate(schedule, options);
    print(command.json ? certificate_json(schedule, certificate) : certificate_report(schedule, certificate));
    if (!command.canonical || certificate.canonical) return kDone;
    flush_output();
    print_error(fmt::format("{} is not canonical: {}", input_name(command.file), certificate.non_canonical_because));
    return kNegativeAnswer;
  } catch (const ScheduleError& error) {
    return refuse(command, schedule, error);
  }
}

void add_model_options(CLI::App& app, CheckCommand& command) {
  const OptionGroup model{app, "Model"};
  model.add_each("FROM:TO", "--skip", command.routes.skips, parse_skip,
                 "A skip connection between two stages; may be repeated");
  model.add_each("OWNER:STAGE", "--tie", command.routes.ties, parse_tie,
                 "A weight of stage OWNER that STAGE uses too; may be repeated");
  const OptionGroup memory{app, "Memory"};
  memory.add("SIZE", "--memory-limit", command.memory_limit_bytes, parse_bytes, "Refuse if a worker could hold more");
  memory.add("SIZE", "--static-bytes", command.bytes.static_bytes, parse_bytes,
             "Weights, gradients and optimizer state of each stage [0]");
  memory.add("SIZE", "--activation-bytes", command.bytes.activation_bytes, parse_bytes,
             "Activations of a micro-batch in each stage [0]");
  memory.add("SIZE", "--input-bytes", command.bytes.input_bytes, parse_bytes,
             "Input of a micro-batch to each stage, kept for recompute [0]");
}

}  // namespace

void add_check_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<CheckCommand>();
  CLI::App& sub = *app.add_subcommand("check");
  sub.add_option("FILE", command->file, "Text or CSV, told apart by content; '-' reads standard input");
  add_model_options(sub, *command);
  const OptionGroup output{sub, "Output"};
  output.add_flag("--canonical", command->canonical,
                  "Exit with 1 unless every stage accumulates gradients in ascending micro-batch order");
  output.add_flag("--json", command->json, "Print one JSON object");
  set_help(sub, {"gpipe check FILE|- [options]", "Prove that a schedule ends whatever the timing, or say why not.",
                 "Exit code 0 and the certificate, or 1 and the counter-example.",
                 "  gpipe check schedule.txt\n"
                 "  gpipe schedule zb-v --stages 4 --micro-batches 8 --format csv | gpipe check -\n"
                 "  gpipe check unet.txt --skip 0:3 --skip 1:2\n"
                 "  gpipe check schedule.txt --memory-limit 2GiB --activation-bytes 100MiB"});
  sub.callback([&chosen, command] { chosen = [command] { return run_check(*command); }; });
}

}  // namespace gpipe::cli

#include "train/capacity_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "gpipe/text/json.h"
#include "gpipe/text/layout.h"
#include "train/capacity.h"
#include "train/option_group.h"

namespace gpipe::train {
namespace {

struct CapacityCommand {
  std::string model = "all";
  bool paper = false;
  bool predict_only = false;
  bool json = false;
  std::optional<std::int64_t> memory_bytes;
};

constexpr std::int64_t kMemoryBytes = std::int64_t{96} << 20;
constexpr std::int64_t kLeastMemoryBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMostMemoryBytes = std::int64_t{1} << 40;

// A row of the paper's Table 1, to compare with.
struct PaperRow {
  const char* size;
  const char* parameters;
  double ratio;  // of parameters, to naive
};

struct Table {
  std::string title;
  bool trains = false;  // not only plans
  std::string unit;
  std::int64_t memory_bytes = 0;
  std::vector<CapacityRow> rows;
  std::vector<int> depths;      // of AmoebaNet-D, its L
  std::vector<PaperRow> paper;  // a row each
};

std::string parse_model(std::string_view word) {
  constexpr const char* kModels[] = {"all", "transformer", "amoebanet"};
  return kModels[cli::parse_choice(word, {"all", "transformer", "amoebanet"})];
}

// On a terminal only: one line that is written over.
class TrialLine {
 public:
  void operator()(const std::string& text) {
    if (isatty(STDERR_FILENO) == 0) return;
    std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
    std::fflush(stderr);
    shown_ = true;
  }
  ~TrialLine() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }

 private:
  bool shown_ = false;
};

CapacityRow find(CapacitySearch& search, const CapacitySetting& setting, const CapacityCommand& command) {
  return command.paper || command.predict_only ? search.plan_row(setting) : search.measure(setting);
}

Table transformer_table(const CapacityCommand& command, TrialLine& line) {
  Table table;
  table.trains = !command.paper && !command.predict_only;
  table.title = command.paper ? "Transformer-L: d 2048, feed-forward 8192, 32 heads, 32k words, sequence 1024, batch 32"
                              : "Transformer-L: d 128, feed-forward 512, 4 heads, 256 words, sequence 64, batch 32";
  table.unit = "L";
  table.memory_bytes = command.paper ? std::int64_t{16'000'000'000} : command.memory_bytes.value_or(kMemoryBytes);
  CapacitySearch search(command.paper ? paper_transformer() : small_transformer(), table.memory_bytes,
                        command.paper ? at::kMeta : at::kCPU);
  search.on_trial = std::ref(line);
  const char* schedule = command.paper ? "gpipe" : "1f1b";
  std::vector<CapacitySetting> settings = {naive()};
  for (const int stages : command.paper ? std::vector<int>{1, 8, 32, 128} : std::vector<int>{1, 2, 4, 8}) {
    settings.push_back(pipelined(stages, 32, schedule));
  }
  if (command.paper) {
    table.paper = {{"3", "282.2M", 1},
                   {"13", "785.8M", 2.8},
                   {"103", "5.3B", 18.8},
                   {"415", "21.0B", 74.4},
                   {"1663", "83.9B", 298}};
  } else {
    table.paper = {{"3", "282.2M", 1}, {"13", "785.8M", 2.8}, {}, {}, {"103", "5.3B", 18.8}};
  }
  for (const CapacitySetting& setting : settings) {
    table.rows.push_back(find(search, setting, command));
    table.depths.push_back(0);
  }
  return table;
}

Table amoebanet_table(const CapacityCommand& command, TrialLine& line) {
  Table table;
  table.trains = !command.paper && !command.predict_only;
  table.title = command.paper ? "AmoebaNet-D(L, D): 224 x 224, batch 128" : "AmoebaNet-D(L, D): 32 x 32, batch 32";
  table.unit = "D";
  table.memory_bytes = command.paper ? std::int64_t{8'000'000'000} : command.memory_bytes.value_or(kMemoryBytes);
  struct Setting {
    CapacitySetting setting;
    int depth;
  };
  const int group = command.paper ? 18 : 6;
  const int micro_batches = 32;
  const char* schedule = command.paper ? "gpipe" : "1f1b";
  const Setting settings[] = {{naive(), group},
                              {pipelined(1, micro_batches, schedule), group},
                              {pipelined(2, micro_batches, schedule), group},
                              {pipelined(4, micro_batches, schedule), 2 * group},
                              {pipelined(8, micro_batches, schedule), 4 * group}};
  table.paper = {{"18, 208", "82M", 1},
                 {"18, 416", "318M", 3.9},
                 {"18, 544", "542M", 6.7},
                 {"36, 544", "1.05B", 13.0},
                 {"72, 512", "1.8B", 22.6}};
  for (const Setting& setting : settings) {
    CapacitySearch search(command.paper ? paper_amoebanet(setting.depth) : small_amoebanet(setting.depth),
                          table.memory_bytes, command.paper ? at::kMeta : at::kCPU);
    search.on_trial = std::ref(line);
    table.rows.push_back(find(search, setting.setting, command));
    table.depths.push_back(setting.depth);
  }
  return table;
}

int size_of(const Table& table, const CapacityRow& row) {
  return table.trains ? row.measured_size : row.predicted_size;
}

double ratio_of(const Table& table, const CapacityRow& row) {
  const auto first = static_cast<double>(table.rows.front().num_parameters);
  return first > 0 ? static_cast<double>(row.num_parameters) / first : 0;
}

std::string size_text(int depth, int size) {
  if (size == 0) return "none";
  return depth > 0 ? fmt::format("{}, {}", depth, size) : fmt::format("{}", size);
}

std::string parameters_text(std::int64_t count) {
  const auto value = static_cast<double>(count);
  return value >= 1e9 ? fmt::format("{:.2f}B", value / 1e9) : fmt::format("{:.2f}M", value / 1e6);
}

// Nothing if there is nothing to compare with.
std::string ratio_text(double ratio) { return ratio > 0 ? fmt::format("{:.1f}x", ratio) : ""; }

std::string to_text(const Table& table) {
  const std::string size = table.unit == "D" ? "L, D" : "L";
  const std::vector<Column> columns = {{"", Align::kLeft},  {table.trains ? size + " trained" : ""},
                                       {size + " planned"}, {"parameters"},
                                       {"of naive"},        {"parameter bytes"},
                                       {"fullest stage"},   {"paper: " + size},
                                       {"parameters"},      {"of naive"}};
  std::vector<std::vector<std::string>> rows;
  for (std::size_t index = 0; index < table.rows.size(); ++index) {
    const CapacityRow& row = table.rows[index];
    const PaperRow& paper = table.paper[index];
    const std::int64_t fullest =
        row.peak_bytes.empty() ? 0 : *std::max_element(row.peak_bytes.begin(), row.peak_bytes.end());
    const bool in_paper = paper.size != nullptr;
    const bool any = size_of(table, row) > 0;  // else there is no model to tell of
    rows.push_back({row.setting.name, table.trains ? size_text(table.depths[index], row.measured_size) : "",
                    size_text(table.depths[index], row.predicted_size), any ? parameters_text(row.num_parameters) : "",
                    ratio_text(ratio_of(table, row)), any ? cli::format_bytes(row.parameter_bytes) : "",
                    any ? cli::format_bytes(fullest) : "", in_paper ? paper.size : "", in_paper ? paper.parameters : "",
                    in_paper ? ratio_text(paper.ratio) : ""});
  }
  return fmt::format("{}; {} an accelerator, schedule {}, 32 micro-batches, RMSprop\n{}", table.title,
                     cli::format_bytes(table.memory_bytes), table.rows.back().setting.schedule,
                     to_table(columns, rows));
}

nlohmann::ordered_json to_json(const Table& table) {
  nlohmann::ordered_json json = {
      {"model", table.title}, {"memory_bytes", table.memory_bytes}, {"rows", nlohmann::ordered_json::array()}};
  for (std::size_t index = 0; index < table.rows.size(); ++index) {
    const CapacityRow& row = table.rows[index];
    nlohmann::ordered_json entry = {{"name", row.setting.name},
                                    {"stages", row.setting.num_stages},
                                    {"micro_batches", row.setting.num_micro_batches},
                                    {"schedule", row.setting.schedule},
                                    {"recompute", name(row.setting.recompute)}};
    if (table.depths[index] > 0) entry["L"] = table.depths[index];
    entry[table.unit] = size_of(table, row);
    entry["planned_" + table.unit] = row.predicted_size;
    if (table.trains) entry["trained_" + table.unit] = row.measured_size;
    entry["parameters"] = row.num_parameters;
    entry["of_naive"] = ratio_of(table, row);
    entry["parameter_bytes"] = row.parameter_bytes;
    entry["peak_bytes"] = row.peak_bytes;
    if (table.paper[index].size != nullptr) {
      entry["paper"] = {{"size", table.paper[index].size},
                        {"parameters", table.paper[index].parameters},
                        {"of_naive", table.paper[index].ratio}};
    }
    json["rows"].push_back(std::move(entry));
  }
  return json;
}

int run_capacity(const CapacityCommand& command) {
  if (command.paper && command.memory_bytes) {
    throw cli::UsageError("--memory goes with virtual accelerators, --paper has the paper's", "leave out one of them");
  }
  if (command.memory_bytes && *command.memory_bytes < kLeastMemoryBytes) {
    throw cli::UsageError(fmt::format("--memory {}: not even the smallest model fits", *command.memory_bytes),
                          "give at least 1MiB");
  }
  if (command.memory_bytes && *command.memory_bytes > kMostMemoryBytes) {
    throw cli::UsageError(fmt::format("--memory {}: no accelerator has so much", *command.memory_bytes),
                          "give less --memory, at most 1TiB");
  }
  std::vector<Table> tables;
  {
    TrialLine line;
    if (command.model != "amoebanet") tables.push_back(transformer_table(command, line));
    if (command.model != "transformer") tables.push_back(amoebanet_table(command, line));
  }
  if (command.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Table& table : tables) json.push_back(to_json(table));
    cli::print(indented_json(nlohmann::ordered_json{{"tables", json}}));
    return cli::kDone;
  }
  for (const Table& table : tables) cli::print((&table == tables.data() ? "" : "\n") + to_text(table));
  return cli::kDone;
}

}  // namespace

void add_capacity_command(CLI::App& app, cli::Run& chosen) {
  auto command = std::make_shared<CapacityCommand>();
  CLI::App& sub = *app.add_subcommand("capacity");
  const OptionGroup options{sub, "Options"};
  options.add("MODEL", "--model", command->model, parse_model, "transformer, amoebanet or all [all]");
  options.add("SIZE", "--memory", command->memory_bytes, cli::parse_bytes, "Of each virtual accelerator [96MiB]");
  options.add_flag("--paper", command->paper,
                   "The paper's own sizes, 16 and 8 GB, up to 128 accelerators: planned, without memory");
  options.add_flag("--predict-only", command->predict_only, "Plan, but do not train");
  options.add_flag("--json", command->json, "Print one JSON object");
  cli::set_help(sub,
                {"gpipe capacity [options]", "Find the largest models that fit given accelerators",
                 "Trains models of growing size on virtual accelerators, whose memory is enforced, until one does not\n"
                 "fit any more; next to it what a plan predicts, and Table 1 of the GPipe paper.",
                 "  gpipe capacity --model transformer\n"
                 "  gpipe capacity --paper --json"});
  sub.callback([&chosen, command] { chosen = [command] { return run_capacity(*command); }; });
}

}  // namespace gpipe::train

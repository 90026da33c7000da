#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "train/capacity.h"
#include "train/commands.h"
#include "train/option_group.h"
#include "train/script_sample.h"

namespace gpipe::train {
namespace {

struct CapacityCommand {
  std::string model = "all";
  ScriptSampleOptions script;
  bool paper = false;
  bool predict_only = false;
  bool json = false;
  std::optional<std::int64_t> memory_bytes;
};

constexpr std::int64_t kMemoryBytes = std::int64_t{96} << 20;
constexpr std::int64_t kLeastMemoryBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMostMemoryBytes = std::int64_t{1} << 40;

constexpr int kTableMicroBatches = 32;

// A row of the paper's Table 1, to compare with.
struct PaperRow {
  const char* size = nullptr;  // null: the paper has no such row
  const char* parameters = nullptr;
  double ratio = 0;  // of parameters, to naive
};

struct Row {
  CapacityRow found;  // its setting is known before
  int depth = 0;      // of AmoebaNet-D, its L
  PaperRow paper;
};

struct Table {
  std::string title;
  std::string unit;  // of the size that is looked for
  std::int64_t memory_bytes = 0;
  std::function<ModelFamily(int depth)> family;
  std::vector<Row> rows;
  bool trains = false;  // not only plans
};

std::string parse_model(std::string_view word) {
  cli::parse_choice(word, {"all", "transformer", "amoebanet"});
  return std::string(word);
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

// One accelerator as it is, and pipelines of several.
std::vector<Row> make_rows(const char* schedule, const std::vector<int>& num_stages, const std::vector<int>& depths,
                           const std::vector<PaperRow>& paper) {
  std::vector<Row> rows;
  for (std::size_t index = 0; index < paper.size(); ++index) {
    Row row;
    row.found.setting = index == 0 ? naive() : pipelined(num_stages[index - 1], kTableMicroBatches, schedule);
    row.depth = depths.empty() ? 0 : depths[index];
    row.paper = paper[index];
    rows.push_back(row);
  }
  return rows;
}

Table transformer_table(const CapacityCommand& command) {
  if (command.paper) {
    return {"Transformer-L: d 2048, feed-forward 8192, 32 heads, 32k words, sequence 1024, batch 32", "L",
            16'000'000'000, [](int) { return paper_transformer(); },
            make_rows("gpipe", {1, 8, 32, 128}, {},
                      {{"3", "282.2M", 1},
                       {"13", "785.8M", 2.8},
                       {"103", "5.3B", 18.8},
                       {"415", "21.0B", 74.4},
                       {"1663", "83.9B", 298}})};
  }
  return {
      "Transformer-L: d 128, feed-forward 512, 4 heads, 256 words, sequence 64, batch 32", "L",
      command.memory_bytes.value_or(kMemoryBytes), [](int) { return small_transformer(); },
      make_rows("1f1b", {1, 2, 4, 8}, {}, {{"3", "282.2M", 1}, {"13", "785.8M", 2.8}, {}, {}, {"103", "5.3B", 18.8}})};
}

Table amoebanet_table(const CapacityCommand& command) {
  const int depth = command.paper ? 18 : 6;
  const std::vector<Row> rows =
      make_rows(command.paper ? "gpipe" : "1f1b", {1, 2, 4, 8}, {depth, depth, depth, 2 * depth, 4 * depth},
                {{"18, 208", "82M", 1},
                 {"18, 416", "318M", 3.9},
                 {"18, 544", "542M", 6.7},
                 {"36, 544", "1.05B", 13.0},
                 {"72, 512", "1.8B", 22.6}});
  if (command.paper) return {"AmoebaNet-D(L, D): 224 x 224, batch 128", "D", 8'000'000'000, paper_amoebanet, rows};
  return {"AmoebaNet-D(L, D): 32 x 32, batch 32", "D", command.memory_bytes.value_or(kMemoryBytes), small_amoebanet,
          rows};
}

// How large a mini-batch one model can be trained on.
Table script_table(const CapacityCommand& command) {
  const auto sample = std::make_shared<ScriptSample>(command.script);
  ModelFamily family;
  family.name = command.script.torchscript;
  family.unit = "N";
  family.chain = [sample](int) { return sample->chain(); };
  family.size_step = kTableMicroBatches;       // a sample more for each micro-batch
  family.least_size = 2 * kTableMicroBatches;  // batch norm needs two
  family.size_is_batch = true;
  family.inputs = [sample](int rows, at::Device device) { return sample->inputs(rows, device); };
  family.targets = [sample](int rows, at::Device device) { return sample->targets(rows, device); };
  family.loss = [sample](const at::Tensor& output, const at::Tensor& target) {
    return sample->loss({output}, {target});
  };
  std::vector<int> num_stages;
  for (const int stages : {1, 2, 4, 8}) {
    if (stages <= sample->chain().size()) num_stages.push_back(stages);
  }
  return {fmt::format("{}: N samples in a mini-batch", command.script.torchscript), "N",
          command.memory_bytes.value_or(kMemoryBytes), [family](int) { return family; },
          make_rows("1f1b", num_stages, {}, std::vector<PaperRow>(num_stages.size() + 1))};
}

// Finds what fits, row by row. Rows of one depth share what was measured of its layers.
void fill(Table& table, const CapacityCommand& command, TrialLine& line) {
  table.trains = !command.paper && !command.predict_only;
  std::optional<CapacitySearch> search;
  int depth = -1;
  for (Row& row : table.rows) {
    if (row.depth != depth) {
      search.emplace(table.family(row.depth), table.memory_bytes, command.paper ? at::kMeta : at::kCPU);
      search->on_trial = std::ref(line);
      depth = row.depth;
    }
    row.found = table.trains ? search->measure(row.found.setting) : search->plan_row(row.found.setting);
  }
}

int size_of(const Table& table, const CapacityRow& row) {
  return table.trains ? row.measured_size : row.predicted_size;
}

double ratio_of(const Table& table, const CapacityRow& row) {
  const auto first = static_cast<double>(table.rows.front().found.num_parameters);
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
  std::vector<std::vector<std::string>> cells;
  for (const Row& row : table.rows) {
    const CapacityRow& found = row.found;
    const auto fullest = std::max_element(found.peak_bytes.begin(), found.peak_bytes.end());
    const bool any = size_of(table, found) > 0;  // else there is no model to tell of
    const bool in_paper = row.paper.size != nullptr;
    cells.push_back({row.found.setting.name, table.trains ? size_text(row.depth, found.measured_size) : "",
                     size_text(row.depth, found.predicted_size), any ? parameters_text(found.num_parameters) : "",
                     ratio_text(ratio_of(table, found)), any ? cli::format_bytes(found.parameter_bytes) : "",
                     any ? cli::format_bytes(fullest == found.peak_bytes.end() ? 0 : *fullest) : "",
                     in_paper ? row.paper.size : "", in_paper ? row.paper.parameters : "",
                     ratio_text(row.paper.ratio)});
  }
  return fmt::format("{}; {} an accelerator, schedule {}, {} micro-batches, RMSprop\n{}", table.title,
                     cli::format_bytes(table.memory_bytes), table.rows.back().found.setting.schedule,
                     kTableMicroBatches,
                     cli::to_table({"<", size + " trained", size + " planned", "parameters", "of naive",
                                    "parameter bytes", "fullest stage", "paper: " + size, "parameters", "of naive"},
                                   cells));
}

nlohmann::ordered_json to_json(const Table& table) {
  nlohmann::ordered_json json = {
      {"model", table.title}, {"memory_bytes", table.memory_bytes}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : table.rows) {
    const CapacityRow& found = row.found;
    nlohmann::ordered_json entry = {{"name", row.found.setting.name},
                                    {"stages", row.found.setting.num_stages},
                                    {"micro_batches", row.found.setting.num_micro_batches},
                                    {"schedule", row.found.setting.schedule},
                                    {"recompute", name(row.found.setting.recompute)}};
    if (row.depth > 0) entry["L"] = row.depth;
    entry[table.unit] = size_of(table, found);
    entry["planned_" + table.unit] = found.predicted_size;
    if (table.trains) entry["trained_" + table.unit] = found.measured_size;
    entry["parameters"] = found.num_parameters;
    entry["of_naive"] = ratio_of(table, found);
    entry["parameter_bytes"] = found.parameter_bytes;
    entry["peak_bytes"] = found.peak_bytes;
    if (row.paper.size != nullptr) {
      entry["paper"] = {{"size", row.paper.size}, {"parameters", row.paper.parameters}, {"of_naive", row.paper.ratio}};
    }
    json["rows"].push_back(std::move(entry));
  }
  return json;
}

int run_capacity(const CapacityCommand& command) {
  check_script_sample(command.script);
  if (command.paper && !command.script.torchscript.empty()) {
    throw cli::UsageError("--paper has the paper's own models, and --torchscript is another", "leave out one of them");
  }
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
    const bool has_script = !command.script.torchscript.empty();
    if (has_script) tables.push_back(script_table(command));
    if (!has_script && command.model != "amoebanet") tables.push_back(transformer_table(command));
    if (!has_script && command.model != "transformer") tables.push_back(amoebanet_table(command));
    for (Table& table : tables) fill(table, command, line);
  }
  if (command.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Table& table : tables) json.push_back(to_json(table));
    cli::print(nlohmann::ordered_json{{"tables", json}}.dump(2) + "\n");
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
  CLI::Option* const model =
      options.add_default("MODEL", "--model", command->model, parse_model, "transformer, amoebanet or all");
  add_script_sample_options(options, command->script, model);
  options.add_default("N", "--image", command->script.image_size, cli::parse_count, "Size of its made-up images");
  options.add_default("N", "--channels", command->script.num_channels, cli::parse_count, "Of them");
  for (const char* name : {"--image", "--channels"}) sub.get_option(name)->needs(sub.get_option("--torchscript"));
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
                 "  gpipe capacity --torchscript model.pt --image 64 --memory 200MiB\n"
                 "  gpipe capacity --paper --json"});
  sub.callback([&chosen, command] { chosen = [command] { return run_capacity(*command); }; });
}

}  // namespace gpipe::train

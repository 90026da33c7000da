#include "train/bench_emulation_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/quantity.h"
#include "cli/text.h"

namespace gpipe::train {
namespace {

using EmulationJson = nlohmann::ordered_json;

// A published throughput over that of K=2, M=1, or, of `slow`, over that of K=2, M=32.
struct Published {
  const char* workload;
  int num_stages;
  int num_micro_batches;
  double paper;       // Table 2; 0: there is none
  double slow;        // Table 3
  double torchgpipe;  // from its samples a second, whose batches are not the same in all rows
};

constexpr Published kPublished[] = {
    {"transformer", 2, 1, 1, 0, 0},      {"transformer", 4, 1, 1.07, 0, 0},     {"transformer", 8, 1, 1.3, 0, 0},
    {"transformer", 2, 4, 1.7, 0, 0},    {"transformer", 4, 4, 3.2, 0, 0},      {"transformer", 8, 4, 4.8, 0, 0},
    {"transformer", 2, 32, 1.8, 1, 0},   {"transformer", 4, 32, 3.4, 1.8, 0},   {"transformer", 8, 32, 6.3, 3.3, 0},
    {"amoebanet", 2, 1, 1, 0, 1},        {"amoebanet", 4, 1, 1.13, 0, 1.00},    {"amoebanet", 8, 1, 1.38, 0, 0.93},
    {"amoebanet", 2, 4, 1.07, 0, 1.54},  {"amoebanet", 4, 4, 1.26, 0, 1.67},    {"amoebanet", 8, 4, 1.72, 0, 2.63},
    {"amoebanet", 2, 32, 1.21, 1, 1.78}, {"amoebanet", 4, 32, 1.84, 1.7, 2.71}, {"amoebanet", 8, 32, 3.48, 2.7, 4.96},
};

Published published_for(const Emulation& emulation, const EmulatedStep& step) {
  for (const Published& published : kPublished) {
    if (emulation.workload == published.workload && published.num_stages == step.num_stages &&
        published.num_micro_batches == step.num_micro_batches) {
      return published;
    }
  }
  return {"", 0, 0, 0, 0, 0};
}

struct TitledTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> cells;
};

std::string ratio_or_nothing(double ratio) { return ratio > 0 ? fmt::format("{:.2f}", ratio) : ""; }

const EmulatedStep& with_fewest_workers(const Emulation& emulation, int num_micro_batches) {
  const EmulatedStep* found = nullptr;
  for (const EmulatedStep& step : emulation.steps) {
    if (step.num_micro_batches != num_micro_batches) continue;
    if (found == nullptr || step.num_stages < found->num_stages) found = &step;
  }
  return *found;
}

int extreme_micro_batches(const Emulation& emulation, bool most) {
  int count = emulation.steps.front().num_micro_batches;
  for (const EmulatedStep& step : emulation.steps) {
    count = most ? std::max(count, step.num_micro_batches) : std::min(count, step.num_micro_batches);
  }
  return count;
}

TitledTable throughput_table(const Emulation& emulation) {
  const EmulatedStep& base = with_fewest_workers(emulation, extreme_micro_batches(emulation, false));
  TitledTable table{fmt::format("Table 2, emulated: throughput over that of K={}, M={}; fast interconnect",
                                base.num_stages, base.num_micro_batches),
                    {"M", "K", "step", "over one", "emulated", "paper", "torchgpipe", "<  layers"},
                    {}};
  for (const EmulatedStep& step : emulation.steps) {
    const Published published = published_for(emulation, step);
    table.cells.push_back(
        {std::to_string(step.num_micro_batches), std::to_string(step.num_stages),
         cli::format_seconds(step.fast.seconds), fmt::format("{:.2f}", step.alone_seconds / step.fast.seconds),
         fmt::format("{:.2f}", base.fast.seconds / step.fast.seconds), ratio_or_nothing(published.paper),
         ratio_or_nothing(published.torchgpipe), fmt::format("  {}", fmt::join(step.layers_per_stage, "+"))});
  }
  return table;
}

TitledTable slow_table(const Emulation& emulation) {
  const int most = extreme_micro_batches(emulation, true);
  const EmulatedStep& base = with_fewest_workers(emulation, most);
  TitledTable table{fmt::format("Table 3, emulated: throughput over that of K={}, M={}; without a fast interconnect",
                                base.num_stages, base.num_micro_batches),
                    {"M", "K", "fast", "slow", "paper, slow"},
                    {}};
  for (const EmulatedStep& step : emulation.steps) {
    if (step.num_micro_batches != most) continue;
    table.cells.push_back({std::to_string(most), std::to_string(step.num_stages),
                           fmt::format("{:.2f}", base.fast.seconds / step.fast.seconds),
                           fmt::format("{:.2f}", base.slow.seconds / step.slow.seconds),
                           ratio_or_nothing(published_for(emulation, step).slow)});
  }
  return table;
}

std::vector<std::string> share_cells(const std::string& name, const StepShares& shares) {
  std::vector<std::string> cells = {name};
  for (const double share :
       {shares.useful, shares.recompute, shares.load_imbalance, shares.bubble, shares.communication}) {
    cells.push_back(cli::format_percent(share));
  }
  return cells;
}

TitledTable overhead_table(const Emulation& emulation) {
  const int most = extreme_micro_batches(emulation, true);
  TitledTable table{fmt::format("Table 4: where the time of M={} goes", most),
                    {"<", "forward, backward", "recompute", "imbalance", "bubble", "messages"},
                    {}};
  if (emulation.measured) table.cells.push_back(share_cells("K=2, measured", *emulation.measured));
  for (const EmulatedStep& step : emulation.steps) {
    if (step.num_micro_batches != most) continue;
    table.cells.push_back(share_cells(fmt::format("K={}, emulated, fast", step.num_stages), step.fast));
    table.cells.push_back(share_cells(fmt::format("K={}, emulated, slow", step.num_stages), step.slow));
  }
  return table;
}

std::vector<TitledTable> tables_of(const Emulation& emulation) {
  return {throughput_table(emulation), slow_table(emulation), overhead_table(emulation)};
}

std::string emulation_heading(const Emulation& emulation) {
  return fmt::format("{}: {}; {}, recompute {}, medians of {} step{}", emulation.workload, emulation.description,
                     emulation.schedule, emulation.recompute, emulation.num_repeats,
                     emulation.num_repeats == 1 ? "" : "s");
}

EmulationJson shares_json(const StepShares& shares) {
  return {{"seconds", shares.seconds},     {"useful", shares.useful},
          {"recompute", shares.recompute}, {"load_imbalance", shares.load_imbalance},
          {"bubble", shares.bubble},       {"communication", shares.communication}};
}

}  // namespace

std::string emulation_text(const Emulation& emulation) {
  std::string text;
  for (const TitledTable& table : tables_of(emulation)) {
    text += fmt::format("\n{}\n{}", table.title, cli::to_table(table.columns, table.cells));
  }
  return text;
}

std::string emulation_markdown(const BenchMachine& machine, const std::vector<Emulation>& emulations) {
  std::string text = fmt::format("# gpipe bench --emulate\n\nEmulated on {}; gpipe {}, libtorch {}.\n",
                                 machine.processor, machine.gpipe, machine.libtorch);
  for (const Emulation& emulation : emulations) {
    text += fmt::format("\n## {}\n", emulation_heading(emulation));
    for (TitledTable& table : tables_of(emulation)) {
      for (std::string& column : table.columns) {
        if (column.front() == '<') column.erase(0, 1);
      }
      text += fmt::format("\n{}\n\n| {} |\n|{}\n", table.title, fmt::join(table.columns, " | "),
                          fmt::join(std::vector<std::string>(table.columns.size(), "---|"), ""));
      for (const std::vector<std::string>& cells : table.cells)
        text += fmt::format("| {} |\n", fmt::join(cells, " | "));
    }
  }
  return text;
}

std::string emulation_json(const BenchMachine& machine, const std::vector<Emulation>& emulations) {
  EmulationJson json = {{"gpipe", machine.gpipe},
                        {"libtorch", machine.libtorch},
                        {"processor", machine.processor},
                        {"processors", machine.num_processors},
                        {"emulations", EmulationJson::array()}};
  for (const Emulation& emulation : emulations) {
    EmulationJson entry = {{"workload", emulation.workload},   {"description", emulation.description},
                           {"schedule", emulation.schedule},   {"recompute", emulation.recompute},
                           {"repeats", emulation.num_repeats}, {"steps", EmulationJson::array()}};
    for (const EmulatedStep& step : emulation.steps) {
      const Published published = published_for(emulation, step);
      EmulationJson row = {{"stages", step.num_stages},
                           {"micro_batches", step.num_micro_batches},
                           {"layers_per_stage", step.layers_per_stage},
                           {"alone_seconds", step.alone_seconds},
                           {"emulated_fast", shares_json(step.fast)},
                           {"emulated_slow", shares_json(step.slow)}};
      if (published.paper > 0) row["paper"] = published.paper;
      if (published.slow > 0) row["paper_slow"] = published.slow;
      if (published.torchgpipe > 0) row["torchgpipe"] = published.torchgpipe;
      entry["steps"].push_back(std::move(row));
    }
    if (emulation.measured) entry["measured_two_stages"] = shares_json(*emulation.measured);
    json["emulations"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

}  // namespace gpipe::train

#include "train/summary.h"

#include <fmt/format.h>

#include "cli/quantity.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/printable.h"
#include "train/progress.h"

namespace gpipe::train {
namespace {

std::string per_second(double count, double seconds) {
  if (!(seconds > 0)) return "";
  const double rate = count / seconds;
  return rate >= 99.95 ? fmt::format(", {:.0f} a second", rate) : fmt::format(", {:.3g} a second", rate);
}

std::string stage_table(const std::vector<StageSummary>& stages) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const StageSummary& one = stages[stage];
    rows.push_back({fmt::format("{}", stage), printable(one.layers), fmt::format("{}", one.num_parameters),
                    cli::format_percent(one.busy_fraction), cli::format_bytes(one.peak_bytes)});
  }
  return to_table({{"stage"}, {"layers", Align::kLeft}, {"parameters"}, {"busy"}, {"peak"}}, rows);
}

}  // namespace

std::string to_text(const TrainingSummary& summary) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"ended", summary.ended},
      {"steps", fmt::format("{} in {}{}", summary.num_steps, format_duration(summary.seconds),
                            per_second(static_cast<double>(summary.num_steps), summary.seconds))}};
  if (summary.num_items > 0) {
    facts.emplace_back(summary.unit,
                       fmt::format("{:.0f}{}", summary.num_items, per_second(summary.num_items, summary.seconds)));
  }
  if (summary.loss) facts.emplace_back("loss", fmt::format("{:.4f}", *summary.loss));
  facts.insert(facts.end(), summary.results.begin(), summary.results.end());
  if (summary.bubble_fraction) facts.emplace_back("bubble", cli::format_percent(*summary.bubble_fraction));
  facts.insert(facts.end(), summary.files.begin(), summary.files.end());

  std::size_t widest = 0;
  for (const auto& [name, value] : facts) widest = std::max(widest, name.size());
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("{:<{}}  {}\n", name, widest, printable(value));
  if (!summary.stages.empty()) text += "\n" + stage_table(summary.stages);
  return text;
}

}  // namespace gpipe::train

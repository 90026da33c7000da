// What was tried for a plan, as a table.
#include <fmt/format.h>

#include <utility>

#include "gpipe/simulate/planner.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/layout.h"

namespace gpipe {

std::string explain(const PlanSearch& search) {
  std::vector<Column> columns;
  for (const char* title : {"step", "M", "schedule", "chunks", "recompute", "fullest worker"}) {
    columns.push_back({title, Align::kLeft});
  }
  std::vector<std::vector<std::string>> rows;
  for (const PlanCandidate& candidate : search.candidates) {
    const bool fits = candidate.missing_bytes == 0;
    std::vector<std::string> row = {
        fits ? fmt::format("{:.6g} s", candidate.step_seconds) : "-",
        fmt::format("{}", candidate.num_micro_batches),
        candidate.schedule,
        fmt::format("{}", candidate.chunks),
        candidate.recompute,
        fits ? fmt::format("{}, worker {}", byte_text(candidate.fullest_bytes), candidate.fullest_worker)
             : fmt::format("does not fit: lacks {}", byte_text(candidate.missing_bytes))};
    // Partitions that come to the same have one row.
    if (rows.empty() || rows.back() != row) rows.push_back(std::move(row));
  }
  return to_table(columns, rows);
}

}  // namespace gpipe

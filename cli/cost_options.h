// The options that say what actions and messages cost.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "gpipe/plan/costs.h"

namespace gpipe::cli {

// Seconds of a worker's whole share of the model, per micro-batch.
struct CostOptions {
  std::optional<double> forward_seconds;
  std::optional<double> backward_seconds;
  std::optional<double> input_grad_seconds;
  std::optional<double> weight_grad_seconds;
  std::optional<double> recompute_seconds;
  std::optional<double> update_seconds;      // once a step
  std::optional<std::int64_t> output_bytes;  // of one activation message

  bool any() const;
};

// All but the size of a message.
void add_cost_options(CLI::App& command, CostOptions& options);

// --link-latency and --link-bandwidth.
void add_link_options(CLI::App& command, LinkCosts& link);

// What is not given follows from B = I + W: from B alone, I and W are a half each; from one of I and W alone, the other
// is 1; from B and one of them, the other is the rest. All three given are taken as they are. R costs what F costs.
// Throws UsageError if the rest is negative.
StageCosts worker_share(const CostOptions& options);

}  // namespace gpipe::cli

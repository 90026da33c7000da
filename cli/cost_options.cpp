#include "cli/cost_options.h"

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/option.h"
#include "cli/quantity.h"

namespace gpipe::cli {
namespace {

// What B leaves for the other part.
double rest(double backward, double part, const char* option) {
  if (part <= backward) return backward - part;
  throw UsageError(fmt::format("{} {} is more than --backward {}", option, part, backward),
                   "a backward is the input gradient and the weight gradient together: B = I + W");
}

}  // namespace

bool CostOptions::any() const {
  return forward_seconds || backward_seconds || input_grad_seconds || weight_grad_seconds || recompute_seconds ||
         update_seconds || output_bytes;
}

void add_cost_options(CLI::App& command, CostOptions& options) {
  const auto add = [&command](const char* name, std::optional<double>& seconds, const char* description) {
    add_value(command, name, seconds, parse_seconds, description)
        ->type_name("S")
        ->group("Costs of a worker's whole share of the model, in seconds a micro-batch");
  };
  add("--forward", options.forward_seconds, "F [1]");
  add("--backward", options.backward_seconds, "B [2; I + W if either is given]");
  add("--input-grad", options.input_grad_seconds, "I [half of B; the rest of B if W is given]");
  add("--weight-grad", options.weight_grad_seconds, "W [half of B; the rest of B if I is given]");
  add("--recompute-cost", options.recompute_seconds, "R [as F]");
  add("--update-seconds", options.update_seconds, "Optimizer step, once a step [0]");
}

void add_link_options(CLI::App& command, LinkCosts& link) {
  add_value(command, "--link-latency", link.latency_seconds, parse_seconds, "Seconds a message travels [0]")
      ->type_name("S")
      ->group("Messages");
  add_value(command, "--link-bandwidth", link.bytes_per_second, parse_bytes_per_second,
            "Bytes a second between two workers, such as 10GB [unbounded]")
      ->type_name("SIZE")
      ->group("Messages");
}

StageCosts worker_share(const CostOptions& options) {
  StageCosts costs;
  costs.forward_seconds = options.forward_seconds.value_or(costs.forward_seconds);
  costs.recompute_seconds = options.recompute_seconds.value_or(costs.forward_seconds);
  costs.update_seconds = options.update_seconds.value_or(0);
  costs.output_bytes = options.output_bytes.value_or(0);
  const auto& backward = options.backward_seconds;
  const auto& input_grad = options.input_grad_seconds;
  const auto& weight_grad = options.weight_grad_seconds;
  if (backward && input_grad && !weight_grad) {
    costs.input_grad_seconds = *input_grad;
    costs.weight_grad_seconds = rest(*backward, *input_grad, "--input-grad");
  } else if (backward && weight_grad && !input_grad) {
    costs.input_grad_seconds = rest(*backward, *weight_grad, "--weight-grad");
    costs.weight_grad_seconds = *weight_grad;
  } else {
    const double half = backward.value_or(2) / 2;
    costs.input_grad_seconds = input_grad.value_or(half);
    costs.weight_grad_seconds = weight_grad.value_or(half);
  }
  costs.backward_seconds = backward.value_or(costs.input_grad_seconds + costs.weight_grad_seconds);
  return costs;
}

}  // namespace gpipe::cli

// VerifyRequest: what `gpipe verify` asks of the pipelines of a program that it runs, in variables of the environment.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpipe/launch/world.h"
#include "gpipe/schedule/recompute.h"

namespace gpipe::detail {

struct ProbedLayer {
  int pipeline = 0;
  int layer = 0;
};

struct VerifyRequest {
  std::string folder;  // where the recordings go
  int num_steps = 3;   // of each pipeline
  // In place of what the program says; what is not given stays as it is.
  std::optional<int> num_stages;
  std::optional<std::string> schedule;
  std::optional<Recompute> recompute;
  std::vector<int> num_micro_batches;  // by pipeline; the last one is that of all further ones
  // To look closer, at the price of running differently.
  bool with_arrivals = false;
  std::optional<ProbedLayer> probed;

  bool changes_stages() const { return num_stages || schedule || recompute; }
};

// "GPIPE_VERIFY=FOLDER" and the others. A variable that stands for nothing is there, too, and empty.
std::vector<std::string> to_environment(const VerifyRequest& request);

// Nothing if GPIPE_VERIFY is not set. Throws EnvironmentError for a variable that cannot be read.
std::optional<VerifyRequest> verify_request_from(const Variables& variables);

}  // namespace gpipe::detail

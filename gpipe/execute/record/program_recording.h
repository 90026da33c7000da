// ProgramRecording: what `gpipe verify` wants of a pipeline of this program, as the environment says it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gpipe/execute/record/run_recorder.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/launch/world.h"
#include "gpipe/recording/verify_request.h"

namespace gpipe::detail {

class ProgramRecording {
 public:
  // Of the next pipeline of this process. Throws EnvironmentError.
  static ProgramRecording next();

  bool is_wanted() const { return request_.has_value(); }
  // With the stages, the schedule and the recompute that the request wants, if it wants any: layers are then shared out
  // evenly by their number, and a plan, a memory limit and what else is for certain stages counts no more.
  PipelineOptions changed(PipelineOptions options, int num_layers) const;
  // `world` is that of the pipeline. REQUIRES: it is wanted.
  std::shared_ptr<RunRecorder> recorder(const PipelineOptions& options, const World& world,
                                        std::vector<RecordedLayer> layers) const;

 private:
  std::optional<VerifyRequest> request_;
  int pipeline_ = 0;
};

// Its class without namespaces: "Linear".
std::string type_name(const torch::nn::Module& module);

}  // namespace gpipe::detail

// Whether a pipeline's options fit together, and the schedules they ask for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::detail {

// With the defaults filled in. Throws InvalidArgument for what is wrong whatever the model.
PipelineOptions checked(PipelineOptions options);

// Whether the first batch decides which schedule it is.
bool is_searched(const PipelineOptions& options);

// For that many micro-batches, without the recompute of the options; 1F1B in place of one that will be searched. Throws
// InvalidArgument if a custom schedule is for other workers, and, with names that train, if none has this name.
Schedule schedule_for(const PipelineOptions& options, int num_micro_batches);
// Throws InvalidArgument, with what is out of order, unless it is canonical or the options allow that it is not.
void check_canonical(const PipelineOptions& options, const Schedule& schedule, const Certificate& certificate);
// "schedule "1f1b"", "the custom schedule".
std::string describe(const Schedule& schedule);

// Where that stage is to be; nothing if the options name no devices.
std::optional<torch::Device> device_of_stage(const PipelineOptions& options, int stage);

// Throws InvalidArgument, with the devices that are there, if this is none of them.
void check_device_is_there(torch::Device device);

// All throw InvalidArgument.
void check_balance(const std::vector<int>& balance, int num_layers, int num_stages);
// That a plan, if the options are made of one, has as many layers as the model.
void check_plan(const PipelineOptions& options, int num_layers);
void check_recompute(const PipelineOptions& options, int num_stages);
void check_rematerialization_by_stage(const std::vector<Rematerialization>& by_stage,
                                      const std::vector<int>& layers_per_stage, int num_stages);

// The forwards of so many micro-batches, on the same workers: each worker in the order of the micro-batches, and of the
// stages for each of them.
Schedule forwards_of(const Schedule& schedule, int num_micro_batches);
void put_forwards_first(Schedule& schedule);

}  // namespace gpipe::detail

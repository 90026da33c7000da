// What a program asks all ranks of a pipeline for. On threads of one process there is only this one.
#pragma once

#include <string>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/pipeline.h"

namespace gpipe {

// Into the layers that this rank runs; what is read may have those of other ranks, too. Else as load_weights for a module.
WeightsReport load_weights(const std::string& path, const Pipeline& pipeline, const LoadWeightsOptions& options = {});
WeightsReport load_weights(const Safetensors& content, const std::string& path, const Pipeline& pipeline,
                           const LoadWeightsOptions& options = {});

// All ranks call those below. They throw PeerError.

// Whether it is true on any rank: for decisions that all have to make alike, such as to stop.
bool any_rank(const Pipeline& pipeline, bool value);

// That all ranks give the same text, for what is known only after the pipeline was made; before, there is
// PipelineOptions::agree_on. Where they do not, every rank throws FingerprintError with both texts.
void agree_on(const Pipeline& pipeline, const std::string& text);

// What rank 0 gives: for what one has to decide for all, such as which file to read.
std::string of_first_rank(const Pipeline& pipeline, const std::string& text);

// The parameters and buffers of all stages, as weights_of gives them for a pipeline on threads. On rank 0; elsewhere nothing.
NamedTensors gather_weights(const Pipeline& pipeline);

}  // namespace gpipe

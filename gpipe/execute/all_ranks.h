// What a program asks all ranks of a pipeline for. On threads of one process there is only this one.
#pragma once

#include <string>

#include "gpipe/execute/pipeline.h"

namespace gpipe {

// All ranks call these. They throw PeerError.

// Whether the value is true on any rank: for decisions that all have to make alike, such as to stop.
bool any_rank(const Pipeline& pipeline, bool value);

// Compares the texts that all ranks give, for what is known only after the pipeline was made; before, there is
// PipelineOptions::agree_on. If two differ, every rank throws FingerprintError with both texts.
void agree_on(const Pipeline& pipeline, const std::string& text);

// Returns the text that rank 0 gives: for what one has to decide for all, such as which file to read.
std::string of_first_rank(const Pipeline& pipeline, const std::string& text);

}  // namespace gpipe

// What a program asks all ranks of a pipeline for. On threads of one process there is only this one.
#pragma once

#include <string>

#include "gpipe/execute/pipeline.h"

namespace gpipe {

// All ranks call these. They throw PeerError.

// Whether it is true on any rank: for decisions that all have to make alike, such as to stop.
bool any_rank(const Pipeline& pipeline, bool value);

// That all ranks give the same text, for what is known only after the pipeline was made; before, there is
// PipelineOptions::agree_on. Where they do not, every rank throws FingerprintError with both texts.
void agree_on(const Pipeline& pipeline, const std::string& text);

// What rank 0 gives: for what one has to decide for all, such as which file to read.
std::string of_first_rank(const Pipeline& pipeline, const std::string& text);

}  // namespace gpipe

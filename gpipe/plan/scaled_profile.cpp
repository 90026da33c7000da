// A profile for micro-batches of another size.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "gpipe/error.h"
#include "gpipe/plan/plan.h"

namespace gpipe {
namespace {

__extension__ using Int128 = __int128;

// Rounded up; ends at 2^63-1.
std::int64_t scaled(std::int64_t bytes, std::int64_t samples, std::int64_t measured) {
  const Int128 result = (Int128{bytes} * samples + measured - 1) / measured;
  return static_cast<std::int64_t>(std::min<Int128>(result, std::numeric_limits<std::int64_t>::max()));
}

}  // namespace

Profile for_micro_batches(const Profile& profile, int mini_batch_samples, int num_micro_batches) {
  check_profile(profile);
  const int measured = profile.samples_per_micro_batch;
  if (measured == 0) {
    throw InvalidArgument(
        "the profile does not say how many samples its micro-batch had; add samples_per_micro_batch to it, or leave "
        "the mini-batch's samples out and give the number of micro-batches");
  }
  if (num_micro_batches < 1 || mini_batch_samples < num_micro_batches) {
    throw InvalidArgument(fmt::format("{} samples cannot be split into {} micro-batches; expected 1 to {}",
                                      mini_batch_samples, num_micro_batches, mini_batch_samples));
  }
  const int largest = (mini_batch_samples - 1) / num_micro_batches + 1;
  const double factor = static_cast<double>(mini_batch_samples) / num_micro_batches / measured;
  Profile result = profile;
  result.samples_per_micro_batch = largest;
  for (LayerProfile& layer : result.layers) {
    layer.forward_seconds *= factor;
    layer.backward_seconds *= factor;
    if (layer.input_grad_seconds) *layer.input_grad_seconds *= factor;
    if (layer.weight_grad_seconds) *layer.weight_grad_seconds *= factor;
    for (std::int64_t* bytes : {&layer.activation_bytes, &layer.output_bytes, &layer.kept_output_bytes}) {
      *bytes = scaled(*bytes, largest, measured);
    }
    for (std::optional<std::int64_t>* bytes : {&layer.forward_working_bytes, &layer.backward_working_bytes}) {
      if (*bytes) *bytes = scaled(**bytes, largest, measured);
    }
  }
  for (SkipProfile& skip : result.skips) skip.bytes = scaled(skip.bytes, largest, measured);
  return result;
}

}  // namespace gpipe

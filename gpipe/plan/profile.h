// Profile: the measured costs of each layer. JSON both ways.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// Per micro-batch.
struct LayerProfile {
  std::string name;
  double forward_seconds = 0;
  double backward_seconds = 0;
  // The two parts of the backward. One that is absent is what the other leaves of backward_seconds, and half of it when
  // both are.
  std::optional<double> input_grad_seconds;
  std::optional<double> weight_grad_seconds;
  // The part of forward_seconds, and of backward_seconds, that a micro-batch costs however few samples it has, such as
  // what is computed from the weights alone; absent = unknown, and taken for none.
  std::optional<double> fixed_forward_seconds;
  std::optional<double> fixed_backward_seconds;
  std::int64_t parameter_bytes = 0;
  std::optional<std::int64_t> gradient_bytes;  // of the parameters; absent = parameter_bytes
  std::int64_t buffer_bytes = 0;               // kept like parameters, without gradient or optimizer state
  std::int64_t activation_bytes = 0;           // saved for the backward
  std::int64_t output_bytes = 0;
  // The part of output_bytes that is kept for the backward, by this layer or the next one. It is counted among
  // activation_bytes: of this layer, or, if this one only passes its input on, of the one that made it. At the end of a
  // stage that tensor is the input of the next stage, which holds it instead.
  std::int64_t kept_output_bytes = 0;
  // The most that is live at once in the layer's forward and in its backward, above what the layers before it keep; its
  // input, where nobody keeps that, counts in the forward. Both at least activation_bytes, and these if absent.
  std::optional<std::int64_t> forward_working_bytes;
  std::optional<std::int64_t> backward_working_bytes;
  // With a split backward: what is held from the input gradient to the weight gradient, such as the input of a matrix
  // product and the gradient of its output; absent = activation_bytes. The part of output_bytes that is held then, by
  // this layer or the next one, counts among it as kept_output_bytes do among activation_bytes.
  std::optional<std::int64_t> deferred_bytes;
  std::int64_t deferred_output_bytes = 0;
  // The most that is live at once in the layer's input gradient, above what the layers before it keep and those behind
  // it have deferred, and in its weight gradient, above what the layers before it have deferred. At least
  // activation_bytes and deferred_bytes. Absent = backward_working_bytes and deferred_bytes.
  std::optional<std::int64_t> input_grad_working_bytes;
  std::optional<std::int64_t> weight_grad_working_bytes;
};

double input_grad_seconds(const LayerProfile& layer);
double weight_grad_seconds(const LayerProfile& layer);
inline std::int64_t gradient_bytes(const LayerProfile& layer) {
  return layer.gradient_bytes.value_or(layer.parameter_bytes);
}
inline std::int64_t forward_working_bytes(const LayerProfile& layer) {
  return layer.forward_working_bytes.value_or(layer.activation_bytes);
}
inline std::int64_t backward_working_bytes(const LayerProfile& layer) {
  return layer.backward_working_bytes.value_or(layer.activation_bytes);
}
inline std::int64_t deferred_bytes(const LayerProfile& layer) {
  return layer.deferred_bytes.value_or(layer.activation_bytes);
}
inline std::int64_t input_grad_working_bytes(const LayerProfile& layer) {
  return layer.input_grad_working_bytes.value_or(backward_working_bytes(layer));
}
inline std::int64_t weight_grad_working_bytes(const LayerProfile& layer) {
  return layer.weight_grad_working_bytes.value_or(deferred_bytes(layer));
}
inline std::int64_t working_bytes(const LayerProfile& layer) {
  return std::max(forward_working_bytes(layer), backward_working_bytes(layer));
}
// Of the forward of a layer in a stage that begins at `begin`: without the input of the stage.
std::int64_t forward_working_bytes(const std::vector<LayerProfile>& layers, int layer, int begin);

// A tensor stashed by layer `from` and popped by layer `to`.
struct SkipProfile {
  std::string name;
  int from = 0;
  int to = 0;
  std::int64_t bytes = 0;
};

struct Profile {
  std::vector<LayerProfile> layers;
  std::vector<SkipProfile> skips;
  int samples_per_micro_batch = 0;  // of the micro-batch that was measured; 0 = unknown
};

// Whether the profile knows what a split backward holds: some layer has deferred_bytes.
bool has_deferred_bytes(const std::vector<LayerProfile>& layers);

// Throws InvalidArgument, naming the layer or the skip, unless there are layers, seconds are finite and at least zero,
// fixed seconds are a part of the seconds, bytes are at least zero and add up to less than 2^63, a kept output is a
// part of the output, and of the activations or the kept output of the layer before, a deferred output likewise of the
// deferred bytes, working bytes are at least the activations, those of a weight gradient at least deferred_bytes, and
// skips go forward between existing layers.
void check_profile(const Profile& profile);

// One line a layer and a skip. Doubles come back from `parse_profile` bit for bit; bytes of a name that are not UTF-8
// become U+FFFD.
//
//   {
//     "samples_per_micro_batch": 8,
//     "layers": [
//       {"name":"conv","forward_seconds":0.5,"backward_seconds":1.0, ...},
//       {"name":"head","forward_seconds":0.5,"backward_seconds":1.0, ...}
//     ],
//     "skips": [
//       {"name":"residual","from":0,"to":1,"bytes":8}
//     ]
//   }
std::string to_json(const Profile& profile);

// Takes the form above with all fields of LayerProfile and SkipProfile; "skips", "samples_per_micro_batch" and, of a
// layer, "input_grad_seconds", "weight_grad_seconds", "fixed_forward_seconds", "fixed_backward_seconds",
// "gradient_bytes", "buffer_bytes", "kept_output_bytes", "forward_working_bytes", "backward_working_bytes",
// "deferred_bytes", "deferred_output_bytes", "input_grad_working_bytes" and "weight_grad_working_bytes" may be absent.
// A skip names a layer by its index from zero, or by a name that only one has.
//
// Throws ParseError for anything else, whatever bytes it is made of: unknown or duplicate fields, missing ones,
// negative or non-finite numbers, fixed seconds that are more than the seconds, bytes that are not whole or not in the
// order that check_profile wants, skips between layers that do not exist or that go backward.
// The position it names is that of the last character of what is wrong.
Profile parse_profile(std::string_view json);

}  // namespace gpipe

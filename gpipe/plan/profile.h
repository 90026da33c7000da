// Profile: the measured costs of each layer. JSON both ways.
#pragma once

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
  std::int64_t parameter_bytes = 0;
  std::int64_t activation_bytes = 0;  // saved for the backward
  std::int64_t output_bytes = 0;
};

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
};

// Throws InvalidArgument, naming the layer or the skip, unless there are layers, seconds are finite and at least zero,
// bytes are at least zero and add up to less than 2^63, and skips go forward between layers that exist.
void check_profile(const Profile& profile);

// One line a layer and a skip. Doubles come back from `parse_profile` bit for bit; bytes of a name that are not UTF-8
// become U+FFFD.
//
//   {
//     "layers": [
//       {"name":"conv","forward_seconds":0.5,"backward_seconds":1.0, ...},
//       {"name":"head","forward_seconds":0.5,"backward_seconds":1.0, ...}
//     ],
//     "skips": [
//       {"name":"residual","from":0,"to":1,"bytes":8}
//     ]
//   }
std::string to_json(const Profile& profile);

// Takes the form above with all fields of LayerProfile and SkipProfile; "skips", "input_grad_seconds" and
// "weight_grad_seconds" may be absent. A skip names a layer by its index from zero, or by a name that only one has.
//
// Throws ParseError for anything else, whatever bytes it is made of: unknown or duplicate fields, missing ones,
// negative or non-finite numbers, bytes that are not whole, skips between layers that do not exist or that go backward.
// The position it names is that of the last character of what is wrong.
Profile parse_profile(std::string_view json);

}  // namespace gpipe

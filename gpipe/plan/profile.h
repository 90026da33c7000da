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
  std::optional<double> input_grad_seconds;   // absent: half of backward_seconds
  std::optional<double> weight_grad_seconds;  // absent: what input_grad_seconds leaves of backward_seconds
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

std::string to_json(const Profile& profile);

// Throws ParseError for anything but exactly this form: unknown or duplicate fields, missing ones, negative or
// non-finite numbers, bytes that are not whole, skips between layers that do not exist or that go backward.
Profile parse_profile(std::string_view json);

}  // namespace gpipe

#include "gpipe/plan/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "gpipe/error.h"
#include "gpipe/text/json_text.h"

namespace gpipe {
namespace {

using Json = nlohmann::ordered_json;

std::string json_lines(const std::vector<std::string>& elements) {
  if (elements.empty()) return "[]";
  return fmt::format("[\n    {}\n  ]", fmt::join(elements, ",\n    "));
}

std::string to_json(const LayerProfile& layer) {
  Json json;
  json["name"] = layer.name;
  json["forward_seconds"] = layer.forward_seconds;
  json["backward_seconds"] = layer.backward_seconds;
  if (layer.input_grad_seconds) json["input_grad_seconds"] = *layer.input_grad_seconds;
  if (layer.weight_grad_seconds) json["weight_grad_seconds"] = *layer.weight_grad_seconds;
  json["parameter_bytes"] = layer.parameter_bytes;
  if (layer.gradient_bytes) json["gradient_bytes"] = *layer.gradient_bytes;
  if (layer.buffer_bytes != 0) json["buffer_bytes"] = layer.buffer_bytes;
  json["activation_bytes"] = layer.activation_bytes;
  json["output_bytes"] = layer.output_bytes;
  if (layer.kept_output_bytes != 0) json["kept_output_bytes"] = layer.kept_output_bytes;
  if (layer.forward_working_bytes) json["forward_working_bytes"] = *layer.forward_working_bytes;
  if (layer.backward_working_bytes) json["backward_working_bytes"] = *layer.backward_working_bytes;
  return one_line_json(json);
}

std::string to_json(const SkipProfile& skip) {
  Json json;
  json["name"] = skip.name;
  json["from"] = skip.from;
  json["to"] = skip.to;
  json["bytes"] = skip.bytes;
  return one_line_json(json);
}

void check_seconds(const std::string& where, const char* field, double seconds) {
  if (std::isfinite(seconds) && seconds >= 0) return;
  throw InvalidArgument(fmt::format("{}: {} is {}; expected a finite number, 0 or more", where, field, seconds));
}

// A sum of bytes that stays below 2^63.
class ByteSum {
 public:
  void add(const std::string& where, const char* field, std::int64_t bytes) {
    if (bytes < 0) throw InvalidArgument(fmt::format("{}: {} is {}; expected 0 or more", where, field, bytes));
    if (bytes > std::numeric_limits<std::int64_t>::max() - sum_) {
      throw InvalidArgument(
          fmt::format("{}: with {} of {}, the profile's bytes add up to more than 2^63-1", where, field, bytes));
    }
    sum_ += bytes;
  }

 private:
  std::int64_t sum_ = 0;
};

void check_working(const std::string& where, const char* field, std::int64_t bytes, const LayerProfile& layer) {
  if (bytes >= layer.activation_bytes) return;
  throw InvalidArgument(fmt::format("{}: {} is {}; expected at least activation_bytes ({})", where, field, bytes,
                                    layer.activation_bytes));
}

void check_order(const std::string& where, const LayerProfile& layer, std::int64_t kept_before) {
  if (layer.kept_output_bytes > std::min(layer.output_bytes, layer.activation_bytes + kept_before)) {
    throw InvalidArgument(
        fmt::format("{}: kept_output_bytes is {}; expected at most output_bytes ({}), and activation_bytes with "
                    "kept_output_bytes of the layer before ({})",
                    where, layer.kept_output_bytes, layer.output_bytes, layer.activation_bytes + kept_before));
  }
  check_working(where, "forward_working_bytes", forward_working_bytes(layer), layer);
  check_working(where, "backward_working_bytes", backward_working_bytes(layer), layer);
}

}  // namespace

std::int64_t forward_working_bytes(const std::vector<LayerProfile>& layers, int layer, int begin) {
  const LayerProfile& at_work = layers[layer];
  if (layer > begin || begin == 0 || !at_work.forward_working_bytes) return forward_working_bytes(at_work);
  const LayerProfile& before = layers[begin - 1];
  const std::int64_t not_kept = before.output_bytes - before.kept_output_bytes;
  return std::max(*at_work.forward_working_bytes - not_kept, at_work.activation_bytes);
}

void check_profile(const Profile& profile) {
  if (profile.layers.empty()) throw InvalidArgument("the profile has no layers");
  if (profile.samples_per_micro_batch < 0) {
    throw InvalidArgument(
        fmt::format("samples_per_micro_batch is {}; expected 0 or more", profile.samples_per_micro_batch));
  }
  const int num_layers = static_cast<int>(profile.layers.size());
  ByteSum sum;
  for (int index = 0; index < num_layers; ++index) {
    const LayerProfile& layer = profile.layers[index];
    const std::string where = fmt::format("layer {} \"{}\"", index, layer.name);
    check_seconds(where, "forward_seconds", layer.forward_seconds);
    check_seconds(where, "backward_seconds", layer.backward_seconds);
    check_seconds(where, "input_grad_seconds", layer.input_grad_seconds.value_or(0));
    check_seconds(where, "weight_grad_seconds", layer.weight_grad_seconds.value_or(0));
    sum.add(where, "parameter_bytes", layer.parameter_bytes);
    sum.add(where, "activation_bytes", layer.activation_bytes);
    sum.add(where, "output_bytes", layer.output_bytes);
    sum.add(where, "gradient_bytes", layer.gradient_bytes.value_or(0));
    sum.add(where, "buffer_bytes", layer.buffer_bytes);
    sum.add(where, "kept_output_bytes", layer.kept_output_bytes);
    sum.add(where, "forward_working_bytes", layer.forward_working_bytes.value_or(0));
    sum.add(where, "backward_working_bytes", layer.backward_working_bytes.value_or(0));
    check_order(where, layer, index == 0 ? 0 : profile.layers[index - 1].kept_output_bytes);
  }
  for (std::size_t index = 0; index < profile.skips.size(); ++index) {
    const SkipProfile& skip = profile.skips[index];
    const std::string where = fmt::format("skip {} \"{}\"", index, skip.name);
    if (skip.from < 0 || skip.from > skip.to || skip.to >= num_layers) {
      throw InvalidArgument(fmt::format("{} goes from layer {} to layer {}; expected 0 <= from <= to <= {}", where,
                                        skip.from, skip.to, num_layers - 1));
    }
    sum.add(where, "bytes", skip.bytes);
  }
}

std::string to_json(const Profile& profile) {
  std::vector<std::string> layers;
  std::vector<std::string> skips;
  for (const LayerProfile& layer : profile.layers) layers.push_back(to_json(layer));
  for (const SkipProfile& skip : profile.skips) skips.push_back(to_json(skip));
  const std::string samples = profile.samples_per_micro_batch == 0 ? ""
                                                                   : fmt::format("  \"samples_per_micro_batch\": {},\n",
                                                                                 profile.samples_per_micro_batch);
  return fmt::format("{{\n{}  \"layers\": {},\n  \"skips\": {}\n}}\n", samples, json_lines(layers), json_lines(skips));
}

}  // namespace gpipe

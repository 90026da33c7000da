#include "gpipe/plan/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "gpipe/text/json.h"
#include "gpipe/text/json_record.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::check_json_tables;
using detail::find_json_table;
using detail::json_fail_at;
using detail::json_hint;
using detail::json_quoted;
using detail::json_shown;
using detail::JsonField;
using detail::JsonForm;
using detail::JsonReader;
using detail::JsonRecord;
using detail::JsonTable;
using detail::JsonTables;
using detail::parse_json_tables;
using detail::require;
using detail::table_json;

using Json = nlohmann::ordered_json;

const JsonForm kProfileForm = {"profile", {"samples_per_micro_batch"}, 0};
const JsonForm kLayerForm = {
    "layer",
    {"name", "forward_seconds", "backward_seconds", "parameter_bytes", "activation_bytes", "output_bytes",
     "input_grad_seconds", "weight_grad_seconds", "gradient_bytes", "buffer_bytes", "kept_output_bytes",
     "forward_working_bytes", "backward_working_bytes", "deferred_bytes", "deferred_output_bytes",
     "input_grad_working_bytes", "weight_grad_working_bytes", "fixed_forward_seconds", "fixed_backward_seconds"},
    6};
const JsonForm kSkipForm = {"skip", {"name", "from", "to", "bytes"}, 4};
const std::vector<std::string> kProfileTables = {"layers", "skips"};

Json to_object(const LayerProfile& layer) {
  Json json;
  json["name"] = layer.name;
  json["forward_seconds"] = layer.forward_seconds;
  json["backward_seconds"] = layer.backward_seconds;
  if (layer.input_grad_seconds) json["input_grad_seconds"] = *layer.input_grad_seconds;
  if (layer.weight_grad_seconds) json["weight_grad_seconds"] = *layer.weight_grad_seconds;
  if (layer.fixed_forward_seconds) json["fixed_forward_seconds"] = *layer.fixed_forward_seconds;
  if (layer.fixed_backward_seconds) json["fixed_backward_seconds"] = *layer.fixed_backward_seconds;
  json["parameter_bytes"] = layer.parameter_bytes;
  if (layer.gradient_bytes) json["gradient_bytes"] = *layer.gradient_bytes;
  if (layer.buffer_bytes != 0) json["buffer_bytes"] = layer.buffer_bytes;
  json["activation_bytes"] = layer.activation_bytes;
  json["output_bytes"] = layer.output_bytes;
  if (layer.kept_output_bytes != 0) json["kept_output_bytes"] = layer.kept_output_bytes;
  if (layer.forward_working_bytes) json["forward_working_bytes"] = *layer.forward_working_bytes;
  if (layer.backward_working_bytes) json["backward_working_bytes"] = *layer.backward_working_bytes;
  if (layer.deferred_bytes) json["deferred_bytes"] = *layer.deferred_bytes;
  if (layer.deferred_output_bytes != 0) json["deferred_output_bytes"] = layer.deferred_output_bytes;
  if (layer.input_grad_working_bytes) json["input_grad_working_bytes"] = *layer.input_grad_working_bytes;
  if (layer.weight_grad_working_bytes) json["weight_grad_working_bytes"] = *layer.weight_grad_working_bytes;
  return json;
}

// In front of the first layer is one without any bytes.
const LayerProfile& layer_before(const std::vector<LayerProfile>& layers, std::size_t index) {
  static const LayerProfile none;
  return index == 0 ? none : layers[index - 1];
}

void check_order(const std::string& where, const LayerProfile& layer, const LayerProfile& before) {
  const auto check_output = [&](const char* field, std::int64_t bytes, const char* held_field, std::int64_t held) {
    require(bytes <= std::min(layer.output_bytes, held),
            "{}: {} is {}; expected at most output_bytes ({}), and {} with {} of the layer before ({})", where, field,
            bytes, layer.output_bytes, held_field, field, held);
  };
  check_output("kept_output_bytes", layer.kept_output_bytes, "activation_bytes",
               layer.activation_bytes + before.kept_output_bytes);
  check_output("deferred_output_bytes", layer.deferred_output_bytes, "deferred_bytes",
               deferred_bytes(layer) + before.deferred_output_bytes);
  const auto check_working = [&](const char* field, std::int64_t bytes, const char* held_field, std::int64_t held) {
    require(bytes >= held, "{}: {} is {}; expected at least {} ({})", where, field, bytes, held_field, held);
  };
  check_working("forward_working_bytes", forward_working_bytes(layer), "activation_bytes", layer.activation_bytes);
  check_working("backward_working_bytes", backward_working_bytes(layer), "activation_bytes", layer.activation_bytes);
  check_working("input_grad_working_bytes", input_grad_working_bytes(layer), "activation_bytes",
                layer.activation_bytes);
  check_working("weight_grad_working_bytes", weight_grad_working_bytes(layer), "deferred_bytes", deferred_bytes(layer));
}

// "layer 3 \"conv\": "
std::string where(const JsonRecord& record, const JsonForm& form, std::size_t index) {
  for (const JsonField& field : record.fields) {
    if (field.name != "name" || !std::holds_alternative<std::string>(field.value)) continue;
    return fmt::format("{} {} {}: ", form.what, index, json_shown(field.value));
  }
  return fmt::format("{} {}: ", form.what, index);
}

std::optional<double> read_fixed_seconds(const JsonReader& record, const char* name, const char* all_name,
                                         double all_seconds) {
  if (!record.has(name)) return std::nullopt;
  const double seconds = record.seconds(name);
  if (seconds > all_seconds) {
    record.fail_value(record.field(name),
                      fmt::format("at most \"{}\" ({}), of which it is a part", all_name, all_seconds));
  }
  return seconds;
}

std::optional<std::int64_t> read_bytes(const JsonReader& record, const char* name) {
  return record.has(name) ? std::optional(record.bytes(name)) : std::nullopt;
}

std::optional<std::int64_t> read_working(const JsonReader& record, const char* name, const char* held_name,
                                         std::int64_t held_bytes) {
  const std::optional<std::int64_t> bytes = read_bytes(record, name);
  if (bytes && *bytes < held_bytes) {
    record.fail_value(record.field(name), fmt::format("at least \"{}\" ({})", held_name, held_bytes));
  }
  return bytes;
}

// The part of the output that is kept, or deferred, and is counted among `held_bytes` or with the layer before.
std::int64_t read_output_part(const JsonReader& record, const char* name, const char* held_name,
                              std::int64_t held_bytes, std::int64_t part_before) {
  if (!record.has(name)) return 0;
  const std::int64_t bytes = record.bytes(name);
  const std::int64_t output_bytes = record.bytes("output_bytes");
  // Not the sum: these bytes can be anything.
  if (bytes > output_bytes || bytes - part_before > held_bytes) {
    record.fail_value(record.field(name),
                      fmt::format("at most \"output_bytes\" ({}), and \"{}\" with \"{}\" of the layer before ({} + {})",
                                  output_bytes, held_name, name, held_bytes, part_before));
  }
  return bytes;
}

LayerProfile read_layer(const JsonReader& record, const LayerProfile& before) {
  LayerProfile layer;
  layer.name = record.string("name");
  layer.forward_seconds = record.seconds("forward_seconds");
  layer.backward_seconds = record.seconds("backward_seconds");
  if (record.has("input_grad_seconds")) layer.input_grad_seconds = record.seconds("input_grad_seconds");
  if (record.has("weight_grad_seconds")) layer.weight_grad_seconds = record.seconds("weight_grad_seconds");
  layer.fixed_forward_seconds =
      read_fixed_seconds(record, "fixed_forward_seconds", "forward_seconds", layer.forward_seconds);
  layer.fixed_backward_seconds =
      read_fixed_seconds(record, "fixed_backward_seconds", "backward_seconds", layer.backward_seconds);
  layer.parameter_bytes = record.bytes("parameter_bytes");
  layer.activation_bytes = record.bytes("activation_bytes");
  layer.output_bytes = record.bytes("output_bytes");
  layer.gradient_bytes = read_bytes(record, "gradient_bytes");
  layer.buffer_bytes = read_bytes(record, "buffer_bytes").value_or(0);
  layer.deferred_bytes = read_bytes(record, "deferred_bytes");
  layer.kept_output_bytes = read_output_part(record, "kept_output_bytes", "activation_bytes", layer.activation_bytes,
                                             before.kept_output_bytes);
  layer.deferred_output_bytes = read_output_part(record, "deferred_output_bytes", "deferred_bytes",
                                                 deferred_bytes(layer), before.deferred_output_bytes);
  for (const auto& [name, member] : {std::pair("forward_working_bytes", &LayerProfile::forward_working_bytes),
                                     std::pair("backward_working_bytes", &LayerProfile::backward_working_bytes),
                                     std::pair("input_grad_working_bytes", &LayerProfile::input_grad_working_bytes)}) {
    layer.*member = read_working(record, name, "activation_bytes", layer.activation_bytes);
  }
  layer.weight_grad_working_bytes =
      read_working(record, "weight_grad_working_bytes", "deferred_bytes", deferred_bytes(layer));
  return layer;
}

// The layer that one end of a skip names.
class LayerFinder {
 public:
  explicit LayerFinder(const std::vector<LayerProfile>& layers) : layers_(layers) {
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const auto [entry, is_new] = layer_of_name_.emplace(layers[layer].name, static_cast<int>(layer));
      if (!is_new) entry->second = kSeveral;
    }
  }

  int find(const JsonReader& skip, const char* end) const {
    const JsonField& given = skip.field(end);
    const auto* index = std::get_if<std::uint64_t>(&given.value);
    if (index != nullptr && *index < layers_.size()) return static_cast<int>(*index);
    const auto* name = std::get_if<std::string>(&given.value);
    if (name == nullptr) {
      skip.fail_value(given, fmt::format("a layer: an index from 0 to {}, or a name", layers_.size() - 1));
    }
    const auto found = layer_of_name_.find(*name);
    if (found == layer_of_name_.end()) {
      std::vector<std::string> names;
      for (const LayerProfile& layer : layers_) names.push_back(layer.name);
      skip.fail(given.value_offset, fmt::format("{} names layer {}, which does not exist{}", json_quoted(given.name),
                                                json_quoted(*name), json_hint(*name, names)));
    }
    if (found->second == kSeveral) {
      skip.fail(given.value_offset, fmt::format("{} names layer {}, but several layers have that name; give the index",
                                                json_quoted(given.name), json_quoted(*name)));
    }
    return found->second;
  }

 private:
  static constexpr int kSeveral = -1;

  const std::vector<LayerProfile>& layers_;
  std::unordered_map<std::string, int> layer_of_name_;
};

SkipProfile read_skip(const JsonReader& record, const LayerFinder& layers) {
  SkipProfile skip;
  skip.name = record.string("name");
  skip.from = layers.find(record, "from");
  skip.to = layers.find(record, "to");
  skip.bytes = record.bytes("bytes");
  if (skip.from > skip.to) {
    record.fail(record.field("to").value_offset,
                fmt::format("goes from layer {} back to layer {}; expected from <= to", skip.from, skip.to));
  }
  return skip;
}

}  // namespace

double input_grad_seconds(const LayerProfile& layer) {
  if (layer.input_grad_seconds) return *layer.input_grad_seconds;
  if (!layer.weight_grad_seconds) return layer.backward_seconds / 2;
  return std::max(0.0, layer.backward_seconds - *layer.weight_grad_seconds);
}

double weight_grad_seconds(const LayerProfile& layer) {
  return layer.weight_grad_seconds.value_or(std::max(0.0, layer.backward_seconds - input_grad_seconds(layer)));
}

std::int64_t forward_working_bytes(const std::vector<LayerProfile>& layers, int layer, int begin) {
  const LayerProfile& at_work = layers[layer];
  if (layer > begin || begin == 0 || !at_work.forward_working_bytes) return forward_working_bytes(at_work);
  const LayerProfile& before = layers[begin - 1];
  const std::int64_t not_kept = before.output_bytes - before.kept_output_bytes;
  return std::max(*at_work.forward_working_bytes - not_kept, at_work.activation_bytes);
}

bool has_deferred_bytes(const std::vector<LayerProfile>& layers) {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerProfile& layer) { return layer.deferred_bytes.has_value(); });
}

void check_profile(const Profile& profile) {
  require(!profile.layers.empty(), "the profile has no layers");
  require(profile.samples_per_micro_batch >= 0, "samples_per_micro_batch is {}; expected 0 or more",
          profile.samples_per_micro_batch);
  std::string where;
  std::int64_t sum = 0;  // of all bytes
  const auto check_seconds = [&](const char* field, double seconds) {
    require(std::isfinite(seconds) && seconds >= 0, "{}: {} is {}; expected a finite number, 0 or more", where, field,
            seconds);
  };
  const auto check_fixed_seconds = [&](const char* field, double seconds, const char* all_field, double all_seconds) {
    check_seconds(field, seconds);
    require(seconds <= all_seconds, "{}: {} is {}; expected at most {} ({}), of which it is a part", where, field,
            seconds, all_field, all_seconds);
  };
  const auto add_bytes = [&](const char* field, std::int64_t bytes) {
    require(bytes >= 0, "{}: {} is {}; expected 0 or more", where, field, bytes);
    require(bytes <= std::numeric_limits<std::int64_t>::max() - sum,
            "{}: with {} of {}, the profile's bytes add up to more than 2^63-1", where, field, bytes);
    sum += bytes;
  };
  const int num_layers = static_cast<int>(profile.layers.size());
  for (int index = 0; index < num_layers; ++index) {
    const LayerProfile& layer = profile.layers[index];
    where = fmt::format("layer {} \"{}\"", index, layer.name);
    check_seconds("forward_seconds", layer.forward_seconds);
    check_seconds("backward_seconds", layer.backward_seconds);
    check_seconds("input_grad_seconds", layer.input_grad_seconds.value_or(0));
    check_seconds("weight_grad_seconds", layer.weight_grad_seconds.value_or(0));
    check_fixed_seconds("fixed_forward_seconds", layer.fixed_forward_seconds.value_or(0), "forward_seconds",
                        layer.forward_seconds);
    check_fixed_seconds("fixed_backward_seconds", layer.fixed_backward_seconds.value_or(0), "backward_seconds",
                        layer.backward_seconds);
    add_bytes("parameter_bytes", layer.parameter_bytes);
    add_bytes("activation_bytes", layer.activation_bytes);
    add_bytes("output_bytes", layer.output_bytes);
    add_bytes("gradient_bytes", layer.gradient_bytes.value_or(0));
    add_bytes("buffer_bytes", layer.buffer_bytes);
    add_bytes("kept_output_bytes", layer.kept_output_bytes);
    add_bytes("forward_working_bytes", layer.forward_working_bytes.value_or(0));
    add_bytes("backward_working_bytes", layer.backward_working_bytes.value_or(0));
    add_bytes("deferred_bytes", layer.deferred_bytes.value_or(0));
    add_bytes("deferred_output_bytes", layer.deferred_output_bytes);
    add_bytes("input_grad_working_bytes", layer.input_grad_working_bytes.value_or(0));
    add_bytes("weight_grad_working_bytes", layer.weight_grad_working_bytes.value_or(0));
    check_order(where, layer, layer_before(profile.layers, index));
  }
  for (std::size_t index = 0; index < profile.skips.size(); ++index) {
    const SkipProfile& skip = profile.skips[index];
    where = fmt::format("skip {} \"{}\"", index, skip.name);
    require(skip.from >= 0 && skip.from <= skip.to && skip.to < num_layers,
            "{} goes from layer {} to layer {}; expected 0 <= from <= to <= {}", where, skip.from, skip.to,
            num_layers - 1);
    add_bytes("bytes", skip.bytes);
  }
}

std::string to_json(const Profile& profile) {
  Json json;
  if (profile.samples_per_micro_batch != 0) json["samples_per_micro_batch"] = profile.samples_per_micro_batch;
  json["layers"] = Json::array();
  json["skips"] = Json::array();
  for (const LayerProfile& layer : profile.layers) json["layers"].push_back(to_object(layer));
  for (const SkipProfile& skip : profile.skips) {
    json["skips"].push_back({{"name", skip.name}, {"from", skip.from}, {"to", skip.to}, {"bytes", skip.bytes}});
  }
  return table_json(json);
}

Profile parse_profile(std::string_view json) {
  const JsonTables tables = parse_json_tables(json);
  check_json_tables(json, tables, kProfileForm, kProfileTables);
  const JsonTable* layers = find_json_table(tables, "layers");
  if (layers == nullptr) json_fail_at(json, tables.top.offset, "\"layers\" is missing");
  if (layers->records.empty())
    json_fail_at(json, layers->name_offset, "\"layers\" is empty; expected at least one layer");
  Profile profile;
  const JsonReader top(json, tables.top, kProfileForm, "");
  if (top.has("samples_per_micro_batch")) profile.samples_per_micro_batch = top.count("samples_per_micro_batch", 0);
  const auto read = [&](const JsonRecord& record, const JsonForm& form, std::size_t index) {
    return JsonReader(json, record, form, where(record, form, index));
  };
  for (std::size_t index = 0; index < layers->records.size(); ++index) {
    const LayerProfile& before = layer_before(profile.layers, index);
    profile.layers.push_back(read_layer(read(layers->records[index], kLayerForm, index), before));
  }
  if (const JsonTable* skips = find_json_table(tables, "skips")) {
    const LayerFinder finder(profile.layers);
    for (std::size_t index = 0; index < skips->records.size(); ++index) {
      profile.skips.push_back(read_skip(read(skips->records[index], kSkipForm, index), finder));
    }
  }
  return profile;
}

}  // namespace gpipe

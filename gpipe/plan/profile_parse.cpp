// What the tables of a profile's JSON mean.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "gpipe/plan/profile.h"
#include "gpipe/text/json_record.h"

namespace gpipe {
namespace {

const JsonForm kProfileForm = {"profile", {"samples_per_micro_batch"}, 0};
const JsonForm kLayerForm = {"layer",
                             {"name", "forward_seconds", "backward_seconds", "parameter_bytes", "activation_bytes",
                              "output_bytes", "input_grad_seconds", "weight_grad_seconds", "gradient_bytes",
                              "buffer_bytes", "kept_output_bytes", "forward_working_bytes", "backward_working_bytes"},
                             6};
const JsonForm kProfileSkipForm = {"skip", {"name", "from", "to", "bytes"}, 4};
const std::vector<std::string> kProfileTables = {"layers", "skips"};

// "layer 3 \"conv\": "
std::string where(const JsonRecord& record, const JsonForm& form, std::size_t index) {
  for (const JsonField& field : record.fields) {
    if (field.name != "name" || !std::holds_alternative<std::string>(field.value)) continue;
    return fmt::format("{} {} {}: ", form.what, index, json_shown(field.value));
  }
  return fmt::format("{} {}: ", form.what, index);
}

std::optional<std::int64_t> read_working(const JsonReader& record, const char* name, const LayerProfile& layer) {
  if (!record.has(name)) return std::nullopt;
  const std::int64_t bytes = record.bytes(name);
  if (bytes < layer.activation_bytes) {
    record.fail_value(record.field(name), fmt::format("at least \"activation_bytes\" ({})", layer.activation_bytes));
  }
  return bytes;
}

LayerProfile read_layer(const JsonReader& record, std::int64_t kept_before) {
  LayerProfile layer;
  layer.name = record.string("name");
  layer.forward_seconds = record.seconds("forward_seconds");
  layer.backward_seconds = record.seconds("backward_seconds");
  if (record.has("input_grad_seconds")) layer.input_grad_seconds = record.seconds("input_grad_seconds");
  if (record.has("weight_grad_seconds")) layer.weight_grad_seconds = record.seconds("weight_grad_seconds");
  layer.parameter_bytes = record.bytes("parameter_bytes");
  layer.activation_bytes = record.bytes("activation_bytes");
  layer.output_bytes = record.bytes("output_bytes");
  if (record.has("gradient_bytes")) layer.gradient_bytes = record.bytes("gradient_bytes");
  if (record.has("buffer_bytes")) layer.buffer_bytes = record.bytes("buffer_bytes");
  if (record.has("kept_output_bytes")) layer.kept_output_bytes = record.bytes("kept_output_bytes");
  // Not the sum: these bytes can be anything.
  if (layer.kept_output_bytes > layer.output_bytes || layer.kept_output_bytes - kept_before > layer.activation_bytes) {
    record.fail_value(
        record.field("kept_output_bytes"),
        fmt::format("at most \"output_bytes\" ({}), and \"activation_bytes\" with \"kept_output_bytes\" of "
                    "the layer before ({} + {})",
                    layer.output_bytes, layer.activation_bytes, kept_before));
  }
  layer.forward_working_bytes = read_working(record, "forward_working_bytes", layer);
  layer.backward_working_bytes = read_working(record, "backward_working_bytes", layer);
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
    if (const auto* index = std::get_if<std::uint64_t>(&given.value); index != nullptr && *index < layers_.size()) {
      return static_cast<int>(*index);
    }
    if (const auto* name = std::get_if<std::string>(&given.value)) return find_name(skip, given, *name);
    skip.fail_value(given, fmt::format("a layer: an index from 0 to {}, or a name", layers_.size() - 1));
  }

 private:
  static constexpr int kSeveral = -1;

  int find_name(const JsonReader& skip, const JsonField& given, const std::string& name) const {
    const auto found = layer_of_name_.find(name);
    if (found == layer_of_name_.end()) {
      std::vector<std::string> names;
      for (const LayerProfile& layer : layers_) names.push_back(layer.name);
      skip.fail(given.value_offset, fmt::format("{} names layer {}, which does not exist{}", json_quoted(given.name),
                                                json_quoted(name), json_hint(name, names)));
    }
    if (found->second == kSeveral) {
      skip.fail(given.value_offset, fmt::format("{} names layer {}, but several layers have that name; give the index",
                                                json_quoted(given.name), json_quoted(name)));
    }
    return found->second;
  }

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
    const std::int64_t kept_before = index == 0 ? 0 : profile.layers.back().kept_output_bytes;
    profile.layers.push_back(read_layer(read(layers->records[index], kLayerForm, index), kept_before));
  }
  if (const JsonTable* skips = find_json_table(tables, "skips")) {
    const LayerFinder finder(profile.layers);
    for (std::size_t index = 0; index < skips->records.size(); ++index) {
      profile.skips.push_back(read_skip(read(skips->records[index], kProfileSkipForm, index), finder));
    }
  }
  return profile;
}

}  // namespace gpipe

// What the tables of a profile's JSON mean.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "gpipe/nearest_name.h"
#include "gpipe/plan/json_tables.h"
#include "gpipe/plan/profile.h"

namespace gpipe {
namespace {

// The fields of one kind of record; those from `first_optional` on may be absent.
struct Form {
  const char* what;
  std::vector<std::string> fields;
  std::size_t first_optional;
};
const Form kLayerForm = {"layer",
                         {"name", "forward_seconds", "backward_seconds", "parameter_bytes", "activation_bytes",
                          "output_bytes", "input_grad_seconds", "weight_grad_seconds", "gradient_bytes", "buffer_bytes",
                          "kept_output_bytes", "working_bytes"},
                         6};
const Form kSkipForm = {"skip", {"name", "from", "to", "bytes"}, 4};
const std::vector<std::string> kTables = {"layers", "skips"};
const std::vector<std::string> kScalars = {"samples_per_micro_batch"};

std::string hint(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest = 60;  // comparing two names takes the product of their lengths
  if (name.size() > kLongest) return "";
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format(" (did you mean {}?)", json_quoted(nearest));
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A record whose fields are known, given once and complete.
class Record {
 public:
  Record(std::string_view text, const JsonRecord& record, const Form& form, std::size_t index);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  const JsonField& field(std::string_view name) const { return *find(name); }
  std::string name() const;
  double seconds(std::string_view name) const;
  std::int64_t bytes(std::string_view name) const;
  [[noreturn]] void fail(std::size_t offset, const std::string& what) const {
    json_fail_at(text_, offset, where_ + what);
  }
  [[noreturn]] void fail_value(const JsonField& field, const std::string& expected) const {
    fail(field.value_offset,
         fmt::format("{} is {}; expected {}", json_quoted(field.name), json_shown(field.value), expected));
  }

 private:
  const JsonField* find(std::string_view name) const {
    const auto& fields = record_.fields;
    const auto found = std::find_if(fields.begin(), fields.end(), [&](const JsonField& f) { return f.name == name; });
    return found == fields.end() ? nullptr : &*found;
  }

  std::string_view text_;
  const JsonRecord& record_;
  std::string where_;  // "layer 3 \"conv\": "
};

Record::Record(std::string_view text, const JsonRecord& record, const Form& form, std::size_t index)
    : text_(text), record_(record), where_(fmt::format("{} {}: ", form.what, index)) {
  if (const JsonField* name = find("name"); name != nullptr && std::holds_alternative<std::string>(name->value)) {
    where_ = fmt::format("{} {} {}: ", form.what, index, json_shown(name->value));
  }
  for (const JsonField& field : record.fields) {
    if (!contains(form.fields, field.name)) {
      fail(field.name_offset, fmt::format("unknown field {}{}; the fields of a {} are {}", json_quoted(field.name),
                                          hint(field.name, form.fields), form.what, fmt::join(form.fields, ", ")));
    }
    if (&field != find(field.name)) fail(field.name_offset, fmt::format("{} is given twice", json_quoted(field.name)));
  }
  for (std::size_t index_of_field = 0; index_of_field < form.first_optional; ++index_of_field) {
    const std::string& required = form.fields[index_of_field];
    if (!has(required)) fail(record.offset, fmt::format("{} is missing", json_quoted(required)));
  }
}

std::string Record::name() const {
  const JsonField& given = field("name");
  if (const auto* text = std::get_if<std::string>(&given.value)) return *text;
  fail_value(given, "a string");
}

double Record::seconds(std::string_view name) const {
  const JsonField& given = field(name);
  const char* expected = "a number of seconds, 0 or more";
  if (const auto* whole = std::get_if<std::uint64_t>(&given.value)) return static_cast<double>(*whole);
  if (std::holds_alternative<std::int64_t>(given.value) && std::get<std::int64_t>(given.value) == 0) return 0;
  const auto* number = std::get_if<double>(&given.value);
  if (number == nullptr || !std::isfinite(*number) || *number < 0) fail_value(given, expected);
  return *number == 0 ? 0 : *number;  // no negative zero
}

std::int64_t Record::bytes(std::string_view name) const {
  constexpr double kLastWhole = 9007199254740992.0;  // above, a double does not say which whole number was meant
  const JsonField& given = field(name);
  if (const auto* whole = std::get_if<std::uint64_t>(&given.value)) {
    if (*whole <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return static_cast<std::int64_t>(*whole);
    }
  }
  if (std::holds_alternative<std::int64_t>(given.value) && std::get<std::int64_t>(given.value) == 0) return 0;
  const auto* number = std::get_if<double>(&given.value);
  if (number != nullptr && *number >= 0 && *number <= kLastWhole && *number == std::floor(*number)) {
    return static_cast<std::int64_t>(*number);
  }
  fail_value(given, "a whole number of bytes from 0 to 2^63-1 (to 2^53 if it has a point or an exponent)");
}

LayerProfile read_layer(const Record& record) {
  LayerProfile layer;
  layer.name = record.name();
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
  if (record.has("working_bytes")) layer.working_bytes = record.bytes("working_bytes");
  if (layer.kept_output_bytes > std::min(layer.output_bytes, layer.activation_bytes)) {
    record.fail_value(record.field("kept_output_bytes"),
                      fmt::format("at most \"output_bytes\" ({}) and \"activation_bytes\" ({})", layer.output_bytes,
                                  layer.activation_bytes));
  }
  if (working_bytes(layer) < layer.activation_bytes) {
    record.fail_value(record.field("working_bytes"),
                      fmt::format("at least \"activation_bytes\" ({})", layer.activation_bytes));
  }
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

  int find(const Record& skip, const char* end) const {
    const JsonField& given = skip.field(end);
    if (const auto* index = std::get_if<std::uint64_t>(&given.value); index != nullptr && *index < layers_.size()) {
      return static_cast<int>(*index);
    }
    if (const auto* name = std::get_if<std::string>(&given.value)) return find_name(skip, given, *name);
    skip.fail_value(given, fmt::format("a layer: an index from 0 to {}, or a name", layers_.size() - 1));
  }

 private:
  static constexpr int kSeveral = -1;

  int find_name(const Record& skip, const JsonField& given, const std::string& name) const {
    const auto found = layer_of_name_.find(name);
    if (found == layer_of_name_.end()) {
      std::vector<std::string> names;
      for (const LayerProfile& layer : layers_) names.push_back(layer.name);
      skip.fail(given.value_offset, fmt::format("{} names layer {}, which does not exist{}", json_quoted(given.name),
                                                json_quoted(name), hint(name, names)));
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

SkipProfile read_skip(const Record& record, const LayerFinder& layers) {
  SkipProfile skip;
  skip.name = record.name();
  skip.from = layers.find(record, "from");
  skip.to = layers.find(record, "to");
  skip.bytes = record.bytes("bytes");
  if (skip.from > skip.to) {
    record.fail(record.field("to").value_offset,
                fmt::format("goes from layer {} back to layer {}; expected from <= to", skip.from, skip.to));
  }
  return skip;
}

// The table of that name; null if there is none.
const JsonTable* find_table(const JsonTables& tables, std::string_view name) {
  for (const JsonTable& table : tables.tables) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

[[noreturn]] void fail_unknown(std::string_view json, const std::string& name, std::size_t offset) {
  std::vector<std::string> known = kTables;
  known.insert(known.end(), kScalars.begin(), kScalars.end());
  json_fail_at(json, offset,
               fmt::format("unknown field {}{}; the fields of a profile are {}", json_quoted(name), hint(name, known),
                           fmt::join(known, ", ")));
}

int read_samples(std::string_view json, const JsonTables& tables) {
  int samples = 0;
  const JsonField* first = nullptr;
  for (const JsonField& field : tables.top.fields) {
    if (contains(kTables, field.name)) {
      json_fail_at(
          json, field.value_offset,
          fmt::format("{} must be an array of objects, got {}", json_quoted(field.name), json_shown(field.value)));
    }
    if (!contains(kScalars, field.name)) fail_unknown(json, field.name, field.name_offset);
    if (first != nullptr) {
      json_fail_at(json, field.name_offset, fmt::format("{} is given twice", json_quoted(field.name)));
    }
    first = &field;
    const auto* number = std::get_if<std::uint64_t>(&field.value);
    if (number == nullptr || *number > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
      json_fail_at(json, field.value_offset,
                   fmt::format("{} is {}; expected a whole number from 0 to 2^31-1", json_quoted(field.name),
                               json_shown(field.value)));
    }
    samples = static_cast<int>(*number);
  }
  return samples;
}

void check_tables(std::string_view json, const JsonTables& tables) {
  for (const JsonTable& table : tables.tables) {
    if (contains(kScalars, table.name)) {
      json_fail_at(json, table.name_offset, fmt::format("{} must be a number, got an array", json_quoted(table.name)));
    }
    if (!contains(kTables, table.name)) fail_unknown(json, table.name, table.name_offset);
    if (&table != find_table(tables, table.name)) {
      json_fail_at(json, table.name_offset, fmt::format("{} is given twice", json_quoted(table.name)));
    }
  }
  const JsonTable* layers = find_table(tables, "layers");
  if (layers == nullptr) json_fail_at(json, tables.offset, "\"layers\" is missing");
  if (layers->records.empty())
    json_fail_at(json, layers->name_offset, "\"layers\" is empty; expected at least one layer");
}

}  // namespace

Profile parse_profile(std::string_view json) {
  const JsonTables tables = parse_json_tables(json);
  Profile profile;
  profile.samples_per_micro_batch = read_samples(json, tables);
  check_tables(json, tables);
  const std::vector<JsonRecord>& layers = find_table(tables, "layers")->records;
  for (std::size_t index = 0; index < layers.size(); ++index) {
    profile.layers.push_back(read_layer(Record(json, layers[index], kLayerForm, index)));
  }
  if (const JsonTable* skips = find_table(tables, "skips")) {
    const LayerFinder finder(profile.layers);
    for (std::size_t index = 0; index < skips->records.size(); ++index) {
      profile.skips.push_back(read_skip(Record(json, skips->records[index], kSkipForm, index), finder));
    }
  }
  return profile;
}

}  // namespace gpipe

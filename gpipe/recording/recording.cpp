#include "gpipe/recording/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/text/json.h"
#include "gpipe/text/json_record.h"

namespace gpipe::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr const char* kKindNames[kNumRecordKinds] = {"weight", "entered", "left",     "recomputed",
                                                     "loss",   "arrived", "gradient", "buffer"};

const std::vector<std::string> kHeaderFields = {"gpipe_recording", "pipeline", "process",    "world_size",
                                                "num_replicas",    "replica",  "num_stages", "num_micro_batches",
                                                "schedule",        "recompute"};
const JsonForm kHeaderForm = {"header", kHeaderFields, kHeaderFields.size()};
const JsonForm kLayerForm = {"layer", {"name", "type"}, 2};
const JsonForm kTensorForm = {
    "tensor", {"record", "step", "stage", "layer", "micro_batch", "name", "hash", "shape", "norm"}, 9};
const JsonForm kLossForm = {"whole loss", {"record", "step", "of_parts", "of_whole", "type"}, 5};
const JsonForm kStrayForm = {"stray weight", {"record", "layer", "shape"}, 3};
const JsonForm kProbeForm = {"probe", {"record", "layer", "has_own_generator", "problem"}, 4};
const JsonForm kCallForm = {"call", {"hash", "sum"}, 2};
const JsonForm kCompleteForm = {"end of a step", {"record", "step"}, 2};

// As text, because JSON has no infinities.
std::string number_text(double value) { return fmt::format("{:.17g}", value); }

double read_number(const JsonReader& reader, const char* field) {
  const std::string text = reader.string(field);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') reader.fail_value(reader.field(field), "a number as text");
  return value;
}

bool read_bool(const JsonReader& reader, const char* field) {
  const bool* value = std::get_if<bool>(&reader.field(field).value);
  if (value == nullptr) reader.fail_value(reader.field(field), "true or false");
  return *value;
}

// What a line is: the field "record" of it.
std::string record_of(const JsonTables& line) {
  for (const JsonField& field : line.top.fields) {
    if (field.name != "record") continue;
    if (const auto* text = std::get_if<std::string>(&field.value)) return *text;
  }
  return "";
}

Json to_json(const TensorRecord& record) {
  return {{"record", name(record.kind)},
          {"step", record.step},
          {"stage", record.stage},
          {"layer", record.layer},
          {"micro_batch", record.micro_batch < 0 ? Json("none") : Json(std::to_string(record.micro_batch))},
          {"name", record.name},
          {"hash", record.hash},
          {"shape", record.shape},
          {"norm", number_text(record.norm)}};
}

Json to_json(const LossRecord& record) {
  return {{"record", "whole loss"},
          {"step", record.step},
          {"of_parts", number_text(record.of_parts)},
          {"of_whole", number_text(record.of_whole)},
          {"type", record.type}};
}

Json to_json(const Probe& probe) {
  Json calls = Json::array();
  for (const ProbeCall& call : probe.calls) calls.push_back({{"hash", call.hash}, {"sum", number_text(call.sum)}});
  return {{"record", "probe"},
          {"layer", probe.layer},
          {"has_own_generator", probe.has_own_generator},
          {"problem", probe.problem},
          {"calls", calls}};
}

Json to_json(const StrayWeight& stray) {
  return {{"record", "stray weight"}, {"layer", stray.layer}, {"shape", stray.shape}};
}

template <typename Item>
void add_lines(std::string& text, const std::vector<Item>& items) {
  for (const Item& item : items) text += one_line_json(to_json(item)) + "\n";
}

// Reads a text line by line, and keeps what belongs to complete steps.
class Parser {
 public:
  Recording parse(std::string_view text) {
    int number = 0;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      if (end == std::string_view::npos) break;
      parse_line(text.substr(0, end), ++number);
      text.remove_prefix(end + 1);
    }
    if (number == 0) throw ParseError("the recording is empty", 0, 0);
    return std::move(recording_);
  }

 private:
  void parse_line(std::string_view line, int number) {
    try {
      const JsonTables tables = parse_json_tables(line);
      if (number == 1) {
        parse_header(line, tables);
      } else {
        parse_record(line, tables);
      }
    } catch (const ParseError& error) {
      throw ParseError(fmt::format("line {} of the recording: {}", number, error.what()), number, error.column());
    }
  }

  void parse_header(std::string_view line, const JsonTables& tables) {
    check_json_tables(line, tables, kHeaderForm, {"layers"});
    const JsonReader reader(line, tables.top, kHeaderForm, "");
    if (reader.count("gpipe_recording", 1) != kVersion) {
      reader.fail_value(reader.field("gpipe_recording"), fmt::format("{}", kVersion));
    }
    RecordingHeader& header = recording_.header;
    header.pipeline = reader.count("pipeline", 0);
    header.process = reader.count("process", 0);
    header.world_size = reader.count("world_size", 1);
    header.num_replicas = reader.count("num_replicas", 1);
    header.replica = reader.count("replica", 0);
    header.num_stages = reader.count("num_stages", 1);
    header.num_micro_batches = reader.count("num_micro_batches", 1);
    header.schedule = reader.string("schedule");
    header.recompute = reader.string("recompute");
    const JsonTable* layers = find_json_table(tables, "layers");
    if (layers == nullptr) reader.fail(tables.top.offset, "\"layers\" is missing");
    for (const JsonRecord& record : layers->records) {
      const JsonReader layer(line, record, kLayerForm, "layers: ");
      header.layers.push_back({layer.string("name"), layer.string("type")});
    }
  }

  void parse_record(std::string_view line, const JsonTables& tables) {
    const std::string what = record_of(tables);
    if (what == "probe") return parse_probe(line, tables);
    if (what == "complete") return complete(JsonReader(line, tables.top, kCompleteForm, ""));
    if (what == "whole loss") {
      const JsonReader reader(line, tables.top, kLossForm, "");
      begun_.losses.push_back({reader.bytes("step"), read_number(reader, "of_parts"), read_number(reader, "of_whole"),
                               reader.string("type")});
      return;
    }
    if (what == "stray weight") {
      const JsonReader reader(line, tables.top, kStrayForm, "");
      recording_.strays.push_back({reader.count("layer", 0), reader.string("shape")});
      return;
    }
    const JsonReader reader(line, tables.top, kTensorForm, "");
    for (int kind = 0; kind < kNumRecordKinds; ++kind) {
      if (what == kKindNames[kind]) return parse_tensor(reader, static_cast<RecordKind>(kind));
    }
    reader.fail_value(reader.field("record"), "a kind of record");
  }

  void parse_tensor(const JsonReader& reader, RecordKind kind) {
    TensorRecord record;
    record.kind = kind;
    record.step = reader.bytes("step");
    record.stage = reader.count("stage", 0);
    record.layer = reader.count("layer", 0);
    const std::string micro_batch = reader.string("micro_batch");
    if (micro_batch != "none") record.micro_batch = static_cast<int>(read_number(reader, "micro_batch"));
    record.name = reader.string("name");
    record.hash = reader.string("hash");
    record.shape = reader.string("shape");
    record.norm = read_number(reader, "norm");
    // Weights stand before their step, and count by themselves: the last ones have no step behind them.
    (kind == RecordKind::kWeight ? recording_ : begun_).tensors.push_back(std::move(record));
  }

  void parse_probe(std::string_view line, const JsonTables& tables) {
    check_json_tables(line, tables, kProbeForm, {"calls"});
    const JsonReader reader(line, tables.top, kProbeForm, "");
    Probe probe;
    probe.layer = reader.count("layer", 0);
    probe.has_own_generator = read_bool(reader, "has_own_generator");
    probe.problem = reader.string("problem");
    if (const JsonTable* calls = find_json_table(tables, "calls")) {
      for (const JsonRecord& record : calls->records) {
        const JsonReader call(line, record, kCallForm, "calls: ");
        probe.calls.push_back({call.string("hash"), read_number(call, "sum")});
      }
    }
    recording_.probes.push_back(std::move(probe));
  }

  void complete(const JsonReader& reader) {
    recording_.num_steps = std::max(recording_.num_steps, reader.bytes("step") + 1);
    for (TensorRecord& record : begun_.tensors) recording_.tensors.push_back(std::move(record));
    for (const LossRecord& loss : begun_.losses) recording_.losses.push_back(loss);
    begun_ = {};
  }

  Recording recording_;
  Recording begun_;  // of a step that is not complete yet
};

}  // namespace

const char* name(RecordKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::string to_line(const RecordingHeader& header) {
  Json json = {{"gpipe_recording", kVersion},         {"pipeline", header.pipeline},
               {"process", header.process},           {"world_size", header.world_size},
               {"num_replicas", header.num_replicas}, {"replica", header.replica},
               {"num_stages", header.num_stages},     {"num_micro_batches", header.num_micro_batches},
               {"schedule", header.schedule},         {"recompute", header.recompute}};
  json["layers"] = Json::array();
  for (const RecordedLayer& layer : header.layers) {
    json["layers"].push_back({{"name", layer.name}, {"type", layer.type}});
  }
  return one_line_json(json) + "\n";
}

std::string to_lines(const Recording& added, bool completes_step) {
  std::string text;
  add_lines(text, added.tensors);
  add_lines(text, added.losses);
  add_lines(text, added.strays);
  add_lines(text, added.probes);
  if (completes_step) text += one_line_json(Json{{"record", "complete"}, {"step", added.num_steps - 1}}) + "\n";
  return text;
}

Recording parse_recording(std::string_view text) { return Parser().parse(text); }

std::string recording_file_name(int pipeline, int process) {
  return fmt::format("pipeline{}.rank{}.jsonl", pipeline, process);
}

}  // namespace gpipe::detail

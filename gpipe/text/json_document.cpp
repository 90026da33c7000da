#include "gpipe/text/json_document.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {
namespace {

template <typename Json>
class DocumentBuilder : public JsonReceiver {
 public:
  Json take() { return std::move(document_); }

  void begin_object(std::size_t /*offset*/) override {
    open_.push_back(put(Json::object()));
    names_.emplace_back();
  }
  void end_object(std::size_t /*offset*/) override {
    open_.pop_back();
    names_.pop_back();
  }
  void begin_list(std::size_t /*offset*/) override { open_.push_back(put(Json::array())); }
  void end_list(std::size_t /*offset*/) override { open_.pop_back(); }
  void name(std::string name, std::size_t offset) override {
    if (!names_.back().insert(name).second) {
      JsonProblem problem(JsonProblem::kNameTwice, fmt::format("\"{}\" occurs twice", name), offset + 1);
      problem.name = std::move(name);
      throw problem;
    }
    name_ = std::move(name);
  }
  void value(JsonScalar value, std::size_t /*offset*/, std::string_view /*fraction*/) override {
    put(std::visit([](auto& scalar) { return Json(std::move(scalar)); }, value));
  }

 private:
  // The place stays where it is until the list or the object that it is in ends or gets another value.
  Json* put(Json value) {
    if (open_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[name_] = std::move(value));
  }

  Json document_;
  std::vector<Json*> open_;                   // the lists and objects around the next value
  std::vector<std::set<std::string>> names_;  // of each open object
  std::string name_;                          // of the next value, if it is in an object
};

template <typename Json>
Json document(std::string_view text, const JsonLimits& limits) {
  DocumentBuilder<Json> builder;
  read_json(text, builder, limits);
  return builder.take();
}

}  // namespace

nlohmann::json json_document(std::string_view text, const JsonLimits& limits) {
  return document<nlohmann::json>(text, limits);
}

nlohmann::ordered_json ordered_json_document(std::string_view text, const JsonLimits& limits) {
  return document<nlohmann::ordered_json>(text, limits);
}

std::optional<nlohmann::json> find_json_document(std::string_view text) {
  try {
    return json_document(text);
  } catch (const JsonProblem&) {
    return std::nullopt;
  }
}

}  // namespace gpipe

#include "gpipe/text/json.h"

#include <fmt/format.h>

#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "gpipe/text/utf8.h"

namespace gpipe::detail {
namespace {

// Hands the text to the JSON parser and counts what it has taken.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  std::size_t* taken;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    ++at;
    ++*taken;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

// Passes the parser's events on: its public methods are the parser's interface.
class Events {
 public:
  Events(std::string_view text, const std::size_t& taken, JsonReceiver& receiver, int most_depth)
      : text_(text), taken_(taken), receiver_(receiver), most_depth_(most_depth) {}

  bool null() { return scalar(nullptr, last_taken()); }
  bool boolean(bool value) { return scalar(value, last_taken()); }
  bool number_integer(std::int64_t value) { return scalar(value, last_digit()); }
  bool number_unsigned(std::uint64_t value) { return scalar(value, last_digit()); }
  bool number_float(double value, const std::string& written) { return scalar(value, last_digit(), written); }
  bool string(std::string& value) { return scalar(std::move(value), last_taken()); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return false; }

  bool start_object(std::size_t /*size*/) { return begin(&JsonReceiver::begin_object); }
  bool start_array(std::size_t /*size*/) { return begin(&JsonReceiver::begin_list); }
  bool end_object() { return end(&JsonReceiver::end_object); }
  bool end_array() { return end(&JsonReceiver::end_list); }
  bool key(std::string& name) {
    check_depth();
    receiver_.name(std::move(name), last_taken());
    return true;
  }

  // The parser's message is "[id] parse error at line 1, column 2: what; last read: '...'"; only the end is kept.
  bool parse_error(std::size_t position, const std::string& /*token*/, const nlohmann::detail::exception& error) const {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) {
      throw JsonProblem(JsonProblem::kNumberTooLarge, "a number is too large for a double", position);
    }
    const std::string_view message = error.what();
    const std::size_t colon = message.find(": ");
    JsonProblem problem(JsonProblem::kNotJson,
                        std::string(message.substr(colon == std::string_view::npos ? 0 : colon + 2)), position);
    problem.invalid_utf8 = find_invalid_utf8(text_);
    if (problem.invalid_utf8 != std::string_view::npos) problem.kind = JsonProblem::kNotUtf8;
    throw problem;
  }

 private:
  using Told = void (JsonReceiver::*)(std::size_t offset);
  bool begin(Told told) {
    check_depth();
    (receiver_.*told)(last_taken());
    ++depth_;
    return true;
  }
  bool end(Told told) {
    --depth_;
    (receiver_.*told)(last_taken());
    return true;
  }

  std::size_t last_taken() const { return taken_ - 1; }

  // The parser knows a number's end by the character behind it, which it has taken too unless the text ends there.
  std::size_t last_digit() const {
    const char last = text_[taken_ - 1];
    return last >= '0' && last <= '9' ? taken_ - 1 : taken_ - 2;
  }

  bool scalar(JsonScalar value, std::size_t offset, std::string_view fraction = {}) {
    check_depth();
    receiver_.value(std::move(value), offset, fraction);
    return true;
  }

  void check_depth() const {
    if (depth_ > most_depth_) throw JsonProblem(JsonProblem::kTooDeep, "nested too deeply", taken_);
  }

  std::string_view text_;
  const std::size_t& taken_;
  JsonReceiver& receiver_;
  const int most_depth_;
  int depth_ = 0;
};

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

void read_json(std::string_view text, JsonReceiver& receiver, const JsonLimits& limits) {
  if (text.size() > limits.most_bytes) {
    throw JsonProblem(JsonProblem::kTooLong, fmt::format("{} bytes, more than {}", text.size(), limits.most_bytes), 0);
  }
  std::size_t taken = 0;
  Events events(text, taken, receiver, limits.most_depth);
  nlohmann::json::sax_parse(Cursor{text.data(), &taken}, Cursor{text.data() + text.size(), &taken}, &events);
}

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

}  // namespace gpipe::detail

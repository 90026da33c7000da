// JSON that others wrote is read strictly, within limits, and every refusal says where.
#include "gpipe/text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace gpipe {
namespace {

using detail::find_json_document;
using detail::indented_json;
using detail::json_document;
using detail::JsonLimits;
using detail::JsonProblem;
using detail::JsonReceiver;
using detail::JsonScalar;
using detail::one_line_json;
using detail::ordered_json_document;
using detail::read_json;

using testing::ElementsAre;

// Writes down what it is told.
class Notes : public JsonReceiver {
 public:
  void begin_object(std::size_t offset) override { add("{", offset); }
  void end_object(std::size_t offset) override { add("}", offset); }
  void begin_list(std::size_t offset) override { add("[", offset); }
  void end_list(std::size_t offset) override { add("]", offset); }
  void name(std::string name, std::size_t offset) override { add(name + ":", offset); }
  void value(JsonScalar value, std::size_t offset, std::string_view fraction) override {
    add("value" + std::to_string(value.index()) + std::string(fraction), offset);
  }

  std::vector<std::string> notes;

 private:
  void add(const std::string& what, std::size_t offset) { notes.push_back(what + "@" + std::to_string(offset)); }
};

JsonProblem problem_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    json_document(text, limits);
  } catch (const JsonProblem& problem) {
    return problem;
  }
  ADD_FAILURE() << text << " was read";
  return {JsonProblem::kNotJson, "", 0};
}

TEST(Json, TellsWhatItReadsAndWhereItEnds) {
  Notes receiver;
  read_json(R"({"a": [1, -2, 1.50e0, "s"], "b": null})", receiver);
  EXPECT_THAT(receiver.notes, ElementsAre("{@0", "a:@3", "[@6", "value3@7", "value2@11", "value41.50e0@19", "value5@24",
                                          "]@25", "b:@30", "value0@36", "}@37"));
}

TEST(Json, ADocumentIsWhatTheTextSays) {
  const std::string text = R"({"b":[{"x":1.5},[],-7],"a":{"c":true,"d":null},"z":18446744073709551615})";
  EXPECT_EQ(json_document(text), nlohmann::json::parse(text));
  EXPECT_EQ(one_line_json(ordered_json_document(text)), text);
  EXPECT_EQ(json_document(" 3 "), 3);
}

TEST(Json, EveryRefusalSaysWhyAndWhere) {
  EXPECT_EQ(problem_of("[1, x]").kind, JsonProblem::kNotJson);
  EXPECT_EQ(problem_of("[1, x]").byte, 5u);
  EXPECT_EQ(problem_of("").kind, JsonProblem::kNotJson);
  EXPECT_EQ(problem_of("[1] 2").kind, JsonProblem::kNotJson);
  EXPECT_EQ(problem_of("[1e999]").kind, JsonProblem::kNumberTooLarge);
  const JsonProblem not_utf8 = problem_of("[\"\xc3\xa4\xff\"]");
  EXPECT_EQ(not_utf8.kind, JsonProblem::kNotUtf8);
  EXPECT_EQ(not_utf8.invalid_utf8, 4u);
  EXPECT_FALSE(find_json_document("{").has_value());
  EXPECT_TRUE(find_json_document("{}")->is_object());
}

TEST(Json, ANameMayOccurOnceInAnObject) {
  const JsonProblem twice = problem_of(R"([{"a": 1, "b": {"a": 2}}, {"a": 3, "a": 4}])");
  EXPECT_EQ(twice.kind, JsonProblem::kNameTwice);
  EXPECT_EQ(twice.name, "a");
}

TEST(Json, LimitsAreKept) {
  EXPECT_EQ(json_document("[[1]]", {5, 2})[0][0], 1);
  EXPECT_EQ(problem_of("[[1]]", {4, 2}).kind, JsonProblem::kTooLong);
  EXPECT_EQ(problem_of("[[1]]", {5, 1}).kind, JsonProblem::kTooDeep);
  EXPECT_EQ(problem_of("[[{\"a\": 1}]]", {99, 2}).kind, JsonProblem::kTooDeep);
  EXPECT_EQ(problem_of(std::string(1 << 20, '['), {std::size_t{1} << 20, 16}).kind, JsonProblem::kTooDeep);
}

TEST(Json, ArbitraryBytesAreReadOrRefusedAndNothingElse) {
  const std::string sound = R"({"name": ["x", 1.5e3, -2, true, null], "other": {"ä": "\u00e4"}})";
  std::mt19937 random(1);
  int num_read = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = sound;
    text[random() % text.size()] = static_cast<char>(random());
    const std::optional<nlohmann::json> document = find_json_document(text);
    if (!document) continue;
    EXPECT_EQ(*document, nlohmann::json::parse(text));
    ++num_read;
  }
  EXPECT_GT(num_read, 50);
  EXPECT_LT(num_read, 4000);
}

TEST(Json, TextIsValidUtf8WhateverItsStringsHold) {
  EXPECT_EQ(one_line_json(nlohmann::json("a\xff")), "\"a\ufffd\"");
  EXPECT_EQ(indented_json(nlohmann::ordered_json{{"b", 1}, {"a", 2}}), "{\n  \"b\": 1,\n  \"a\": 2\n}\n");
}

}  // namespace
}  // namespace gpipe

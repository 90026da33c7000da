// A profile's JSON: both ways without loss, and every refusal says where and why.
#include "gpipe/plan/profile.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <tuple>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

const std::string kCosts =
    R"("forward_seconds":1,"backward_seconds":2,"parameter_bytes":3,"activation_bytes":4,"output_bytes":5)";
const std::string kLayer = R"({"name":"conv",)" + kCosts + "}";
const std::string kHead = R"({"name":"head",)" + kCosts + "}";
const std::string kSkip = R"({"name":"residual","from":0,"to":1,"bytes":6})";

std::string document(const std::string& layers, const std::string& skips = "") {
  return "{\"layers\": [\n" + layers + "\n], \"skips\": [\n" + skips + "\n]}";
}

std::string with(const std::string& record, const std::string& old_part, const std::string& new_part) {
  std::string changed = record;
  const std::size_t at = changed.find(old_part);
  EXPECT_NE(at, std::string::npos) << old_part;
  return changed.replace(at, old_part.size(), new_part);
}

std::string refusal(const std::string& json) {
  try {
    parse_profile(json);
  } catch (const ParseError& error) {
    EXPECT_GT(error.line(), 0);
    EXPECT_GT(error.column(), 0);
    const std::string place =
        "line " + std::to_string(error.line()) + ", column " + std::to_string(error.column()) + ": ";
    EXPECT_THAT(error.what(), StartsWith(place));
    return error.what();
  }
  return "not refused";
}

// What is said about a layer in which a part is replaced.
std::string layer_refusal(const std::string& old_part, const std::string& new_part) {
  return refusal(document(kHead + ",\n" + with(kLayer, old_part, new_part)));
}

std::string skip_refusal(const std::string& old_part, const std::string& new_part) {
  return refusal(document(kLayer + "," + kHead, with(kSkip, old_part, new_part)));
}

Profile awkward_profile() {
  Profile profile;
  LayerProfile layer;
  layer.name = "quote \" slash \\ nul \0 tab \t \u00e9";
  layer.forward_seconds = 0.1;
  layer.backward_seconds = 1.0 / 3;
  layer.input_grad_seconds = 5e-324;
  layer.weight_grad_seconds = std::numeric_limits<double>::max();
  layer.fixed_forward_seconds = 0.1;
  layer.fixed_backward_seconds = 5e-324;
  layer.parameter_bytes = kMaxBytes;
  layer.activation_bytes = (std::int64_t{1} << 53) + 1;
  layer.gradient_bytes = 0;
  layer.buffer_bytes = 11;
  layer.output_bytes = 13;
  layer.kept_output_bytes = 12;
  layer.forward_working_bytes = kMaxBytes;
  layer.backward_working_bytes = kMaxBytes - 1;
  layer.deferred_bytes = 17;
  layer.deferred_output_bytes = 10;
  layer.input_grad_working_bytes = kMaxBytes - 2;
  layer.weight_grad_working_bytes = 19;
  profile.samples_per_micro_batch = 3;
  profile.layers.push_back(layer);
  profile.layers.push_back({});
  profile.layers[1].weight_grad_seconds = 1e22;
  profile.skips.push_back({"a", 0, 1, 7});
  profile.skips.push_back({"", 1, 1, 0});
  return profile;
}

TEST(Profile, ComesBackFromItsJsonBitForBit) {
  const Profile profile = awkward_profile();
  const Profile again = parse_profile(to_json(profile));
  ASSERT_EQ(again.layers.size(), profile.layers.size());
  for (std::size_t layer = 0; layer < profile.layers.size(); ++layer) {
    EXPECT_EQ(again.layers[layer].name, profile.layers[layer].name);
    EXPECT_EQ(again.layers[layer].forward_seconds, profile.layers[layer].forward_seconds);
    EXPECT_EQ(again.layers[layer].backward_seconds, profile.layers[layer].backward_seconds);
    EXPECT_EQ(again.layers[layer].input_grad_seconds, profile.layers[layer].input_grad_seconds);
    EXPECT_EQ(again.layers[layer].weight_grad_seconds, profile.layers[layer].weight_grad_seconds);
    EXPECT_EQ(again.layers[layer].fixed_forward_seconds, profile.layers[layer].fixed_forward_seconds);
    EXPECT_EQ(again.layers[layer].fixed_backward_seconds, profile.layers[layer].fixed_backward_seconds);
    EXPECT_EQ(again.layers[layer].parameter_bytes, profile.layers[layer].parameter_bytes);
    EXPECT_EQ(again.layers[layer].activation_bytes, profile.layers[layer].activation_bytes);
    EXPECT_EQ(again.layers[layer].output_bytes, profile.layers[layer].output_bytes);
    EXPECT_EQ(again.layers[layer].gradient_bytes, profile.layers[layer].gradient_bytes);
    EXPECT_EQ(again.layers[layer].buffer_bytes, profile.layers[layer].buffer_bytes);
    EXPECT_EQ(again.layers[layer].kept_output_bytes, profile.layers[layer].kept_output_bytes);
    EXPECT_EQ(again.layers[layer].forward_working_bytes, profile.layers[layer].forward_working_bytes);
    EXPECT_EQ(again.layers[layer].backward_working_bytes, profile.layers[layer].backward_working_bytes);
    EXPECT_EQ(again.layers[layer].deferred_bytes, profile.layers[layer].deferred_bytes);
    EXPECT_EQ(again.layers[layer].deferred_output_bytes, profile.layers[layer].deferred_output_bytes);
    EXPECT_EQ(again.layers[layer].input_grad_working_bytes, profile.layers[layer].input_grad_working_bytes);
    EXPECT_EQ(again.layers[layer].weight_grad_working_bytes, profile.layers[layer].weight_grad_working_bytes);
  }
  EXPECT_EQ(again.samples_per_micro_batch, 3);
  ASSERT_EQ(again.skips.size(), profile.skips.size());
  for (std::size_t skip = 0; skip < profile.skips.size(); ++skip) {
    EXPECT_EQ(again.skips[skip].name, profile.skips[skip].name);
    EXPECT_EQ(again.skips[skip].from, profile.skips[skip].from);
    EXPECT_EQ(again.skips[skip].to, profile.skips[skip].to);
    EXPECT_EQ(again.skips[skip].bytes, profile.skips[skip].bytes);
  }
}

TEST(Profile, RandomDoublesComeBackBitForBit) {
  std::mt19937_64 random(1);
  Profile profile;
  while (profile.layers.size() < 5000) {
    const std::uint64_t bits = random() >> 1;  // no sign
    double seconds;
    static_assert(sizeof seconds == sizeof bits);
    std::memcpy(&seconds, &bits, sizeof seconds);
    if (!std::isfinite(seconds)) continue;
    profile.layers.emplace_back();
    profile.layers.back().forward_seconds = seconds;
  }
  const Profile again = parse_profile(to_json(profile));
  for (std::size_t layer = 0; layer < profile.layers.size(); ++layer) {
    ASSERT_EQ(again.layers[layer].forward_seconds, profile.layers[layer].forward_seconds);
  }
}

TEST(Profile, IsWrittenOneLineALayerAndASkip) {
  const auto with_points = [](const std::string& layer) { return with(with(layer, ":1,", ":1.0,"), ":2,", ":2.0,"); };
  EXPECT_EQ(to_json(parse_profile(document(kLayer + "," + kHead, kSkip))),
            "{\n  \"layers\": [\n    " + with_points(kLayer) + ",\n    " + with_points(kHead) +
                "\n  ],\n  \"skips\": [\n    " + kSkip + "\n  ]\n}\n");
  EXPECT_EQ(to_json(parse_profile(document(kLayer))),
            "{\n  \"layers\": [\n    " + with_points(kLayer) + "\n  ],\n  \"skips\": []\n}\n");
}

TEST(Profile, NamesThatAreNotUtf8AreWrittenAsReplacementCharacters) {
  Profile profile;
  profile.layers.emplace_back();
  profile.layers[0].name =
      "a\xff"
      "b";
  EXPECT_EQ(parse_profile(to_json(profile)).layers[0].name,
            "a\xef\xbf\xbd"
            "b");
}

TEST(Profile, SkipsMayBeAbsentAndStandBeforeTheLayers) {
  EXPECT_TRUE(parse_profile("{\"layers\":[" + kLayer + "]}").skips.empty());
  const Profile profile = parse_profile("{\"skips\":[" + kSkip + "], \"layers\":[" + kLayer + "," + kHead + "]}");
  EXPECT_EQ(profile.skips[0].to, 1);
}

TEST(Profile, ASkipMayNameItsLayers) {
  const std::string named = R"({"name":"residual","from":"conv","to":"head","bytes":6})";
  const Profile profile = parse_profile(document(kLayer + "," + kHead, named));
  EXPECT_EQ(profile.skips[0].from, 0);
  EXPECT_EQ(profile.skips[0].to, 1);
  EXPECT_THAT(refusal(document(kLayer + "," + kHead + "," + kHead, named)),
              AllOf(HasSubstr("skip 0 \"residual\""), HasSubstr("\"to\" names layer \"head\""), HasSubstr("several")));
  EXPECT_THAT(skip_refusal("\"to\":1", "\"to\":\"haed\""),
              AllOf(HasSubstr("\"haed\", which does not exist"), HasSubstr("did you mean \"head\"?")));
}

TEST(Profile, WholeNumbersMayHaveAPointOrAnExponent) {
  const Profile profile = parse_profile(document(with(with(kLayer, ":3,", ":3e6,"), ":4,", ":-0,")));
  EXPECT_EQ(profile.layers[0].parameter_bytes, 3000000);
  EXPECT_EQ(profile.layers[0].activation_bytes, 0);
  EXPECT_FALSE(std::signbit(parse_profile(document(with(kLayer, ":1,", ":-0.0,"))).layers[0].forward_seconds));
}

TEST(Profile, RefusesUnknownFieldsAndSuggestsTheNearest) {
  EXPECT_THAT(layer_refusal("forward_seconds", "forward_second"),
              AllOf(HasSubstr("layer 1 \"conv\": unknown field \"forward_second\""),
                    HasSubstr("did you mean \"forward_seconds\"?"), StartsWith("line 3, column 31:")));
  EXPECT_THAT(skip_refusal("bytes", "byte"),
              AllOf(HasSubstr("skip 0 \"residual\": unknown field \"byte\""), HasSubstr("did you mean \"bytes\"?")));
  EXPECT_THAT(refusal("{\"layer\":[" + kLayer + "]}"),
              AllOf(HasSubstr("unknown field \"layer\""), HasSubstr("did you mean \"layers\"?")));
  EXPECT_THAT(layer_refusal("\"name\"", "\"" + std::string(1000000, 'x') + "\""), HasSubstr("unknown field \"xxx"));
}

TEST(Profile, RefusesFieldsGivenTwice) {
  EXPECT_THAT(layer_refusal("\"name\"", "\"output_bytes\":1,\"name\""), HasSubstr("\"output_bytes\" is given twice"));
  EXPECT_THAT(skip_refusal("\"from\":0", "\"from\":0,\"from\":0"), HasSubstr("\"from\" is given twice"));
  EXPECT_THAT(refusal("{\"layers\":[" + kLayer + "],\"layers\":[" + kLayer + "]}"),
              HasSubstr("\"layers\" is given twice"));
}

TEST(Profile, RefusesMissingFields) {
  for (const std::string field : {"\"name\":\"conv\",", "\"forward_seconds\":1,", "\"backward_seconds\":2,",
                                  "\"parameter_bytes\":3,", "\"activation_bytes\":4,"}) {
    const std::string name = field.substr(0, field.find(':'));
    EXPECT_THAT(layer_refusal(field, ""), AllOf(HasSubstr("layer 1"), HasSubstr(name + " is missing")));
  }
  EXPECT_THAT(layer_refusal(",\"output_bytes\":5", ""), HasSubstr("\"output_bytes\" is missing"));
  for (const std::string field : {"\"name\":\"residual\",", "\"from\":0,", "\"to\":1,"}) {
    const std::string name = field.substr(0, field.find(':'));
    EXPECT_THAT(skip_refusal(field, ""), AllOf(HasSubstr("skip 0"), HasSubstr(name + " is missing")));
  }
  EXPECT_THAT(skip_refusal(",\"bytes\":6", ""), HasSubstr("\"bytes\" is missing"));
  EXPECT_THAT(refusal("{}"), HasSubstr("\"layers\" is missing"));
  EXPECT_THAT(refusal("{\"layers\":[]}"), HasSubstr("\"layers\" is empty"));
}

TEST(Profile, RefusesSecondsThatAreNotFiniteAndAtLeastZero) {
  for (const char* value : {"-1", "-0.5", "\"1\"", "null", "true"}) {
    EXPECT_THAT(layer_refusal(":1,", ":" + std::string(value) + ","),
                AllOf(HasSubstr("layer 1 \"conv\": \"forward_seconds\" is " + std::string(value)),
                      HasSubstr("expected a number of seconds, 0 or more")));
  }
  EXPECT_THAT(layer_refusal("\"name\"", "\"input_grad_seconds\":-3,\"name\""),
              HasSubstr("\"input_grad_seconds\" is -3"));
  EXPECT_THAT(layer_refusal(":1,", ":1e999,"), HasSubstr("too large for a double"));
  EXPECT_THAT(layer_refusal(":1,", ":NaN,"), HasSubstr("syntax error"));
  EXPECT_THAT(layer_refusal(":1,", ":Infinity,"), HasSubstr("syntax error"));
}

TEST(Profile, RefusesFixedSecondsThatAreNoPartOfTheSeconds) {
  for (const auto& [field, all, most] : {std::tuple("fixed_forward_seconds", "forward_seconds", "1"),
                                         std::tuple("fixed_backward_seconds", "backward_seconds", "2")}) {
    const auto with_fixed = [&, name = field](const std::string& value) {
      return layer_refusal("\"name\"", fmt::format("\"{}\":{},\"name\"", name, value));
    };
    EXPECT_EQ(with_fixed("0"), "not refused");
    EXPECT_EQ(with_fixed(most), "not refused");
    EXPECT_THAT(with_fixed("2.5"), AllOf(HasSubstr(fmt::format("layer 1 \"conv\": \"{}\" is 2.5", field)),
                                         HasSubstr(fmt::format("at most \"{}\" ({})", all, most))));
    EXPECT_THAT(with_fixed("-1"), HasSubstr("expected a number of seconds, 0 or more"));
    EXPECT_THAT(with_fixed("null"), HasSubstr(fmt::format("\"{}\" is null", field)));
  }
  Profile profile = parse_profile(document(kLayer));
  profile.layers[0].fixed_backward_seconds = 2.5;
  EXPECT_THAT([&] { check_profile(profile); },
              ::testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("fixed_backward_seconds is 2.5; expected at most backward_seconds (2), of which")));
  profile.layers[0].fixed_backward_seconds = std::nan("");
  EXPECT_THROW(check_profile(profile), InvalidArgument);
}

TEST(Profile, RefusesBytesThatAreNotWholeOrTooMany) {
  for (const char* value : {"-1", "0.5", "9223372036854775808", "9007199254740994.0", "1e+300", "\"3\"", "false"}) {
    EXPECT_THAT(
        layer_refusal(":3,", ":" + std::string(value) + ","),
        AllOf(HasSubstr("layer 1 \"conv\": \"parameter_bytes\" is "), HasSubstr("expected a whole number of bytes")))
        << value;
  }
  EXPECT_THAT(skip_refusal(":6", ":-6"), HasSubstr("skip 0 \"residual\": \"bytes\" is -6"));
}

TEST(Profile, FieldsThatOlderFilesLackMayBeAbsent) {
  const Profile profile = parse_profile(document(kLayer));
  EXPECT_EQ(profile.samples_per_micro_batch, 0);
  EXPECT_EQ(profile.layers[0].fixed_forward_seconds, std::nullopt);
  EXPECT_EQ(profile.layers[0].fixed_backward_seconds, std::nullopt);
  EXPECT_EQ(profile.layers[0].gradient_bytes, std::nullopt);
  EXPECT_EQ(gradient_bytes(profile.layers[0]), 3);
  EXPECT_EQ(profile.layers[0].buffer_bytes, 0);
  EXPECT_EQ(profile.layers[0].kept_output_bytes, 0);
  EXPECT_EQ(profile.layers[0].forward_working_bytes, std::nullopt);
  EXPECT_EQ(profile.layers[0].backward_working_bytes, std::nullopt);
  EXPECT_EQ(working_bytes(profile.layers[0]), 4);
  EXPECT_EQ(profile.layers[0].deferred_bytes, std::nullopt);
  EXPECT_EQ(deferred_bytes(profile.layers[0]), 4);
  EXPECT_EQ(profile.layers[0].deferred_output_bytes, 0);
  EXPECT_EQ(input_grad_working_bytes(profile.layers[0]), 4);
  EXPECT_EQ(weight_grad_working_bytes(profile.layers[0]), 4);
}

TEST(Profile, TakesKeptOutputsOfAnySizeWithoutAddingThemUp) {
  const std::string huge = std::to_string(kMaxBytes);
  const std::string costs = R"("forward_seconds":1,"backward_seconds":2,"parameter_bytes":3,"activation_bytes":)" +
                            huge + R"(,"output_bytes":)" + huge + R"(,"kept_output_bytes":)" + huge;
  const Profile profile = parse_profile(document(R"({"name":"a",)" + costs + R"(},{"name":"b",)" + costs + "}"));
  EXPECT_EQ(profile.layers[1].kept_output_bytes, kMaxBytes);
  EXPECT_THROW(check_profile(profile), InvalidArgument);
}

TEST(Profile, RefusesBytesThatContradictEachOther) {
  EXPECT_THAT(layer_refusal("\"name\"", "\"kept_output_bytes\":5,\"name\""),
              AllOf(HasSubstr("layer 1 \"conv\": \"kept_output_bytes\" is 5"),
                    HasSubstr("at most \"output_bytes\" (5), and \"activation_bytes\" with")));
  for (const std::string field : {"forward_working_bytes", "backward_working_bytes", "input_grad_working_bytes"}) {
    EXPECT_THAT(
        layer_refusal("\"name\"", "\"" + field + "\":3,\"name\""),
        AllOf(HasSubstr("layer 1 \"conv\": \"" + field + "\" is 3"), HasSubstr("at least \"activation_bytes\" (4)")));
  }
  EXPECT_THAT(layer_refusal("\"name\"", "\"deferred_bytes\":2,\"deferred_output_bytes\":3,\"name\""),
              AllOf(HasSubstr("layer 1 \"conv\": \"deferred_output_bytes\" is 3"),
                    HasSubstr("at most \"output_bytes\" (5), and \"deferred_bytes\" with")));
  EXPECT_THAT(layer_refusal("\"name\"", "\"deferred_bytes\":6,\"weight_grad_working_bytes\":5,\"name\""),
              AllOf(HasSubstr("layer 1 \"conv\": \"weight_grad_working_bytes\" is 5"),
                    HasSubstr("at least \"deferred_bytes\" (6)")));
}

TEST(Profile, RefusesDeferredBytesThatContradictEachOtherInAProgramToo) {
  const auto problem = [](const std::function<void(LayerProfile&)>& change) -> std::string {
    Profile profile = parse_profile(document(kLayer));
    change(profile.layers[0]);
    try {
      check_profile(profile);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(problem([](LayerProfile& layer) { layer.deferred_bytes = 9; }), "none");
  EXPECT_THAT(problem([](LayerProfile& layer) { layer.deferred_bytes = -1; }), HasSubstr("deferred_bytes is -1"));
  EXPECT_THAT(problem([](LayerProfile& layer) { layer.deferred_output_bytes = 5; }),
              HasSubstr("deferred_output_bytes is 5; expected at most output_bytes (5), and deferred_bytes"));
  EXPECT_THAT(problem([](LayerProfile& layer) { layer.input_grad_working_bytes = 3; }),
              HasSubstr("input_grad_working_bytes is 3; expected at least activation_bytes (4)"));
  EXPECT_THAT(problem([](LayerProfile& layer) { layer.weight_grad_working_bytes = 3; }),
              HasSubstr("weight_grad_working_bytes is 3; expected at least deferred_bytes (4)"));
}

TEST(Profile, RefusesSamplesThatAreNotAWholeNumber) {
  const auto with_samples = [](const std::string& value) {
    return refusal("{\"samples_per_micro_batch\": " + value + ", \"layers\":[" + kLayer + "]}");
  };
  EXPECT_EQ(with_samples("8"), "not refused");
  for (const char* value : {"-1", "0.5", "null", "\"8\"", "2147483648"}) {
    EXPECT_THAT(with_samples(value), HasSubstr("\"samples_per_micro_batch\" is " + std::string(value))) << value;
  }
  EXPECT_THAT(with_samples("[]"), HasSubstr("\"samples_per_micro_batch\" must be a number or a string, got an array"));
  EXPECT_THAT(with_samples("1, \"samples_per_micro_batch\": 1"), HasSubstr("is given twice"));
  EXPECT_THAT(with_samples("1, \"sample\": 1"), HasSubstr("unknown field \"sample\""));
}

TEST(Profile, RefusesSkipsThatLeadNowhereOrBack) {
  for (const char* value : {"2", "-1", "0.0", "null", "18446744073709551615"}) {
    EXPECT_THAT(skip_refusal("\"to\":1", "\"to\":" + std::string(value)),
                AllOf(HasSubstr("skip 0 \"residual\": \"to\" is "), HasSubstr("an index from 0 to 1, or a name")))
        << value;
  }
  EXPECT_THAT(skip_refusal("\"from\":0,\"to\":1", "\"from\":1,\"to\":0"), HasSubstr("from layer 1 back to layer 0"));
}

TEST(Profile, RefusesOtherShapes) {
  EXPECT_THAT(refusal("[]"), HasSubstr("expected an object, got an array"));
  EXPECT_THAT(refusal("3"), HasSubstr("expected an object, got 3"));
  EXPECT_THAT(refusal("{\"layers\": {}}"), HasSubstr("\"layers\" must be an array of objects, got an object"));
  EXPECT_THAT(refusal("{\"layers\": 3}"), HasSubstr("\"layers\" must be an array of objects, got 3"));
  EXPECT_THAT(refusal("{\"layers\": [" + kLayer + ", []]}"),
              HasSubstr("element 1 of \"layers\" must be an object, got an array"));
  EXPECT_THAT(layer_refusal(":1,", ":{},"),
              HasSubstr("\"forward_seconds\" must be a number or a string, got an object"));
  EXPECT_THAT(layer_refusal("\"conv\"", "7"), HasSubstr("layer 1: \"name\" is 7; expected a string"));
}

TEST(Profile, SaysWhereTheTextIsWrong) {
  EXPECT_THAT(refusal(""), StartsWith("line 1, column 1: "));
  EXPECT_THAT(refusal("{\"layers\": 37}"), StartsWith("line 1, column 13: "));
  EXPECT_THAT(refusal("{\"layers\": 37\n}"), StartsWith("line 1, column 13: "));
  EXPECT_THAT(refusal("37"), StartsWith("line 1, column 2: "));
  EXPECT_THAT(refusal("{\n  \"layers\": [,\n"), StartsWith("line 2, column 14: syntax error"));
  EXPECT_THAT(refusal("{\"layers\": [" + kLayer), HasSubstr("unexpected end of input"));
  EXPECT_THAT(refusal(document(kLayer) + "x"), HasSubstr("syntax error"));
  EXPECT_THAT(refusal("{\"a\xff\": 1}"), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(std::string("{\0}", 3)), HasSubstr("syntax error"));
}

TEST(Profile, RefusesDeepNestingWithoutFollowingIt) {
  for (const std::string opening : {"[", "{\"layers\":[", "{\"layers\":[{\"name\":"}) {
    EXPECT_NE(refusal(opening + std::string(1000000, '[')), "not refused");
  }
  std::string objects;
  for (int depth = 0; depth < 100000; ++depth) objects += "{\"layers\":";
  EXPECT_NE(refusal(objects), "not refused");
}

TEST(Profile, TakesNumbersOfAnyLength) {
  EXPECT_EQ(
      parse_profile(document(with(kLayer, ":1,", ":0." + std::string(1000000, '3') + ","))).layers[0].forward_seconds,
      1.0 / 3);
  EXPECT_NE(refusal(document(with(kLayer, ":3,", ":" + std::string(1000000, '9') + ","))), "not refused");
}

TEST(Profile, ArbitraryBytesAreParsedOrRefusedAndNothingElse) {
  const std::string seeds[] = {to_json(awkward_profile()), document(kLayer + "," + kHead, kSkip), document(kLayer)};
  const std::string pieces[] = {"[",         "]",
                                "{",         "}",
                                "\"",        ",",
                                ":",         "-",
                                "1e999",     "null",
                                "\\u0000",   "\\ud800",
                                "\xff",      "\"from\"",
                                "\"name\":", "9223372036854775808",
                                "0.5",       std::string(1, '\0')};
  std::mt19937 random(1);
  const auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random); };
  const auto new_part = [&]() -> std::string {
    switch (below(3)) {
      case 0:
        return std::string(1, static_cast<char>(below(256)));
      case 1:
        return std::string(1, " 0123456789"[below(11)]);
      default:
        return pieces[below(std::size(pieces))];
    }
  };
  int parsed = 0;
  for (int round = 0; round < 100000; ++round) {
    std::string text = seeds[below(std::size(seeds))];
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const std::size_t at = below(text.size());
      const std::size_t length = below(8) == 0 ? below(text.size() - at) : below(2);
      text.replace(at, length, new_part());
    }
    try {
      const std::string json = to_json(parse_profile(text));
      EXPECT_EQ(to_json(parse_profile(json)), json);
      ++parsed;
    } catch (const ParseError&) {
    }
  }
  EXPECT_GT(parsed, 300);
  EXPECT_LT(parsed, 10000);
}

TEST(Profile, IsCheckedBeforeItIsUsed) {
  const auto problem = [](auto&& change) -> std::string {
    Profile profile = parse_profile(document(kLayer + "," + kHead, kSkip));
    change(profile);
    try {
      check_profile(profile);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "not refused";
  };
  EXPECT_EQ(problem([](Profile&) {}), "not refused");
  EXPECT_THAT(problem([](Profile& profile) { profile.layers.clear(); }), HasSubstr("no layers"));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[1].forward_seconds = -1; }),
              AllOf(HasSubstr("layer 1 \"head\""), HasSubstr("forward_seconds is -1")));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[1].weight_grad_seconds = std::nan(""); }),
              HasSubstr("weight_grad_seconds is nan"));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[0].output_bytes = -1; }), HasSubstr("output_bytes is -1"));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[0].output_bytes = kMaxBytes; }),
              HasSubstr("more than 2^63-1"));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[1].kept_output_bytes = 5; }),
              AllOf(HasSubstr("layer 1 \"head\""), HasSubstr("kept_output_bytes is 5")));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[1].forward_working_bytes = 3; }),
              HasSubstr("forward_working_bytes is 3"));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[1].backward_working_bytes = 3; }),
              HasSubstr("backward_working_bytes is 3"));
  EXPECT_THAT(problem([](Profile& profile) { profile.layers[1].buffer_bytes = -1; }), HasSubstr("buffer_bytes is -1"));
  EXPECT_THAT(problem([](Profile& profile) { profile.samples_per_micro_batch = -1; }),
              HasSubstr("samples_per_micro_batch is -1"));
  EXPECT_THAT(problem([](Profile& profile) { profile.skips[0].to = 2; }), HasSubstr("expected 0 <= from <= to <= 1"));
}

}  // namespace
}  // namespace gpipe

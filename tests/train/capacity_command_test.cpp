// `gpipe capacity`: Table 1 of the paper in miniature.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"

namespace gpipe::cli {
namespace {

nlohmann::json rows_of(Arguments arguments) {
  arguments.insert(arguments.begin(), "capacity");
  arguments.emplace_back("--json");
  const Outcome outcome = run_gpipe(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out).at("tables").at(0).at("rows");
}

double ratio(const nlohmann::json& row, const nlohmann::json& to, const char* what) {
  return row.at(what).get<double>() / to.at(what).get<double>();
}

TEST(Capacity, WhatIsPlannedTrainsToWithinOneLayer) {
  const nlohmann::json rows = rows_of({"--model", "transformer", "--memory", "6MiB"});
  ASSERT_EQ(rows.size(), 5U);
  for (const nlohmann::json& row : rows) {
    EXPECT_LE(std::abs(row.at("L").get<int>() - row.at("planned_L").get<int>()), 1) << row.at("name");
    for (const nlohmann::json& bytes : row.value("peak_bytes", nlohmann::json::array())) {
      EXPECT_LE(bytes.get<std::int64_t>(), std::int64_t{6} << 20) << row.at("name");
    }
  }
  EXPECT_GE(ratio(rows.at(4), rows.at(1), "L"), 7.5);
}

TEST(Capacity, OfTheTransformerGrowsAsInThePaper) {
  const nlohmann::json rows = rows_of({"--model", "transformer", "--predict-only"});
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_GE(ratio(rows.at(1), rows.at(0), "L"), 2.7);
  EXPECT_GE(ratio(rows.at(4), rows.at(1), "L"), 7.5);
}

TEST(Capacity, OfAmoebaNetGrowsAsInThePaper) {
  const nlohmann::json rows = rows_of({"--model", "amoebanet", "--predict-only"});
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_GE(ratio(rows.at(4), rows.at(0), "parameters"), 25);
}

TEST(Capacity, MoreMemoryThanAPlanTakesIsRefused) {
  const Outcome outcome = run_gpipe({"capacity", "--model", "transformer", "--predict-only", "--memory", "1000TB"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("give less --memory"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace gpipe::cli

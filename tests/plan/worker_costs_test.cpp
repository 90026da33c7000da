// What workers that differ have, and the file that says so: both ways, and every refusal says where and why.
#include "gpipe/plan/worker_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refused_workers(const std::string& records) {
  try {
    parse_workers("{\"workers\": [\n" + records + "\n]}");
  } catch (const ParseError& error) {
    EXPECT_EQ(error.line(), 2) << error.what();
    EXPECT_THAT(error.what(), StartsWith("line 2, column " + std::to_string(error.column()) + ": "));
    return error.what();
  }
  return "taken";
}

TEST(WorkerCosts, AreReadFromAFile) {
  const std::vector<WorkerCosts> workers = parse_workers(R"({"workers": [
    {"speed": 1.5, "memory": "16GiB", "link": {"latency": 1e-5, "bandwidth": "10GB/s"}},
    {"memory": 1024, "link": {"bandwidth": 125000000}},
    {"link": {}},
    {}
  ]})");
  ASSERT_EQ(workers.size(), 4u);
  EXPECT_EQ(workers[0], (WorkerCosts{1.5, std::int64_t{16} << 30, LinkCosts{1e-5, 1e10}}));
  EXPECT_EQ(workers[1], (WorkerCosts{1, 1024, LinkCosts{0, 125e6}}));
  EXPECT_EQ(workers[2], (WorkerCosts{1, {}, LinkCosts{}}));
  EXPECT_EQ(workers[3], WorkerCosts());
}

TEST(WorkerCosts, TakeWhatALinkDoesNotSayFromAllLinks) {
  const LinkCosts usual = {1, 100};
  const std::vector<WorkerCosts> workers =
      parse_workers(R"({"workers": [{"link": {"latency": 2}}, {"link": {"bandwidth": 50}}, {"link": {}}, {}]})", usual);
  EXPECT_EQ(workers[0].link_to_next, (LinkCosts{2, 100}));
  EXPECT_EQ(workers[1].link_to_next, (LinkCosts{1, 50}));
  EXPECT_EQ(workers[2].link_to_next, usual);
}

TEST(WorkerCosts, ComeBackBitForBit) {
  const std::vector<WorkerCosts> workers = {
      {1.0 / 3, std::int64_t{1} << 62, LinkCosts{1e-7 / 3, 1e9 / 7}}, {1, {}, LinkCosts{}}, {2, 0, {}}};
  const std::string json = to_json(workers);
  EXPECT_EQ(parse_workers(json), workers);
  EXPECT_EQ(to_json(parse_workers(json)), json);
}

TEST(WorkerCosts, SayWhereAndWhyTheyAreRefused) {
  EXPECT_THAT(refused_workers(R"({"speed": 0})"), HasSubstr("worker 0: \"speed\" is 0; expected a number above 0"));
  EXPECT_THAT(refused_workers(R"({}, {"speed": "fast"})"), HasSubstr("worker 1: \"speed\" is \"fast\""));
  EXPECT_THAT(refused_workers(R"({"sped": 1})"),
              AllOf(HasSubstr("unknown field \"sped\" (did you mean \"speed\"?)"), HasSubstr("speed, memory, link")));
  EXPECT_THAT(refused_workers(R"({"speed": 1, "speed": 1})"), HasSubstr("\"speed\" is given twice"));
  EXPECT_THAT(refused_workers(R"({"memory": -1})"), HasSubstr("\"memory\" is -1; expected a whole number of bytes"));
  for (const char* memory : {"16 gigs", "-1GiB", "", "16Gib\\u001b"}) {
    EXPECT_THAT(refused_workers(std::string(R"({"memory": ")") + memory + "\"}"),
                HasSubstr("expected a number, or one with a unit such as \"16GiB\""))
        << memory;
  }
  EXPECT_THAT(refused_workers(R"({"memory": ")" + std::string(100, '1') + "\"}"), HasSubstr("such as \"16GiB\""));
  EXPECT_THAT(refused_workers(R"({"link": 3}, {})"),
              HasSubstr("element 0 of \"workers\": \"link\" must be an object, got 3"));
  EXPECT_THAT(refused_workers(R"({"link": [3]}, {})"), HasSubstr("\"link\" must be an object, got an array"));
  EXPECT_THAT(refused_workers(R"({"link": null}, {})"), HasSubstr("\"link\" must be an object, got null"));
  EXPECT_THAT(refused_workers(R"({"speed": {}}, {})"), HasSubstr("\"speed\" must be a number or a string"));
  EXPECT_THAT(refused_workers(R"({"link": {"latency": {}}}, {})"),
              HasSubstr("\"latency\" must be a number or a string, got an object"));
  EXPECT_THAT(refused_workers(R"({"link": {"latency": -1}}, {})"),
              HasSubstr("worker 0: \"link\": \"latency\" is -1; expected a number of seconds"));
  EXPECT_THAT(refused_workers(R"({"link": {"bandwidth": 0}}, {})"), HasSubstr("expected a number above 0"));
  EXPECT_THAT(refused_workers(R"({"link": {"bandwidth": "0GB"}}, {})"), HasSubstr("such as \"10GiB\""));
  EXPECT_THAT(refused_workers(R"({"link": {"width": 1}}, {})"),
              HasSubstr("unknown field \"width\"; the fields of a link are latency, bandwidth"));
  EXPECT_THAT(refused_workers(R"({"link": {"latency": 1}, "link": {"bandwidth": 1}}, {})"),
              HasSubstr("\"link\" is given twice"));
  EXPECT_THAT(refused_workers(R"({}, {"link": {}})"),
              HasSubstr("worker 1: \"link\" is the one to the next worker, and this is the last; leave it out"));
  EXPECT_THAT(refused_workers("3"), HasSubstr("element 0 of \"workers\" must be an object, got 3"));
}

TEST(WorkerCosts, AreRefusedIfThereAreNone) {
  for (const auto& [text, part] : {std::pair("{}", "\"workers\" is missing"), std::pair("[]", "expected an object"),
                                   std::pair("{\"workers\": []}", "expected at least one worker"),
                                   std::pair("{\"workers\": 3}", "\"workers\" must be an array of objects, got 3"),
                                   std::pair("{\"worker\": [{}]}", "did you mean \"workers\"?")}) {
    try {
      parse_workers(text);
      ADD_FAILURE() << text;
    } catch (const ParseError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

TEST(WorkerCosts, AMessageCrossesAllLinksBetweenTwoWorkers) {
  const LinkCosts usual = {1, 100};
  std::vector<WorkerCosts> workers(4);
  workers[1].link_to_next = LinkCosts{10, 50};
  workers[2].link_to_next = LinkCosts{};
  EXPECT_EQ(link_between(workers, usual, 0, 1), usual);
  EXPECT_EQ(link_between(workers, usual, 1, 2), (LinkCosts{10, 50}));
  EXPECT_EQ(link_between(workers, usual, 2, 1), (LinkCosts{10, 50}));
  EXPECT_EQ(link_between(workers, usual, 3, 0), (LinkCosts{11, 50}));
  EXPECT_EQ(link_between(workers, usual, 2, 3), LinkCosts());
  EXPECT_EQ(link_between(workers, usual, 1, 1), LinkCosts());
}

TEST(WorkerCosts, WithoutLinksOfTheirOwnAnyTwoWorkersAreOneLinkApart) {
  const LinkCosts usual = {1, 100};
  EXPECT_EQ(link_between({}, usual, 0, 3), usual);
  EXPECT_EQ(link_between(workers_of_speed({1, 1, 1, 2}), usual, 0, 3), usual);
}

TEST(WorkerCosts, StagesShareTheMemoryOfTheirWorker) {
  std::vector<WorkerCosts> workers = {{2, 100, LinkCosts{1, 10}}, {0.5, {}, {}}};
  const std::vector<WorkerCosts> stages = workers_by_stage(workers, {5, 5}, {0, 1, 1, 0});  // a V
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[0], (WorkerCosts{2, 50, LinkCosts{1, 10}}));
  EXPECT_EQ(stages[1], (WorkerCosts{0.5, {}, LinkCosts{}}));
  EXPECT_EQ(stages[2], (WorkerCosts{0.5, {}, LinkCosts{1, 10}}));
  EXPECT_EQ(stages[3], (WorkerCosts{2, 50, {}}));
  EXPECT_TRUE(workers_by_stage({}, {5, 5}, {0, 1, 1, 0}).empty());
}

}  // namespace
}  // namespace gpipe

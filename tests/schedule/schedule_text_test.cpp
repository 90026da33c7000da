// The text and CSV forms of schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;

// The message of the gpipe::Error that `run` throws; empty if it throws none.
template <typename Run>
std::string message_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ScheduleText, WritesOneLineAWorkerAndNoStageWhenItIsTheWorker) {
  EXPECT_EQ(to_text(schedules::one_f_one_b(2, 3)),
            "F0 F1 B0 F2 B1 B2\n"
            "F0 B0 F1 B1 F2 B2\n");
}

TEST(ScheduleText, WritesTheStageWhenAWorkerHasSeveral) {
  EXPECT_EQ(to_text(schedules::looped_bfs(2, 1, 2)),
            "0F0 2F0 2B0 0B0\n"
            "1F0 3F0 3B0 1B0\n");
}

TEST(ScheduleText, WritesAnUpdateWithoutAMicroBatch) {
  EXPECT_EQ(to_text(with_updates(schedules::one_f_one_b(2, 2))),
            "F0 F1 B0 B1 U\n"
            "F0 B0 F1 B1 U\n");
  EXPECT_EQ(to_csv(with_updates(schedules::zb_v(1, 1))), "0F0,1F0,1I0,0I0,1W0,0W0,1U,0U\n");
  EXPECT_THAT(message_of([] { parse_text("F0 B0 U0\n"); }), HasSubstr("\"U0\" is not an action"));
}

TEST(ScheduleText, AddsAnUpdateOfEachStageBehindTheWorkOfAllOrNone) {
  test::for_each_schedule(3, 5, 3, [&](const Schedule& made, const std::string& description) {
    const Schedule updated = with_updates(made);
    EXPECT_EQ(without_updates(updated), made) << description;
    EXPECT_EQ(with_updates(updated), updated) << description;
    EXPECT_EQ(updated.has_updates(), made.has_backward()) << description;
    if (!made.has_backward()) return;
    EXPECT_EQ(updated.num_actions(), made.num_actions() + made.num_stages) << description;
    EXPECT_NO_THROW(validate(updated)) << description;
  });
}

TEST(ScheduleText, WritesPyTorchsCells) {
  EXPECT_EQ(to_csv(schedules::gpipe(2, 2)),
            "0F0,0F1,0B0,0B1\n"
            "1F0,1F1,1B0,1B1\n");
}

TEST(ScheduleText, EveryScheduleSurvivesTheRoundTrip) {
  for (const Recompute mode : {Recompute::kNever, Recompute::kAlways}) {
    test::for_each_schedule(3, 5, 3, [&](const Schedule& made, const std::string& description) {
      for (const Schedule& schedule : {with_recompute(made, mode), with_updates(with_recompute(made, mode))}) {
        EXPECT_EQ(parse_text(to_text(schedule)), schedule) << description;
        EXPECT_EQ(parse_csv(to_csv(schedule)), schedule) << description;
        EXPECT_EQ(parse_schedule(to_text(schedule)), schedule) << description;
        EXPECT_EQ(parse_schedule(to_csv(schedule)), schedule) << description;
      }
    });
  }
}

TEST(ScheduleText, ReadsACsvWithIdleCellsBlanksAndWindowsLineEnds) {
  const Schedule schedule = parse_schedule(
      "\xEF\xBB\xBF"
      "0F0,0F1,,,0I0, 0W0 ,0B1\r\n,1F0,1B0,1F1,1I1,1W1,\r\n\r\n");
  EXPECT_EQ(to_csv(schedule), "0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1I1,1W1\n");
  EXPECT_EQ(schedule.num_stages, 2);
  EXPECT_EQ(schedule.num_micro_batches, 2);
}

TEST(ScheduleText, SkipsCommentsAndBlankLines) {
  EXPECT_EQ(parse_schedule("# two workers, no comma outside comments\n\nF0 B0 # first, worker\n\n  F0\tB0\n"),
            schedules::gpipe(2, 1));
}

TEST(ScheduleText, PlacesEachStageOnTheWorkerThatNamesIt) {
  const Schedule schedule = parse_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0\n");
  EXPECT_EQ(schedule.worker_of_stage, (std::vector<int>{0, 1, 1, 0}));
}

TEST(ScheduleText, ErrorsSayLineColumnAndWhatWasExpected) {
  try {
    parse_text("F0 B0\nF0 X0\n");
    FAIL() << "X0 was accepted";
  } catch (const ParseError& error) {
    EXPECT_EQ(error.line(), 2);
    EXPECT_EQ(error.column(), 4);
    EXPECT_THAT(error.what(), HasSubstr("line 2, column 4"));
    EXPECT_THAT(error.what(), HasSubstr("\"X0\" is not an action"));
  }
}

TEST(ScheduleText, RefusesWhatIsNotAnAction) {
  for (const char* text : {"", "\n\n", "# only a comment", ",,,\n,,", "F", "0", "F0B0", "F-1", "0F0x", "F 0", "f0",
                           "1.5F0", "0F0,,F0", "0x1F0", "F0;B0", "\xff\xfe"}) {
    EXPECT_THROW(parse_schedule(text), ParseError) << text;
  }
}

TEST(ScheduleText, ReadsAndWritesCellsOfAForwardAndABackward) {
  const char* const text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n";
  const Schedule schedule = parse_csv(text);
  EXPECT_EQ(to_text(schedule), "F0 F1 F2 B0 B1 B2\n");
  EXPECT_EQ(to_csv(schedule), text);
  EXPECT_EQ(schedule, parse_csv("0F0,0F1,0F2,0B0,0B1,0B2\n"));
}

TEST(ScheduleText, RefusesOtherCellsOfTwoActions) {
  for (const char* text : {"(0F1;1B0)OVERLAP_F_B(,", "0F0,(0F1)OVERLAP_F_B", "0F0,(0B1;1F0)OVERLAP_F_B",
                           "0F0,()OVERLAP_F_B", "0F0,(;)OVERLAP_F_B", "0F0,(0F1;1I0)OVERLAP_F_B",
                           "0F0,(0F1;F0;1B0)OVERLAP_F_B", "0F0,(0F1;1B0)", "0F0,)OVERLAP_F_B"}) {
    EXPECT_THROW(parse_csv(text), ParseError) << text;
  }
  try {
    parse_csv("0F0,(0F1;1X0)OVERLAP_F_B\n");
    FAIL() << "1X0 was accepted";
  } catch (const ParseError& error) {
    EXPECT_EQ(error.column(), 10);
  }
}

// The file is DualPipeV as PyTorch exports it, cell for cell.
TEST(ScheduleText, ReadsPyTorchsDualPipeVAndWritesItBack) {
  std::ifstream file(std::string(GPIPE_TEST_DATA_DIR) + "/schedules/dualpipe-v_4_workers_10_micro_batches.csv");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Schedule schedule = parse_schedule(text);
  EXPECT_TRUE(validate(schedule).canonical);
  EXPECT_EQ(to_csv(schedule), text);
  EXPECT_EQ(to_csv(schedules::dualpipe_v(4, 10)), text);
}

// The file follows PyTorch's rule for ZBVZeroBubble, with an idle cell for each step that a worker begins later. Both
// fill the pipeline in the same order; the weight gradients at the end are where they differ.
TEST(ScheduleText, ReadsPyTorchsZbVAndWritesItBackWithoutItsIdleCells) {
  std::ifstream file(std::string(GPIPE_TEST_DATA_DIR) + "/schedules/zb-v_4_workers_10_micro_batches.csv");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Schedule schedule = parse_schedule(text);
  EXPECT_TRUE(validate(schedule).canonical);
  std::string without_idle;
  bool begins_a_line = true;
  for (const char letter : text) {
    if (!begins_a_line || letter != ',') without_idle += letter;
    begins_a_line = letter == '\n' || (begins_a_line && letter == ',');
  }
  EXPECT_EQ(to_csv(schedule), without_idle);
  const Schedule own = schedules::zb_v(4, 10);
  EXPECT_EQ(schedule.worker_of_stage, own.worker_of_stage);
  for (int worker = 0; worker < 4; ++worker) {
    const std::vector<Action>& theirs = schedule.workers[worker];
    const std::vector<Action>& ours = own.workers[worker];
    ASSERT_EQ(theirs.size(), ours.size());
    EXPECT_TRUE(std::is_permutation(theirs.begin(), theirs.end(), ours.begin())) << worker;
    const auto first_difference = std::mismatch(theirs.begin(), theirs.end(), ours.begin()).first;
    EXPECT_TRUE(std::all_of(first_difference, theirs.end(), [](const Action& action) {
      return action.kind != ActionKind::kForward;
    })) << worker;
  }
}

TEST(ScheduleText, ExplainsThatCommunicationIsNotWritten) {
  EXPECT_THAT(message_of([] { parse_csv("0F0,0SEND_F0\n"); }), HasSubstr("communication"));
}

TEST(ScheduleText, RefusesHostileNumbersWithoutMakingTables) {
  for (const char* text : {"1000000000F0", "65536F0", "0F99999999999999999999999", "0F2147483647"}) {
    EXPECT_THROW(parse_schedule(text), ParseError) << text;
  }
  EXPECT_THAT(message_of([] { parse_text("65536F0"); }), HasSubstr("stages end at 65535"));
  // A file may claim many micro-batches; the proof then names the first that is missing.
  for (const char* text : {"F1000000000", "F0 F2147483646 B0", "F0 F5 B0 B5", "65535F0"}) {
    EXPECT_THROW(validate(parse_schedule(text)), ScheduleError) << text;
  }
}

TEST(ScheduleText, QuotesHostileBytesHarmlessly) {
  const std::string message = message_of([] { parse_text(std::string("\x1b[31m") + std::string(1000, 'x')); });
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 200u);
}

}  // namespace
}  // namespace gpipe

// 100,000 seeded random inputs for the parsers of text and CSV: a schedule, or a gpipe::Error, nothing else.
#include <gtest/gtest.h>

#include <random>

#include "gpipe/error.h"
#include "gpipe/schedule/validate.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

class Inputs {
 public:
  Inputs() {
    test::for_each_schedule(3, 4, 2, [&](const Schedule& schedule, const std::string&) {
      seeds_.push_back(to_text(schedule));
      seeds_.push_back(to_csv(schedule));
    });
  }

  // Random bytes, random words of the grammar, or a valid file with some bytes changed, cut or repeated.
  std::string next() {
    switch (pick(3)) {
      case 0:
        return random_bytes();
      case 1:
        return random_words();
      default:
        return mutated();
    }
  }

 private:
  std::size_t pick(std::size_t size) { return std::uniform_int_distribution<std::size_t>(0, size - 1)(random_); }

  std::string random_bytes() {
    std::string text(pick(64), '\0');
    for (char& c : text) c = static_cast<char>(pick(256));
    return text;
  }

  std::string random_words() {
    static const std::vector<std::string> words = {
        "F0", "B0", "0F0",     "1B1", "2I0",  "2W0",         "R0",
        ",",  " ",  "\n",      "#",   "\r\n", "F1000000000", "999999999999999999999F0",
        "-1", "F",  "0SEND_F0"};
    std::string text;
    for (std::size_t count = pick(24); count > 0; --count) text += words[pick(words.size())];
    return text;
  }

  std::string mutated() {
    std::string text = seeds_[pick(seeds_.size())];
    for (std::size_t count = 1 + pick(4); count > 0; --count) {
      const std::size_t position = pick(text.size() + 1);
      switch (pick(4)) {
        case 0:
          text.resize(position);
          break;
        case 1:
          text.insert(position, 1, static_cast<char>(pick(256)));
          break;
        case 2:
          text.insert(position, text.substr(pick(text.size() + 1), pick(16)));
          break;
        default:
          if (position < text.size()) text[position] = "FRBIWU0123456789, \n"[pick(19)];
      }
    }
    return text;
  }

  std::mt19937 random_{20190715};
  std::vector<std::string> seeds_;
};

TEST(ParserFuzz, EveryInputGivesAScheduleOrATypedError) {
  Inputs inputs;
  int num_parsed = 0;
  int num_valid = 0;
  for (int round = 0; round < 100000; ++round) {
    const std::string text = inputs.next();
    try {
      const Schedule schedule = parse_schedule(text);
      ++num_parsed;
      // What was read can be written and read again.
      ASSERT_EQ(parse_schedule(to_csv(schedule) + (schedule.num_actions() == 1 ? "," : "")).num_actions(),
                schedule.num_actions());
      validate(schedule);
      ++num_valid;
    } catch (const Error&) {
    } catch (const std::exception& error) {
      FAIL() << "round " << round << " let a foreign exception out: " << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(num_parsed, 1000);
  EXPECT_GT(num_valid, 100);
}

}  // namespace
}  // namespace gpipe

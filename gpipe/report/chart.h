// Chart: what the drawings of a timeline share: rows of bars, ticks of the time axis, words for times and bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/report/timeline.h"

namespace gpipe::chart {

// What a drawing tells apart: the kinds of action. What a worker does behind its last action is an update, too.
inline constexpr int kNumKinds = kNumActionKinds;
inline constexpr int kUpdate = static_cast<int>(ActionKind::kUpdate);
char kind_letter(int kind);
const char* kind_name(int kind);

// One span, or the worker's update, in fractions of the makespan. Whatever the timeline says: 0 <= begin <= end <= 1.
struct Bar {
  double begin = 0;
  double end = 0;
  int kind = 0;
  int chunk = 0;  // rank of its stage among the stages of the worker
  double length() const { return end - begin; }
};

struct Row {
  std::vector<Bar> bars;  // bars[i] is spans[i]; the worker's update, if there is one, comes last
  int num_chunks = 1;     // stages of the worker
  double busy_fraction = 0;
};

// No bars unless the makespan is positive and finite.
Row make_row(const Timeline& timeline, int worker);

// "F0", or "2F0" with the stage; "U" or "2U" of an update.
std::string label(const Action& action, bool with_stage);

struct Tick {
  double position = 0;  // fraction of the makespan
  std::string label;    // "0", "5 ms", "10 ms"
};

// Ticks at multiples of 1, 2 or 5 times a power of ten, the first at zero, about `max_ticks` of them and never more
// than one more.
std::vector<Tick> make_ticks(double makespan_seconds, int max_ticks);

// Four significant digits: "33 s", "1.25 ms", "250 µs"; from a second upwards always in seconds.
std::string format_seconds(double seconds);

// "27.3%"
std::string format_percent(double fraction);

// "1 stage", "2 stages"
std::string count(std::int64_t number, const char* noun, const char* plural_ending = "s");

// "3 stages", "2 workers" where that is another number, "4 micro-batches".
std::vector<std::string> format_size(std::int64_t num_stages, std::int64_t num_workers, std::int64_t num_micro_batches);

// Keeps a hostile name from moving the cursor, and every character at one column.
std::string format_name(std::string name);

}  // namespace gpipe::chart

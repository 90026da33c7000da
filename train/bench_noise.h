// What else the machine did while something was measured: the guard that says whether a figure can be trusted.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "train/bench_statistics.h"

namespace gpipe::train {

// Of all processors since the machine started, in seconds.
struct ProcessorSeconds {
  double busy = 0;  // for programs, the system, and other virtual machines
  double all = 0;
};

// Reads the first line of /proc/stat; `ticks_per_second` is what it counts in. Nothing if it has another form.
std::optional<ProcessorSeconds> parse_processor_seconds(std::string_view stat, double ticks_per_second);
// Of this machine; nothing where there is no /proc/stat.
std::optional<ProcessorSeconds> read_processor_seconds();

// Adds up, over pieces of work of this process, what others took of the machine's processor time.
//
// Confined to its thread.
class NoiseGuard {
 public:
  NoiseGuard();

  // Around each piece of work, which is done in this process alone.
  void begin();
  void end();

  // Of the machine's processor time during the work; nothing if it is not known, or after less than half a second of
  // work, which /proc/stat is too coarse for.
  std::optional<double> others_share() const;

 private:
  std::optional<ProcessorSeconds> begin_;
  double own_at_begin_ = 0;
  double busy_ = 0;
  double all_ = 0;
  double own_ = 0;
  bool is_known_ = true;
};

struct Noise {
  std::optional<double> others_share;
  std::optional<Spread> two_threads;  // the work of two plain loops at once over that of one; of two processors or more
  Spread baseline_seconds;            // of the plain loop
};

// Whether the figures can be trusted, and, if not, a plain sentence that says why.
struct Verdict {
  bool is_quiet = true;
  std::string text;
};
Verdict judge(const Noise& noise);

}  // namespace gpipe::train

#include "train/bench_noise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>
#include <vector>

#include "cli/quantity.h"

namespace gpipe::train {
namespace {

constexpr double kLeastWorkSeconds = 0.5;    // of the machine's clock, times processors
constexpr double kMostOthersShare = 0.05;    // a twentieth of the machine
constexpr double kMostBaselineSpread = 0.1;  // between the quartiles, of the median

double own_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

std::optional<ProcessorSeconds> parse_processor_seconds(std::string_view stat, double ticks_per_second) {
  // cpu  user nice system idle iowait irq softirq steal guest guest_nice; guests are counted among user and nice.
  std::istringstream line{std::string(stat.substr(0, stat.find('\n')))};
  std::string name;
  line >> name;
  std::vector<double> ticks;
  for (double value = 0; line >> value;) ticks.push_back(value);
  if (name != "cpu" || ticks.size() < 8) return {};
  ProcessorSeconds seconds;
  for (std::size_t column = 0; column < 8; ++column) {
    seconds.all += ticks[column] / ticks_per_second;
    if (column != 3 && column != 4) seconds.busy += ticks[column] / ticks_per_second;
  }
  return seconds;
}

std::optional<ProcessorSeconds> read_processor_seconds() {
  std::ifstream file("/proc/stat");
  std::string line;
  if (!std::getline(file, line)) return {};
  return parse_processor_seconds(line, static_cast<double>(sysconf(_SC_CLK_TCK)));
}

NoiseGuard::NoiseGuard() : is_known_(read_processor_seconds().has_value()) {}

void NoiseGuard::begin() {
  begin_ = read_processor_seconds();
  own_at_begin_ = own_seconds();
}

void NoiseGuard::end() {
  const std::optional<ProcessorSeconds> end = read_processor_seconds();
  if (!begin_ || !end) return;
  own_ += own_seconds() - own_at_begin_;
  busy_ += end->busy - begin_->busy;
  all_ += end->all - begin_->all;
  begin_.reset();
}

std::optional<double> NoiseGuard::others_share() const {
  if (!is_known_ || all_ < kLeastWorkSeconds) return {};
  return std::clamp((busy_ - own_) / all_, 0.0, 1.0);
}

Verdict judge(const Noise& noise) {
  std::vector<std::string> doubts;
  if (noise.others_share && *noise.others_share > kMostOthersShare) {
    doubts.push_back(
        fmt::format("other processes took {} of its processor time", cli::format_percent(*noise.others_share)));
  }
  const Spread& baseline = noise.baseline_seconds;
  const double spread = baseline.median > 0 ? (baseline.upper_quartile - baseline.lower_quartile) / baseline.median : 0;
  if (spread > kMostBaselineSpread) {
    doubts.push_back(
        fmt::format("the plain loop's own quartiles are {} of its median apart", cli::format_percent(spread)));
  }
  if (!doubts.empty()) {
    return {false, fmt::format("the machine was too busy to trust these figures: {}", fmt::join(doubts, "; "))};
  }
  if (!noise.others_share) return {true, "too little was run to tell what else the machine did"};
  return {true, fmt::format("the machine was quiet: other processes took {} of its processor time",
                            cli::format_percent(*noise.others_share))};
}

}  // namespace gpipe::train

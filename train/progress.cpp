#include "train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/quantity.h"
#include "gpipe/text/printable.h"

namespace gpipe::train {
namespace {

constexpr std::size_t kAnyWidth = 100000;
constexpr const char* kEraseLine = "\r\x1b[K";

std::string count_of(const char* what, std::int64_t at, std::int64_t of) {
  if (at <= 0) return "";
  return of > 0 ? fmt::format("{} {}/{}", what, at, of) : fmt::format("{} {}", what, at);
}

std::string format_rate(double rate) {
  return rate >= 99.95 ? fmt::format("{:.0f}", rate) : fmt::format("{:.3g}", rate);
}

std::string format_peaks(const std::vector<std::int64_t>& peak_bytes) {
  std::vector<std::string> peaks;
  for (const std::int64_t bytes : peak_bytes) peaks.push_back(cli::format_bytes(bytes));
  return peaks.empty() ? "" : fmt::format("peak {}", fmt::join(peaks, ", "));
}

// In the order of what is missed most.
std::vector<std::string> parts(const Progress& progress) {
  std::vector<std::string> all = {count_of("epoch", progress.epoch, progress.epochs),
                                  count_of("step", progress.step, progress.steps)};
  if (progress.loss) all.push_back(fmt::format("loss {:.4f}", *progress.loss));
  if (progress.items_per_second) {
    all.push_back(fmt::format("{} {}/s", format_rate(*progress.items_per_second), progress.unit));
  }
  if (progress.eta_seconds) all.push_back("ETA " + format_duration(*progress.eta_seconds));
  if (progress.bubble_fraction) all.push_back("bubble " + cli::format_percent(*progress.bubble_fraction));
  all.push_back(format_peaks(progress.peak_bytes));
  if (progress.learning_rate) all.push_back(fmt::format("lr {:.4g}", *progress.learning_rate));
  all.erase(std::remove(all.begin(), all.end(), ""), all.end());
  return all;
}

}  // namespace

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e9;
  if (!std::isfinite(seconds) || seconds > kLongest) return "?";
  const std::int64_t whole = std::llround(std::max(seconds, 0.0));
  const std::int64_t minutes = whole / 60;
  const std::int64_t hours = minutes / 60;
  if (hours == 0) return fmt::format("{}:{:02}", minutes, whole % 60);
  if (hours < 24) return fmt::format("{}:{:02}:{:02}", hours, minutes % 60, whole % 60);
  return fmt::format("{} d {:02}:{:02}", hours / 24, hours % 24, minutes % 60);
}

std::string progress_line(const Progress& progress, std::size_t width) {
  std::string line = printable(progress.phase).substr(0, width);
  for (const std::string& part : parts(progress)) {
    if (line.size() + 2 + part.size() > width) break;
    line += "  " + part;
  }
  return line;
}

std::string ProgressReporter::fitting_line(const Progress& progress) const {
  if (!style_.is_terminal) return progress_line(progress, kAnyWidth);
  // A line as wide as the terminal would wrap when the cursor goes on.
  return progress_line(progress, static_cast<std::size_t>(std::max(style_.columns() - 1, 1)));
}

void ProgressReporter::update(const Progress& progress, double now_seconds) {
  const double interval = style_.is_terminal ? style_.live_interval_seconds : style_.plain_interval_seconds;
  if (last_seconds_ && now_seconds - *last_seconds_ < interval) return;
  last_seconds_ = now_seconds;
  const std::string line = fitting_line(progress);
  if (style_.is_terminal) {
    write_(kEraseLine + line);
    live_line_ = line;
  } else {
    write_(line + "\n");
  }
}

void ProgressReporter::keep(const Progress& progress, double now_seconds) {
  clear();
  write_(fitting_line(progress) + "\n");
  last_seconds_ = now_seconds;
}

void ProgressReporter::print(std::string_view line) {
  const std::string live = live_line_;
  clear();
  write_(std::string(line) + "\n");
  if (live.empty()) return;
  write_(live);
  live_line_ = live;
}

void ProgressReporter::clear() {
  if (live_line_.empty()) return;
  write_(kEraseLine);
  live_line_.clear();
}

}  // namespace gpipe::train

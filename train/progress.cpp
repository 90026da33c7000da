#include "train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>

#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "gpipe/launch/world.h"

namespace gpipe::train {
namespace {

constexpr std::size_t kAnyWidth = 100000;
constexpr const char* kEraseLine = "\r\x1b[K";

std::string count_of(const char* what, std::int64_t at, std::int64_t of) {
  if (at <= 0 && of <= 0) return "";
  return of > 0 ? fmt::format("{} {}/{}", what, at, of) : fmt::format("{} {}", what, at);
}

std::string format_peaks(const std::vector<std::int64_t>& peak_bytes) {
  std::vector<std::string> peaks;
  for (const std::int64_t bytes : peak_bytes) peaks.push_back(cli::format_bytes(bytes));
  return peaks.empty() ? "" : fmt::format("peak {}", fmt::join(peaks, ", "));
}

// In the order of what is missed most.
std::vector<std::string> parts(const Progress& progress) {
  std::vector<std::string> all = {count_of("epoch", progress.epoch, progress.epochs),
                                  count_of(progress.step_name.c_str(), progress.step, progress.steps)};
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

std::string format_rate(double rate) {
  return rate >= 99.95 ? fmt::format("{:.0f}", rate) : fmt::format("{:.3g}", rate);
}

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
  return ProgressLayout().line(progress, width);
}

std::string ProgressLayout::line(const Progress& progress, std::size_t width) {
  const std::vector<std::string> fields = parts(progress);
  if (width != width_ || progress.phase != phase_ || fields.size() != widths_.size()) {
    width_ = width;
    phase_ = progress.phase;
    num_shown_ = fields.size();
    widths_.assign(fields.size(), 0);
  }
  std::string line = cli::printable(progress.phase).substr(0, width);
  std::size_t end = line.size();  // with the blanks that fill the last field up
  for (std::size_t field = 0; field < num_shown_; ++field) {
    widths_[field] = std::max(widths_[field], fields[field].size());
    if (end + 2 + widths_[field] > width) {
      num_shown_ = field;
      break;
    }
    line.resize(end, ' ');
    line += "  " + fields[field];
    end += 2 + widths_[field];
  }
  return line;
}

Progress progress_of(const Evaluated& evaluated, double seconds) {
  Progress progress;
  progress.phase = evaluated.phase;
  progress.step = evaluated.num_done;
  progress.steps = evaluated.num_all;
  progress.step_name = evaluated.unit;
  progress.unit = evaluated.unit;
  // From the first line on all fields are there, though nobody knows them yet: "0 samples/s  ETA ?".
  const auto done = static_cast<double>(evaluated.num_done);
  progress.items_per_second = seconds > 0 ? done / seconds : 0;
  progress.eta_seconds = std::numeric_limits<double>::infinity();
  if (done > 0) progress.eta_seconds = seconds / done * static_cast<double>(evaluated.num_all - evaluated.num_done);
  return progress;
}

std::string ProgressReporter::fitting_line(const Progress& progress) {
  if (!style_.is_terminal) return progress_line(progress, kAnyWidth);
  // A line as wide as the terminal would wrap when the cursor goes on.
  return layout_.line(progress, static_cast<std::size_t>(std::max(style_.columns() - 1, 1)));
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

void EvaluationReporter::update(const Evaluated& evaluated, double now_seconds) {
  if (phase_ != evaluated.phase) {
    phase_ = evaluated.phase;
    begin_seconds_ = now_seconds;
    reporter_.begin_phase();
  }
  reporter_.update(progress_of(evaluated, now_seconds - begin_seconds_), now_seconds);
}

ProgressReporter make_progress_reporter(int fd) {
  if (read_world().rank != 0) return ProgressReporter([](std::string_view) {}, {});
  ProgressStyle style;
  style.is_terminal = isatty(fd) != 0;
  style.columns = [fd] { return cli::output_width(fd); };
  const auto write = [fd](std::string_view text) {
    if (fd == STDERR_FILENO) {
      std::fwrite(text.data(), 1, text.size(), stderr);
      return;
    }
    cli::print(text);
    cli::flush_output();
  };
  return ProgressReporter(write, style);
}

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gpipe::train

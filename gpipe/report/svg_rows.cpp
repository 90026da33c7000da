#include "gpipe/report/svg_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>

namespace gpipe::chart {
namespace {

constexpr double kLeastPixels = 2;         // narrower spans are merged: drawn one by one they would flicker
constexpr double kMostRects = 40000;       // in the whole picture; with many rows, wider spans are merged too
constexpr double kDigitPixels = 7.2;       // of the 12 pixel font
constexpr double kNumberedBarHeight = 14;  // lower bars have no room for a number
constexpr int kMaxShades = 6;

// Okabe and Ito's colours, which colour-blind readers can tell apart. In the order of the kinds.
struct Colour {
  int red;
  int green;
  int blue;
};
constexpr Colour kColours[kNumKinds] = {{0, 114, 178}, {86, 180, 233}, {230, 159, 0},
                                        {213, 94, 0},  {0, 158, 115},  {204, 121, 167}};

Colour lighten(Colour colour, double amount) {
  const auto mix = [&](int channel) { return static_cast<int>(std::lround(channel + (255 - channel) * amount)); };
  return {mix(colour.red), mix(colour.green), mix(colour.blue)};
}

// The spans of one row that are too narrow to draw. Neighbours are stacked: together as wide as they are, each kind as
// high as its share.
class Stacks {
 public:
  Stacks(double top, const SvgGeometry& geometry) : top_(top), geometry_(geometry) {}

  // In the order of time. A gap, or a span that is wide enough for a bar, ends the stack.
  void add(double left, double right, int kind) {
    if (left - right_ >= 0.45 * geometry_.stack_width) close();
    if (!open_) left_ = left;
    open_ = true;
    right_ = std::max(right_, right);
    pixels_[kind] += right - left;
    ++counts_[kind];
    if (right_ - left_ >= geometry_.stack_width) close();
  }

  // Draws what there is.
  void close() {
    const double width = right_ - left_;
    double y = top_;
    for (int kind = 0; open_ && width > 0 && kind < kNumKinds; ++kind) {
      const double height = geometry_.bar_height * std::min(1.0, pixels_[kind] / width);
      if (height < 0.01) continue;
      fmt::format_to(std::back_inserter(paths_[kind]), "M{} {}h{}v{}h-{}z", px(left_), px(y), px(width), px(height),
                     px(width));
      y += height;
    }
    pixels_ = {};
    open_ = false;
  }

  void append_to(std::string& out) const {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      if (paths_[kind].empty()) continue;
      fmt::format_to(std::back_inserter(out), "<path fill=\"{}\" d=\"{}\"><title>{}: {} narrow spans</title></path>\n",
                     make_svg_shade(kind, 0, 1).fill, paths_[kind], kind_name(kind), counts_[kind]);
    }
  }

 private:
  const double top_;
  const SvgGeometry& geometry_;
  bool open_ = false;
  double left_ = 0;
  double right_ = 0;
  std::array<double, kNumKinds> pixels_{};
  std::array<std::int64_t, kNumKinds> counts_{};
  std::array<std::string, kNumKinds> paths_;
};

std::string tooltip(const WorkerTimeline& worker, std::size_t bar) {
  const auto times = [](double start, double end) {
    return fmt::format("{} to {}, takes {}", format_seconds(start), format_seconds(end), format_seconds(end - start));
  };
  if (bar >= worker.spans.size()) {
    return fmt::format("{}: {}", kind_name(kUpdate), times(worker.update_start_seconds, worker.update_end_seconds));
  }
  const Span& span = worker.spans[bar];
  return fmt::format("{}, stage {}, micro-batch {}: {}", name(span.action.kind), span.action.stage,
                     span.action.micro_batch, times(span.start_seconds, span.end_seconds));
}

bool is_merged(const Bar& bar, const SvgGeometry& geometry) {
  return bar.length() * SvgGeometry::kWidth < geometry.merge_below;
}

struct Rect {
  double x;
  double y;
  double width;
  double height;
};

// A gap between neighbours where there is room for one, and room for the outline of a critical span.
Rect inset(const Rect& rect, double by) {
  const double across = std::min(by, rect.width / 6);
  const double down = std::min(by, rect.height / 6);
  return {rect.x + across, rect.y + down, rect.width - 2 * across, rect.height - 2 * down};
}

void append_bar(std::string& out, const Rect& rect, const std::string& fill, const char* stroke) {
  fmt::format_to(std::back_inserter(out), "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{}",
                 px(rect.x), px(rect.y), px(rect.width), px(rect.height), fill, stroke);
  if (rect.width > 6 && rect.height > 6) out += " rx=\"2.5\"";
}

void append_number(std::string& out, const Rect& rect, const std::string& ink, int number) {
  fmt::format_to(std::back_inserter(out), "<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n",
                 px(rect.x + rect.width / 2), px(rect.y + rect.height / 2 + 4.3), ink, number);
}

// Spans that take no time are not seen, and need no room.
bool has_room_for_its_number(const Bar& bar, const Span& span) {
  const auto num_digits = static_cast<double>(std::to_string(span.action.micro_batch).size());
  return bar.length() <= 0 || num_digits * kDigitPixels + 2 <= bar.length() * SvgGeometry::kWidth;
}

}  // namespace

SvgGeometry make_svg_geometry(const Timeline& timeline, const std::vector<Row>& rows) {
  SvgGeometry geometry;
  const double num_rows = std::max<double>(1, static_cast<double>(rows.size()));
  geometry.pitch = std::clamp(900 / num_rows, 2.0, 34.0);
  geometry.bar_height = geometry.pitch < 6 ? geometry.pitch : geometry.pitch * 0.82;
  geometry.bottom = geometry.row_top(static_cast<int>(rows.size())) - geometry.pitch + geometry.bar_height;
  geometry.merge_below = std::max(kLeastPixels, SvgGeometry::kWidth * num_rows / kMostRects);
  geometry.stack_width = std::max(2 * kLeastPixels, num_rows / 128);
  geometry.has_numbers = geometry.bar_height >= kNumberedBarHeight;
  for (std::size_t worker = 0; worker < rows.size(); ++worker) {
    const Row& row = rows[worker];
    geometry.num_shades = std::clamp(row.num_chunks, geometry.num_shades, kMaxShades);
    for (std::size_t index = 0; index < row.bars.size(); ++index) {
      const Bar& bar = row.bars[index];
      geometry.has_stacks = geometry.has_stacks || (bar.length() > 0 && is_merged(bar, geometry));
      const std::vector<Span>& spans = timeline.workers[worker].spans;
      if (index < spans.size()) geometry.has_numbers &= has_room_for_its_number(bar, spans[index]);
    }
  }
  return geometry;
}

double px(double value) { return std::round(value * 100) / 100; }

SvgShade make_svg_shade(int kind, int shade, int num_shades) {
  const Colour colour = lighten(kColours[kind], num_shades > 1 ? 0.6 * shade / (num_shades - 1) : 0);
  const double brightness = 0.299 * colour.red + 0.587 * colour.green + 0.114 * colour.blue;
  return {fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue),
          brightness < 100 ? "#ffffff" : "#1f2328"};
}

void append_svg_row(std::string& out, const WorkerTimeline& worker, const Row& row,
                    const std::vector<bool>& is_critical, const SvgPlace& place) {
  const SvgGeometry& geometry = place.geometry;
  Stacks stacks(place.top, geometry);
  std::string numbers;  // above the bars
  for (std::size_t index = 0; index < row.bars.size(); ++index) {
    const Bar& bar = row.bars[index];
    const Rect rect = {SvgGeometry::x(bar.begin), place.top, bar.length() * SvgGeometry::kWidth, geometry.bar_height};
    if (is_merged(bar, geometry)) {
      stacks.add(rect.x, rect.x + rect.width, bar.kind);
      continue;
    }
    const bool critical = index < is_critical.size() && is_critical[index];
    const int rank = row.num_chunks > kMaxShades ? bar.chunk * kMaxShades / row.num_chunks : bar.chunk;
    const SvgShade shade = make_svg_shade(bar.kind, rank, geometry.num_shades);
    append_bar(out, inset(rect, critical ? 1.2 : 0.5), shade.fill, critical ? kCriticalStroke : "");
    fmt::format_to(std::back_inserter(out), "><title>{}</title></rect>\n", tooltip(worker, index));
    if (geometry.has_numbers && index < worker.spans.size())
      append_number(numbers, rect, shade.ink, worker.spans[index].action.micro_batch);
  }
  stacks.close();
  stacks.append_to(out);
  if (!numbers.empty()) {
    fmt::format_to(std::back_inserter(out), "<g text-anchor=\"middle\" pointer-events=\"none\">\n{}</g>\n", numbers);
  }
}

}  // namespace gpipe::chart

#include "gpipe/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpipe/report/chart.h"
#include "gpipe/text/json.h"

namespace gpipe {
namespace {

using detail::one_line_json;

using chart::Bar;
using chart::kNumKinds;
using chart::Row;

// In pixels.
constexpr double kPictureWidth = 1200;
constexpr double kMargin = 28;
constexpr double kLeft = 104;  // of the chart
constexpr double kWidth = 1020;
constexpr double kTop = 92;         // of the first row
constexpr double kLabelPitch = 14;  // least distance between two worker names
constexpr int kMaxTicks = 12;
constexpr double kSwatchPitch = 15;
constexpr double kLegendTop = 46;
constexpr double kLegendPitch = 22;
constexpr double kLeastPixels = 2;         // narrower spans are merged: drawn one by one they would flicker
constexpr double kMostRects = 40000;       // in the whole picture; with many rows, wider spans are merged too
constexpr double kDigitPixels = 7.2;       // of the 12 pixel font
constexpr double kNumberedBarHeight = 14;  // lower bars have no room for a number
constexpr int kMaxShades = 6;

constexpr const char* kFonts = "system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,DejaVu Sans,sans-serif";
constexpr const char* kIdleFill = "#eff2f5";
// How a span on the critical path is outlined.
constexpr const char* kCriticalStroke = R"( stroke="#1f2328" stroke-width="1.4" stroke-opacity="0.85")";

// Okabe and Ito's colours, which colour-blind readers can tell apart: red, green and blue, in the order of the kinds.
constexpr std::array<int, 3> kColours[kNumKinds] = {{0, 114, 178}, {86, 180, 233}, {230, 159, 0},
                                                    {213, 94, 0},  {0, 158, 115},  {204, 121, 167}};

// Of a bar, and of the number on it. Colours are attributes, not CSS: more programs can read them, and pictures on one
// page do not restyle each other.
struct Shade {
  std::string fill;
  std::string ink;
};

// From the full colour of the kind, shade 0, to a light one.
Shade make_shade(int kind, int shade, int num_shades) {
  const double lightness = num_shades > 1 ? 0.6 * shade / (num_shades - 1) : 0;
  std::array<int, 3> colour = kColours[kind];
  for (int& channel : colour) channel = static_cast<int>(std::lround(channel + (255 - channel) * lightness));
  const double brightness = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2];
  return {fmt::format("#{:02x}", fmt::join(colour, "")), brightness < 100 ? "#ffffff" : "#1f2328"};
}

// Two decimals are enough for a pixel.
double px(double value) { return std::round(value * 100) / 100; }

double x_of(double position) { return kLeft + position * kWidth; }

// Valid XML text, whatever the bytes: what is not UTF-8 or not an XML character becomes U+FFFD.
std::string escape(const std::string& text) {
  const std::string json = one_line_json(nlohmann::json(text));
  const std::string utf8 = nlohmann::json::parse(json).get<std::string>();
  std::string out;
  for (std::size_t byte = 0; byte < utf8.size(); ++byte) {
    const unsigned char c = static_cast<unsigned char>(utf8[byte]);
    const bool not_xml = utf8.compare(byte, 3, "\xEF\xBF\xBE") == 0 || utf8.compare(byte, 3, "\xEF\xBF\xBF") == 0;
    if (not_xml || c < ' ') {
      out += "\xEF\xBF\xBD";
      if (not_xml) byte += 2;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += utf8[byte];
    }
  }
  return out;
}

template <typename... Args>
void append_line(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  out += '\n';
}

// How high rows are, and what there is no room for.
struct Geometry {
  double pitch = 0;  // from row to row
  double bar_height = 0;
  double bottom = 0;         // of the last row
  double merge_below = 0;    // narrower spans are merged ...
  double stack_width = 0;    // ... into stacks about this wide
  int num_shades = 1;        // a stage of a worker has one of so many
  bool has_numbers = false;  // of the micro-batches: on every span or on none, as the narrowest has room for its own
  bool has_stacks = false;   // some spans are merged

  double row_top(std::size_t row) const { return kTop + static_cast<double>(row) * pitch; }
  bool is_merged(const Bar& bar) const { return bar.length() * kWidth < merge_below; }
};

// Spans that take no time are not seen, and need no room.
bool has_room_for_its_number(const Bar& bar, const Span& span) {
  const auto num_digits = static_cast<double>(std::to_string(span.action.micro_batch).size());
  return bar.length() <= 0 || num_digits * kDigitPixels + 2 <= bar.length() * kWidth;
}

Geometry make_geometry(const Timeline& timeline, const std::vector<Row>& rows) {
  Geometry geometry;
  const double num_rows = std::max<double>(1, static_cast<double>(rows.size()));
  geometry.pitch = std::clamp(900 / num_rows, 2.0, 34.0);
  geometry.bar_height = geometry.pitch < 6 ? geometry.pitch : geometry.pitch * 0.82;
  geometry.bottom = geometry.row_top(rows.size()) - geometry.pitch + geometry.bar_height;
  geometry.merge_below = std::max(kLeastPixels, kWidth * num_rows / kMostRects);
  geometry.stack_width = std::max(2 * kLeastPixels, num_rows / 128);
  geometry.has_numbers = geometry.bar_height >= kNumberedBarHeight;
  for (std::size_t worker = 0; worker < rows.size(); ++worker) {
    const Row& row = rows[worker];
    geometry.num_shades = std::clamp(row.num_chunks, geometry.num_shades, kMaxShades);
    for (std::size_t index = 0; index < row.bars.size(); ++index) {
      const Bar& bar = row.bars[index];
      geometry.has_stacks = geometry.has_stacks || (bar.length() > 0 && geometry.is_merged(bar));
      const std::vector<Span>& spans = timeline.workers[worker].spans;
      if (index < spans.size()) geometry.has_numbers &= has_room_for_its_number(bar, spans[index]);
    }
  }
  return geometry;
}

// The spans of one row that are too narrow to draw. Neighbours are stacked: together as wide as they are, each kind as
// high as its share.
class Stacks {
 public:
  Stacks(double top, const Geometry& geometry) : top_(top), geometry_(geometry) {}

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
      paths_[kind] += fmt::format("M{} {}h{}v{}h-{}z", px(left_), px(y), px(width), px(height), px(width));
      y += height;
    }
    pixels_ = {};
    open_ = false;
  }

  void append_to(std::string& out) const {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      if (paths_[kind].empty()) continue;
      append_line(out, R"(<path fill="{}" d="{}"><title>{}: {} narrow spans</title></path>)",
                  make_shade(kind, 0, 1).fill, paths_[kind], chart::kind_name(kind), counts_[kind]);
    }
  }

 private:
  const double top_;
  const Geometry& geometry_;
  bool open_ = false;
  double left_ = 0;
  double right_ = 0;
  std::array<double, kNumKinds> pixels_{};
  std::array<std::int64_t, kNumKinds> counts_{};
  std::array<std::string, kNumKinds> paths_;
};

std::string tooltip(const WorkerTimeline& worker, std::size_t bar) {
  const auto times = [](double start, double end) {
    return fmt::format("{} to {}, takes {}", chart::format_seconds(start), chart::format_seconds(end),
                       chart::format_seconds(end - start));
  };
  if (bar >= worker.spans.size()) {
    return fmt::format("{}: {}", chart::kind_name(chart::kUpdate),
                       times(worker.update_start_seconds, worker.update_end_seconds));
  }
  const Span& span = worker.spans[bar];
  const std::string when = times(span.start_seconds, span.end_seconds);
  if (span.action.kind == ActionKind::kUpdate) {
    return fmt::format("{}, stage {}: {}", name(span.action.kind), span.action.stage, when);
  }
  return fmt::format("{}, stage {}, micro-batch {}: {}", name(span.action.kind), span.action.stage,
                     span.action.micro_batch, when);
}

class Picture {
 public:
  explicit Picture(const Timeline& timeline) : timeline_(timeline) {
    rows_.reserve(timeline.workers.size());
    for (int worker = 0; worker < timeline.num_workers(); ++worker) rows_.push_back(chart::make_row(timeline, worker));
    geometry_ = make_geometry(timeline, rows_);
  }

  std::string draw() {
    heading();
    axis();
    rows();
    legend();
    out_ += "</svg>\n";
    return opening() + out_;
  }

 private:
  std::string title() const { return timeline_.name.empty() ? "timeline" : escape(timeline_.name); }

  // Last, because the legend says how high the picture is.
  std::string opening() const {
    const double height = px(geometry_.bottom + legend_y_ + 38);
    std::string out;
    append_line(out,
                R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" )"
                R"(font-family="{2}" font-size="12" fill="#57606a">)",
                kPictureWidth, height, kFonts);
    append_line(out, "<title>{}</title>", title());
    append_line(out, R"(<rect x="0.5" y="0.5" width="{}" height="{}" rx="10" fill="#ffffff" stroke="#d0d7de"/>)",
                kPictureWidth - 1, height - 1);
    return out;
  }

  void heading() {
    append_line(out_, R"(<text x="{}" y="40" font-size="20" font-weight="600" fill="#1f2328">{}</text>)", kMargin,
                title());
    append_line(
        out_, R"(<text x="{}" y="62" font-size="13">{} · makespan {} · bubble {}</text>)", kMargin,
        fmt::join(chart::format_size(timeline_.num_stages, timeline_.num_workers(), timeline_.num_micro_batches),
                  " · "),
        chart::format_seconds(timeline_.makespan_seconds), chart::format_percent(timeline_.bubble_fraction));
    append_line(out_, R"(<text x="{}" y="{}">busy</text>)", x_of(1) + 12, kTop - 10);
  }

  void axis() {
    for (const chart::Tick& tick : chart::make_ticks(timeline_.makespan_seconds, kMaxTicks)) {
      const double x = px(x_of(tick.position));
      append_line(out_, R"(<line x1="{0}" x2="{0}" y1="{1}" y2="{2}" stroke="#d8dee4"/>)", x, kTop - 4,
                  px(geometry_.bottom + 6));
      append_line(out_, R"(<text text-anchor="middle" x="{}" y="{}">{}</text>)", x, px(geometry_.bottom + 22),
                  tick.label);
    }
  }

  void rows() {
    const std::vector<std::vector<bool>> is_critical = critical_spans();
    const int rows_per_name = static_cast<int>(std::ceil(kLabelPitch / geometry_.pitch));
    for (int worker = 0; worker < timeline_.num_workers(); ++worker) {
      const double top = geometry_.row_top(worker);
      append_line(out_, R"(<rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>)", kLeft, px(top), kWidth,
                  px(geometry_.bar_height), kIdleFill);
      if (worker % rows_per_name == 0) {
        const double baseline = px(top + geometry_.bar_height / 2 + 4.3);
        append_line(out_, R"(<text text-anchor="end" x="{}" y="{}">worker {}</text>)", kLeft - 12, baseline, worker);
        append_line(out_, R"(<text x="{}" y="{}">{:.0f}%</text>)", x_of(1) + 12, baseline,
                    100 * rows_[worker].busy_fraction);
      }
      bars(worker, is_critical[worker]);
    }
  }

  // `is_critical` says of each span whether it lies on the critical path; empty if none does. At most a few thousand
  // elements.
  void bars(int worker, const std::vector<bool>& is_critical) {
    const WorkerTimeline& source = timeline_.workers[worker];
    const Row& row = rows_[worker];
    const double top = geometry_.row_top(worker);
    Stacks stacks(top, geometry_);
    std::string numbers;  // above the bars
    for (std::size_t index = 0; index < row.bars.size(); ++index) {
      const Bar& bar = row.bars[index];
      const double x = x_of(bar.begin);
      const double width = bar.length() * kWidth;
      const double height = geometry_.bar_height;
      if (geometry_.is_merged(bar)) {
        stacks.add(x, x + width, bar.kind);
        continue;
      }
      const bool critical = index < is_critical.size() && is_critical[index];
      const int rank = row.num_chunks > kMaxShades ? bar.chunk * kMaxShades / row.num_chunks : bar.chunk;
      const Shade shade = make_shade(bar.kind, rank, geometry_.num_shades);
      // A gap between neighbours where there is room for one, and room for the outline of a critical span.
      const double across = std::min(critical ? 1.2 : 0.5, width / 6);
      const double down = std::min(critical ? 1.2 : 0.5, height / 6);
      const bool is_round = width - 2 * across > 6 && height - 2 * down > 6;
      append_line(out_, R"(<rect x="{}" y="{}" width="{}" height="{}" fill="{}"{}{}><title>{}</title></rect>)",
                  px(x + across), px(top + down), px(width - 2 * across), px(height - 2 * down), shade.fill,
                  critical ? kCriticalStroke : "", is_round ? R"( rx="2.5")" : "", tooltip(source, index));
      if (!geometry_.has_numbers || index >= source.spans.size()) continue;
      append_line(numbers, R"(<text x="{}" y="{}" fill="{}">{}</text>)", px(x + width / 2), px(top + height / 2 + 4.3),
                  shade.ink, source.spans[index].action.micro_batch);
    }
    stacks.close();
    stacks.append_to(out_);
    if (!numbers.empty()) append_line(out_, "<g text-anchor=\"middle\" pointer-events=\"none\">\n{}</g>", numbers);
  }

  std::vector<std::vector<bool>> critical_spans() const {
    std::vector<std::vector<bool>> is_critical(timeline_.workers.size());
    for (const SpanRef& ref : timeline_.critical_path) {
      if (ref.worker < 0 || ref.worker >= timeline_.num_workers() || ref.index < 0) continue;
      const std::size_t num_spans = timeline_.workers[ref.worker].spans.size();
      if (static_cast<std::size_t>(ref.index) >= num_spans) continue;
      is_critical[ref.worker].resize(num_spans);
      is_critical[ref.worker][ref.index] = true;
    }
    return is_critical;
  }

  void legend() {
    bool occurs[kNumKinds] = {};
    for (const Row& row : rows_) {
      for (const Bar& bar : row.bars) occurs[bar.kind] = true;
    }
    const bool has_shades = geometry_.num_shades > 1;
    for (int kind = 0; kind < kNumKinds; ++kind) {
      if (!occurs[kind]) continue;
      std::vector<std::string> swatches = {fill(make_shade(kind, 0, 1).fill)};
      if (has_shades && kind != chart::kUpdate) swatches.push_back(fill(make_shade(kind, 1, 2).fill));
      explain(swatches, chart::kind_name(kind));
    }
    explain({fill(kIdleFill)}, "idle");
    if (!timeline_.critical_path.empty()) explain({fill(kIdleFill) + kCriticalStroke}, "critical path");
    if (has_shades) explain({}, "lighter: later stage");
    if (geometry_.has_numbers) explain({}, "number: micro-batch");
    if (geometry_.has_stacks) explain({}, "colours above each other: several narrow spans");
  }

  static std::string fill(const std::string& colour) { return fmt::format(R"( fill="{}")", colour); }

  // Swatches, given by their attributes, and what they mean; on a new line if this one is full.
  void explain(const std::vector<std::string>& swatches, const std::string& text) {
    const double caption_width = 5 + 6.6 * static_cast<double>(text.size());
    if (legend_x_ + kSwatchPitch * static_cast<double>(swatches.size()) + caption_width > kPictureWidth - kMargin) {
      legend_x_ = kLeft;
      legend_y_ += kLegendPitch;
    }
    for (const std::string& attributes : swatches) {
      append_line(out_, R"(<rect x="{}" y="{}" width="13" height="13" rx="2.5"{}/>)", px(legend_x_),
                  px(geometry_.bottom + legend_y_), attributes);
      legend_x_ += kSwatchPitch;
    }
    append_line(out_, R"(<text x="{}" y="{}">{}</text>)", px(legend_x_ + 5), px(geometry_.bottom + legend_y_ + 11),
                text);
    legend_x_ += caption_width + 16;
  }

  const Timeline& timeline_;
  std::vector<Row> rows_;
  Geometry geometry_;
  std::string out_;
  double legend_x_ = kLeft;
  double legend_y_ = kLegendTop;  // from the last row
};

}  // namespace

std::string to_svg(const Timeline& timeline) { return Picture(timeline).draw(); }

}  // namespace gpipe

#include "gpipe/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpipe/report/chart.h"
#include "gpipe/report/svg_rows.h"
#include "gpipe/text/json.h"

namespace gpipe {
namespace {

using chart::px;
using chart::Row;
using Geometry = chart::SvgGeometry;

constexpr double kWidth = 1200;
constexpr double kMargin = 28;
constexpr double kLabelPitch = 14;  // least distance between two worker names
constexpr int kMaxTicks = 12;
constexpr double kSwatchPitch = 15;
constexpr double kLegendTop = 46;
constexpr double kLegendPitch = 22;

constexpr const char* kFonts = "system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,DejaVu Sans,sans-serif";
constexpr const char* kIdleFill = "#eff2f5";

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

class Picture {
 public:
  explicit Picture(const Timeline& timeline) : timeline_(timeline) {
    rows_.reserve(timeline.workers.size());
    for (int worker = 0; worker < timeline.num_workers(); ++worker) rows_.push_back(chart::make_row(timeline, worker));
    geometry_ = chart::make_svg_geometry(timeline, rows_);
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
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  std::string title() const { return timeline_.name.empty() ? "timeline" : escape(timeline_.name); }

  // Last, because the legend says how high the picture is.
  std::string opening() const {
    const double height = px(geometry_.bottom + legend_y_ + 38);
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
        "font-family=\"{2}\" font-size=\"12\" fill=\"#57606a\">\n",
        kWidth, height, kFonts);
    out += fmt::format("<title>{}</title>\n", title());
    out += fmt::format(
        "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\" fill=\"#ffffff\" stroke=\"#d0d7de\"/>\n",
        kWidth - 1, height - 1);
    return out;
  }

  void heading() {
    add("<text x=\"{}\" y=\"40\" font-size=\"20\" font-weight=\"600\" fill=\"#1f2328\">{}</text>\n", kMargin, title());
    const auto count = [](int number, const char* noun, const char* plural) {
      return fmt::format("{} {}", number, number == 1 ? noun : plural);
    };
    std::string facts = count(timeline_.num_stages, "stage", "stages");
    if (timeline_.num_workers() != timeline_.num_stages) {
      facts += " · " + count(timeline_.num_workers(), "worker", "workers");
    }
    add("<text x=\"{}\" y=\"62\" font-size=\"13\">{} · {} · makespan {} · bubble {}</text>\n", kMargin, facts,
        count(timeline_.num_micro_batches, "micro-batch", "micro-batches"),
        chart::format_seconds(timeline_.makespan_seconds), chart::format_percent(timeline_.bubble_fraction));
    add("<text x=\"{}\" y=\"{}\">busy</text>\n", Geometry::x(1) + 12, Geometry::kTop - 10);
  }

  void axis() {
    for (const chart::Tick& tick : chart::make_ticks(timeline_.makespan_seconds, kMaxTicks)) {
      const double x = px(Geometry::x(tick.position));
      add("<line x1=\"{0}\" x2=\"{0}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#d8dee4\"/>\n", x, Geometry::kTop - 4,
          px(geometry_.bottom + 6));
      add("<text text-anchor=\"middle\" x=\"{}\" y=\"{}\">{}</text>\n", x, px(geometry_.bottom + 22), tick.label);
    }
  }

  void rows() {
    const std::vector<std::vector<bool>> is_critical = critical_spans();
    const int rows_per_name = static_cast<int>(std::ceil(kLabelPitch / geometry_.pitch));
    for (int worker = 0; worker < timeline_.num_workers(); ++worker) {
      const double top = geometry_.row_top(worker);
      add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", Geometry::kLeft, px(top),
          Geometry::kWidth, px(geometry_.bar_height), kIdleFill);
      if (worker % rows_per_name == 0) {
        const double baseline = px(top + geometry_.bar_height / 2 + 4.3);
        add("<text text-anchor=\"end\" x=\"{}\" y=\"{}\">worker {}</text>\n", Geometry::kLeft - 12, baseline, worker);
        add("<text x=\"{}\" y=\"{}\">{:.0f}%</text>\n", Geometry::x(1) + 12, baseline,
            100 * rows_[worker].busy_fraction);
      }
      chart::append_svg_row(out_, timeline_.workers[worker], rows_[worker], is_critical[worker], {geometry_, top});
    }
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
    bool occurs[chart::kNumKinds] = {};
    for (const Row& row : rows_) {
      for (const chart::Bar& bar : row.bars) occurs[bar.kind] = true;
    }
    const bool has_shades = geometry_.num_shades > 1;
    for (int kind = 0; kind < chart::kNumKinds; ++kind) {
      if (!occurs[kind]) continue;
      std::vector<std::string> swatches = {fill(chart::make_svg_shade(kind, 0, 1).fill)};
      if (has_shades && kind != chart::kUpdate) swatches.push_back(fill(chart::make_svg_shade(kind, 1, 2).fill));
      explain(swatches, chart::kind_name(kind));
    }
    explain({fill(kIdleFill)}, "idle");
    if (!timeline_.critical_path.empty()) explain({fill(kIdleFill) + chart::kCriticalStroke}, "critical path");
    if (has_shades) explain({}, "lighter: later stage");
    if (geometry_.has_numbers) explain({}, "number: micro-batch");
    if (geometry_.has_stacks) explain({}, "colours above each other: several narrow spans");
  }

  static std::string fill(const std::string& colour) { return fmt::format(" fill=\"{}\"", colour); }

  // Swatches, given by their attributes, and what they mean; on a new line if this one is full.
  void explain(const std::vector<std::string>& swatches, const std::string& text) {
    const double caption_width = 5 + 6.6 * static_cast<double>(text.size());
    if (legend_x_ + kSwatchPitch * static_cast<double>(swatches.size()) + caption_width > kWidth - kMargin) {
      legend_x_ = Geometry::kLeft;
      legend_y_ += kLegendPitch;
    }
    for (const std::string& attributes : swatches) {
      add("<rect x=\"{}\" y=\"{}\" width=\"13\" height=\"13\" rx=\"2.5\"{}/>\n", px(legend_x_),
          px(geometry_.bottom + legend_y_), attributes);
      legend_x_ += kSwatchPitch;
    }
    add("<text x=\"{}\" y=\"{}\">{}</text>\n", px(legend_x_ + 5), px(geometry_.bottom + legend_y_ + 11), text);
    legend_x_ += caption_width + 16;
  }

  const Timeline& timeline_;
  std::vector<Row> rows_;
  Geometry geometry_;
  std::string out_;
  double legend_x_ = Geometry::kLeft;
  double legend_y_ = kLegendTop;  // from the last row
};

}  // namespace

std::string to_svg(const Timeline& timeline) { return Picture(timeline).draw(); }

}  // namespace gpipe

// The report as one HTML page. The plot is an inline SVG, so the page loads nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "bench/report_files.h"

namespace farpage::bench {
namespace {

constexpr double kWidth = 860, kHeight = 380, kLeft = 60, kRight = 20, kTop = 16, kBottom = 44;
constexpr std::array<std::string_view, 8> kColours = {"#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2",
                                                      "#b8860b", "#2f4b4f", "#d1495b", "#6b705c"};
constexpr std::string_view kStyle = R"(
  body { font: 15px/1.45 system-ui, sans-serif; color: #1c2321; background: #fff;
         max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #dde2e0; }
  th:first-child, td:first-child { text-align: left; }
  table.facts td { text-align: left; } .facts td:first-child { color: #5c6663; width: 11rem; }
  .scroll { overflow-x: auto; } svg { width: 100%; height: auto; }
  svg text { font: 12px system-ui, sans-serif; fill: #5c6663; }
  .grid { stroke: #e6eae8; } .bar { height: .9rem; background: #1b6ca8; min-width: 1px; }
  td.bars { width: 45%; }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string name_of(const Report& report, const Row& row) {
  return row.name.empty() ? report.benchmark : row.name;
}

std::string facts(const Report& report) {
  std::string text = "<table class=\"facts\">\n";
  for (const auto& [name, value] : facts_of(report))
    text += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), escaped(value));
  return text + "</table>\n";
}

std::string latency_table(const Report& report) {
  std::string text =
      "<div class=\"scroll\"><table>\n<tr><th>usec</th><th>bytes</th><th>count</th><th>min</th>"
      "<th>50&nbsp;%</th><th>mean</th><th>90&nbsp;%</th><th>99&nbsp;%</th><th>99.9&nbsp;%</th>"
      "<th>max</th></tr>\n";
  for (const Row& row : report.rows) {
    const Histogram& h = row.latency_ns;
    text += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td>"
        "<td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td></tr>\n",
        escaped(name_of(report, row)), row.bytes, h.count(), us(h.min_ns()),
        us(h.percentile_ns(50)), h.mean_ns() / 1000.0, us(h.percentile_ns(90)),
        us(h.percentile_ns(99)), us(h.percentile_ns(99.9)), us(h.max_ns()));
  }
  return text + "</table></div>\n";
}

// The logarithmic axis: whole decades that contain all samples.
class Axis {
 public:
  explicit Axis(const std::vector<Row>& rows) {
    double least = 1e12, most = 0;
    for (const Row& row : rows) {
      if (row.latency_ns.count() == 0) continue;
      least = std::min(least, us(row.latency_ns.min_ns()));
      most = std::max(most, us(row.latency_ns.max_ns()));
    }
    first_ = static_cast<int>(std::floor(std::log10(std::max(least, 1e-3))));
    last_ = std::max(first_ + 1, static_cast<int>(std::ceil(std::log10(std::max(most, 1e-3)))));
  }
  double x(double microseconds) const {
    const double decades = std::log10(std::max(microseconds, 1e-3)) - first_;
    return kLeft + (kWidth - kLeft - kRight) * decades / (last_ - first_);
  }
  int first() const { return first_; }
  int last() const { return last_; }

 private:
  int first_ = 0, last_ = 1;
};

double y(double share) {
  return kTop + (kHeight - kTop - kBottom) * (1 - share);
}

std::string grid(const Axis& axis) {
  std::string text;
  for (int decade = axis.first(); decade <= axis.last(); ++decade) {
    const double at = axis.x(std::pow(10.0, decade));
    text += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:g}</text>\n",
        at, y(1), y(0), y(0) + 18, std::pow(10.0, decade));
  }
  for (const int percent : {0, 25, 50, 75, 90, 100}) {
    text += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{2:.1f}\" x2=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5} %</text>\n",
        kLeft, kWidth - kRight, y(percent / 100.0), kLeft - 8, y(percent / 100.0) + 4, percent);
  }
  return text + fmt::format(
                    "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">latency, "
                    "microseconds (logarithmic)</text>\n",
                    (kLeft + kWidth - kRight) / 2, kHeight - 6);
}

// At most a few hundred points for each curve: steps too small to see are omitted.
std::string curve(const Histogram& h, const Axis& axis, std::string_view colour) {
  std::string points;
  uint64_t seen = 0;
  double drawn_x = -1, drawn_y = -1;
  for (size_t i = 0; i < Histogram::kBuckets; ++i) {
    if (h.bucket_count(i) == 0) continue;
    seen += h.bucket_count(i);
    const double at = axis.x(us(Histogram::upper_edge_ns(i)));
    const double up = y(static_cast<double>(seen) / static_cast<double>(h.count()));
    if (seen < h.count() && std::abs(at - drawn_x) < 1 && std::abs(up - drawn_y) < 1) continue;
    points += fmt::format("{:.1f},{:.1f} ", at, up);
    drawn_x = at;
    drawn_y = up;
  }
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n",
                     colour, points);
}

std::string plot(const Report& report) {
  const Axis axis(report.rows);
  std::string text = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Cumulative distribution of latencies\">"
      "\n{}",
      kWidth, kHeight, grid(axis));
  std::string legend = "<p>";
  size_t number = 0;
  for (const Row& row : report.rows) {
    if (row.latency_ns.count() == 0) continue;
    const std::string_view colour = kColours[number++ % kColours.size()];
    text += curve(row.latency_ns, axis, colour);
    legend += fmt::format("<span style=\"color:{}\">&#9632;</span> {} &nbsp; ", colour,
                          escaped(name_of(report, row)));
  }
  return text + "</svg>\n" + legend + "</p>\n";
}

std::string throughput_table(const std::vector<Throughput>& throughputs) {
  std::string text =
      "<table>\n<tr><th></th><th>bytes</th><th>count</th><th>MB/s</th><th>operations/s</th></tr>\n";
  for (const Throughput& throughput : throughputs)
    text +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.0f}</td></tr>\n",
                    escaped(throughput.name), throughput.bytes, throughput.operations,
                    throughput.mb_per_second(), throughput.per_second());
  return text + "</table>\n";
}

std::string stage_table(const std::vector<Stage>& stages) {
  double longest = 1e-9;
  for (const Stage& stage : stages) longest = std::max(longest, stage.mean_us);
  std::string text =
      "<table>\n<tr><th>stage, usec</th><th>mean</th><th>50&nbsp;%</th><th>99&nbsp;%</th>"
      "<th></th></tr>\n";
  for (const Stage& stage : stages)
    text += fmt::format(
        "<tr><td>{}</td><td>{:.2f}</td><td>{}</td><td>{}</td><td class=\"bars\">"
        "<div class=\"bar\" style=\"width:{:.1f}%\"></div></td></tr>\n",
        escaped(stage.name), stage.mean_us, number_or_dash(stage.p50_us),
        number_or_dash(stage.p99_us), std::max(0.0, stage.mean_us) / longest * 100);
  return text + "</table>\n";
}

std::string numbers(const Report& report) {
  std::string text = "<table>\n";
  for (const auto& [name, value] : report.figures)
    text += fmt::format("<tr><td>{}</td><td>{:.2f}</td></tr>\n", escaped(name), value);
  for (const auto& [name, value] : report.counts)
    text += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), value);
  return text + "</table>\n";
}

}  // namespace

std::string format_html(const Report& report) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>farpage bench {0}</title>\n<style>{1}</style></head><body>\n"
      "<h1>farpage bench {0}</h1>\n",
      escaped(report.benchmark), kStyle);
  page += facts(report);
  if (!report.rows.empty())
    page += "<h2>Latency</h2>\n" + latency_table(report) +
            "<h2>Share of operations that took no longer</h2>\n" + plot(report);
  if (!report.throughputs.empty())
    page += "<h2>Throughput</h2>\n" + throughput_table(report.throughputs);
  if (!report.stages.empty()) page += "<h2>Where the time goes</h2>\n" + stage_table(report.stages);
  if (!report.figures.empty() || !report.counts.empty())
    page += "<h2>Figures and counts</h2>\n" + numbers(report);
  return page + "</body></html>\n";
}

}  // namespace farpage::bench

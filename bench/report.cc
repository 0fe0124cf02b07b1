#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace farpage::bench {
namespace {

constexpr char kRule[] =
    "----------------------------------------------------------------------------------------\n";

std::string format_header(const Report& report) {
  std::string text = kRule;
  text += fmt::format("                    farpage bench {}\n", report.benchmark);
  for (const auto& [name, value] : facts_of(report))
    text += fmt::format(" {:<18}: {}\n", name, value);
  return text + kRule;
}

std::string format_rows(const std::vector<Row>& rows) {
  if (rows.empty()) return {};
  size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format(
      " {:<{}}{}#bytes #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  "
      "t_stdev[usec]  99%[usec]  99.9%[usec]\n",
      "", width, width > 0 ? "  " : "");
  for (const Row& row : rows) {
    const Histogram& h = row.latency_ns;
    text += fmt::format(
        " {:<{}}{}{:<6} {:<11}  {:<11.2f}  {:<11.2f}  {:<15.2f}  {:<11.2f}  {:<13.2f}  {:<9.2f}  "
        "{:.2f}\n",
        row.name, width, width > 0 ? "  " : "", row.bytes, h.count(), us(h.min_ns()),
        us(h.max_ns()), us(h.percentile_ns(50)), h.mean_ns() / 1000.0, h.stddev_ns() / 1000.0,
        us(h.percentile_ns(99)), us(h.percentile_ns(99.9)));
  }
  return text;
}

std::string format_throughputs(const std::vector<Throughput>& throughputs) {
  size_t width = 0;
  for (const Throughput& throughput : throughputs) width = std::max(width, throughput.name.size());
  std::string text =
      fmt::format(" {:<{}}  #bytes   #iterations  BW average[MB/sec]  MsgRate[1/sec]\n", "", width);
  for (const Throughput& throughput : throughputs)
    text += fmt::format(" {:<{}}  {:<7}  {:<11}  {:<18.2f}  {:.0f}\n", throughput.name, width,
                        throughput.bytes, throughput.operations, throughput.mb_per_second(),
                        throughput.per_second());
  return text;
}

std::string format_stages(const std::vector<Stage>& stages) {
  if (stages.empty()) return {};
  std::string text =
      fmt::format(" {:<34}{:>10}{:>10}{:>10}\n", "stage [usec]", "mean", "50%", "99%");
  for (const Stage& stage : stages)
    text += fmt::format(" {:<34}{:>10.2f}{:>10}{:>10}\n", stage.name, stage.mean_us,
                        number_or_dash(stage.p50_us), number_or_dash(stage.p99_us));
  return text;
}

nlohmann::ordered_json json_of(const Throughput& throughput) {
  return {{"name", throughput.name},
          {"bytes", throughput.bytes},
          {"iterations", throughput.operations},
          {"seconds", static_cast<double>(throughput.elapsed.count()) / 1e9},
          {"MB_per_s", throughput.mb_per_second()},
          {"operations_per_s", throughput.per_second()}};
}

nlohmann::ordered_json json_of(const Row& row) {
  const Histogram& h = row.latency_ns;
  return {{"name", row.name},
          {"bytes", row.bytes},
          {"iterations", h.count()},
          {"t_min", us(h.min_ns())},
          {"t_max", us(h.max_ns())},
          {"t_typical", us(h.percentile_ns(50))},
          {"t_avg", h.mean_ns() / 1000.0},
          {"t_stdev", h.stddev_ns() / 1000.0},
          {"p90", us(h.percentile_ns(90))},
          {"p99", us(h.percentile_ns(99))},
          {"p99.9", us(h.percentile_ns(99.9))}};
}

}  // namespace

std::string number_or_dash(std::optional<double> number) {
  return number ? fmt::format("{:.2f}", *number) : std::string("-");
}

double Throughput::per_second() const {
  return elapsed.count() == 0
             ? 0.0
             : static_cast<double>(operations) * 1e9 / static_cast<double>(elapsed.count());
}

std::vector<std::pair<std::string, std::string>> facts_of(const Report& report) {
  const Environment& env = report.environment;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"Machine", fmt::format("{}, {}, {} CPUs", env.host, env.processor, env.cpus)},
      {"Kernel", env.kernel},
      {"Load averages", env.load},
      {"Commit", fmt::format("{} ({})", env.commit, env.build_type)},
      {"Date", env.date},
      {"Command", env.command}};
  facts.insert(facts.end(), report.configuration.begin(), report.configuration.end());
  return facts;
}

std::string format_text(const Report& report) {
  std::string text = format_header(report);
  text += format_rows(report.rows);
  if (!report.throughputs.empty()) text += kRule + format_throughputs(report.throughputs);
  if (!report.stages.empty()) text += kRule + format_stages(report.stages);
  if (!report.figures.empty() || !report.counts.empty()) text += kRule;
  for (const auto& [name, value] : report.figures)
    text += fmt::format(" {:<28}{:>14.2f}\n", name, value);
  for (const auto& [name, value] : report.counts)
    text += fmt::format(" {:<28}{:>14}\n", name, value);
  return text + kRule;
}

std::string format_json(const Report& report) {
  using nlohmann::ordered_json;
  const Environment& env = report.environment;
  ordered_json all;
  all["benchmark"] = report.benchmark;
  all["environment"] = {{"host", env.host},
                        {"processor", env.processor},
                        {"cpus", env.cpus},
                        {"kernel", env.kernel},
                        {"load", env.load},
                        {"commit", env.commit},
                        {"build_type", env.build_type},
                        {"date", env.date},
                        {"command", env.command}};
  all["unit"] = "usec";
  all["configuration"] = ordered_json::object();
  for (const auto& [name, value] : report.configuration) all["configuration"][name] = value;
  all["rows"] = ordered_json::array();
  for (const Row& row : report.rows) all["rows"].push_back(json_of(row));
  all["throughputs"] = ordered_json::array();
  for (const Throughput& throughput : report.throughputs)
    all["throughputs"].push_back(json_of(throughput));
  all["stages"] = ordered_json::array();
  const auto value_of = [](std::optional<double> us) {
    return us ? ordered_json(*us) : ordered_json(nullptr);
  };
  for (const Stage& stage : report.stages)
    all["stages"].push_back({{"name", stage.name},
                             {"mean", stage.mean_us},
                             {"p50", value_of(stage.p50_us)},
                             {"p99", value_of(stage.p99_us)}});
  all["figures"] = ordered_json::object();
  for (const auto& [name, value] : report.figures) all["figures"][name] = value;
  all["counts"] = ordered_json::object();
  for (const auto& [name, value] : report.counts) all["counts"][name] = value;
  // Bytes of the command line that are not UTF-8 are replaced.
  return all.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace farpage::bench

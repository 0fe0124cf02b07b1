#include "bench/report_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

namespace farpage::bench {
namespace {

// "remote fault, tcp" -> "remote-fault-tcp"
std::string file_name_of(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name;
}

Status write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail(ErrorCode::kInvalid, path.string() + ": cannot be written");
  return {};
}

}  // namespace

std::string format_hgrm(const Row& row) {
  const Histogram& h = row.latency_ns;
  std::string text = fmt::format("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile",
                                 "TotalCount", "1/(1-Percentile)");
  uint64_t seen = 0;
  for (size_t i = 0; i < Histogram::kBuckets; ++i) {
    const uint64_t here = h.bucket_count(i);
    if (here == 0) continue;
    seen += here;
    const double share = static_cast<double>(seen) / static_cast<double>(h.count());
    text += fmt::format("{:>12.3f} {:>2.12f} {:>10}", us(Histogram::upper_edge_ns(i)), share, seen);
    text += seen < h.count() ? fmt::format(" {:>14.2f}\n", 1 / (1 - share)) : "\n";
  }
  text += fmt::format("#[Mean    = {:>12.3f}, StdDeviation   = {:>12.3f}]\n", h.mean_ns() / 1000.0,
                      h.stddev_ns() / 1000.0);
  text +=
      fmt::format("#[Max     = {:>12.3f}, Total count    = {:>12}]\n", us(h.max_ns()), h.count());
  text += fmt::format("#[Buckets = {:>12}, SubBuckets     = {:>12}]\n",
                      Histogram::kMaxBits - Histogram::kSubBits + 1, 1 << Histogram::kSubBits);
  return text;
}

Status write_hgrm_files(const Report& report, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kInvalid, "--hgrm: " + folder + ": " + error.message());
  for (const Row& row : report.rows) {
    if (row.latency_ns.count() == 0) continue;
    std::string name = report.benchmark;
    if (const std::string suffix = file_name_of(row.name); !suffix.empty()) name += "-" + suffix;
    FARPAGE_TRY_VOID(
        write_file(std::filesystem::path(folder) / (name + ".hgrm"), format_hgrm(row)));
  }
  return {};
}

Status write_html_file(const Report& report, const std::string& path) {
  return write_file(path, format_html(report));
}

}  // namespace farpage::bench

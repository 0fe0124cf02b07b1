// The files of a report: percentile distributions for HdrHistogram's plotter, and one
// self-contained HTML page.
#pragma once

#include <string>

#include "base/result.h"
#include "bench/report.h"

namespace farpage::bench {

// The percentile distribution of one row in HdrHistogram's text form (Gil Tene,
// HdrHistogram/outputPercentileDistribution), in microseconds.
std::string format_hgrm(const Row& row);

// One self-contained page: the environment, the table of latencies, their cumulative distributions
// as an inline SVG (latency on a logarithmic axis), and the mean of each stage.
std::string format_html(const Report& report);

// Writes `folder`/fault-remote-fault.hgrm and so on, one file a row; creates the folder.
Status write_hgrm_files(const Report& report, const std::string& folder);
Status write_html_file(const Report& report, const std::string& path);

}  // namespace farpage::bench

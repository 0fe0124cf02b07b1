// The results of a bench, as a table or as JSON.
#pragma once

#include <string>

#include "kv/bench.h"

namespace kv {

std::string format_text(const BenchResult& result);
// One object and a line feed.
std::string format_json(const BenchResult& result);

}  // namespace kv

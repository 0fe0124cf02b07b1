// Tables of text.
#pragma once

#include <string>
#include <vector>

namespace farpage::cli {

// Each column is as wide as its widest cell. Control characters become question marks: texts come
// from other users. Columns are two spaces apart; lines have no trailing
// spaces. Each row must have as many cells as `header`.
std::string format_table(const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows);

}  // namespace farpage::cli

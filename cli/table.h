// Columns of text that line up.
#pragma once

#include <string>
#include <vector>

namespace farpage::cli {

// Every row as wide as the widest cell of each column, two spaces apart, no spaces at line ends.
// Each row has as many cells as `header`.
std::string format_table(const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows);

}  // namespace farpage::cli

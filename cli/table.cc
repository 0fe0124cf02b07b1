#include "cli/table.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"

namespace farpage::cli {

std::string format_table(const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(header.size());
  for (size_t i = 0; i < header.size(); ++i) widths[i] = header[i].size();
  for (const auto& row : rows) {
    FARPAGE_CHECK(row.size() == widths.size(), "a row of %zu cells under %zu columns", row.size(),
                  widths.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += printable(row[i]);
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  add(header);
  for (const auto& row : rows) add(row);
  return text;
}

}  // namespace farpage::cli

#include "http/route_table.h"

#include "http/json_reader.h"

namespace farpage::http {
namespace {

// "/a/b" -> "", "a", "b".
std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> segments;
  size_t start = 0;
  while (true) {
    const size_t slash = path.find('/', start);
    segments.emplace_back(path.substr(start, slash - start));
    if (slash == std::string_view::npos) return segments;
    start = slash + 1;
  }
}

bool matches(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
             std::vector<std::string>& ids) {
  if (pattern.size() != path.size()) return false;
  ids.clear();
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool wild = !pattern[i].empty() && pattern[i].front() == '{';
    if (wild ? !is_name(path[i]) : pattern[i] != path[i]) return false;
    if (wild) ids.push_back(path[i]);
  }
  return true;
}

}  // namespace

RouteTable::RouteTable(std::vector<Route> routes) {
  for (Route& route : routes) {
    std::vector<std::string> segments = split(route.pattern);
    entries_.push_back(Entry{std::move(route), std::move(segments)});
  }
}

RouteMatch RouteTable::match(std::string_view method, std::string_view path) const {
  const std::vector<std::string> segments = split(path);
  RouteMatch found;
  std::vector<std::string> ids;
  for (const Entry& entry : entries_) {
    if (!matches(entry.segments, segments, ids)) continue;
    if (entry.route.method == method) {
      found.route = &entry.route;
      found.ids = ids;
      return found;
    }
    found.other_methods.push_back(entry.route.method);
  }
  return found;
}

}  // namespace farpage::http

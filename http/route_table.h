// RouteTable: finds the route for a method and a path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"

namespace farpage::http {

struct RouteMatch {
  const Route* route = nullptr;  // null: no such path, or not with this method
  std::vector<std::string> ids;
  std::vector<std::string> other_methods;  // of the path; empty: no such path
};

// Threads: any, read only.
class RouteTable {
 public:
  explicit RouteTable(std::vector<Route> routes);
  // `path` is decoded, without query.
  RouteMatch match(std::string_view method, std::string_view path) const;

 private:
  struct Entry {
    Route route;
    std::vector<std::string> segments;
  };
  std::vector<Entry> entries_;
};

}  // namespace farpage::http

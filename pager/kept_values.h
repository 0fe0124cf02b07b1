// How values of the StateStore are read, here and in serve/served_state.cc: JSON objects, each
// under a prefix and a number.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/state_store.h"

namespace farpage::pager {

// All values with the prefix, by number. `from` makes a Result<Record> of the parsed object.
// kInvalid: a value is no object.
template <typename Record, typename From>
Result<std::map<uint64_t, Record>> read_kept(const StateStore* store, const std::string& prefix,
                                             From from) {
  std::map<uint64_t, Record> found;
  if (store == nullptr) return found;
  for (const auto& [name, text] : store->all(prefix)) {
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
    if (!value.is_object())
      return fail(ErrorCode::kInvalid, "the predecessor's state: " + name + " is malformed");
    FARPAGE_TRY(record, from(value));
    found.emplace(std::stoull(name.substr(prefix.size())), std::move(record));
  }
  return found;
}

}  // namespace farpage::pager

// parse_named(): the NAME=VALUE texts of an option that may be given several times.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace farpage::cli {

// By name. `parse` takes name and value ("" without a =), and returns nothing for what is wrong.
// kInvalid: the option, the text, and `form`, as "is not NAME=SIZE"; or the name that is there
// twice.
template <typename Value>
Result<std::map<std::string, Value>> parse_named(
    std::string_view option, const std::vector<std::string>& texts, std::string_view form,
    std::optional<Value> (*parse)(const std::string& name, const std::string& value)) {
  std::map<std::string, Value> values;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    std::optional<Value> value =
        parse(name, equals == std::string::npos ? std::string() : text.substr(equals + 1));
    if (!value) return fail(ErrorCode::kInvalid, fmt::format("{}: '{}' {}", option, text, form));
    if (!values.emplace(name, std::move(*value)).second)
      return fail(ErrorCode::kInvalid, fmt::format("{}: '{}' is given twice", option, name));
  }
  return values;
}

}  // namespace farpage::cli

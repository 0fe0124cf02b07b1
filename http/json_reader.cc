#include "http/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"

namespace farpage::http {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxQuotedBytes = 40;
constexpr size_t kMaxTextBytes = 256;  // read before a name is checked, to say what is wrong

// Makes user input safe for an error text: short, printable ASCII.
std::string quote(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxQuotedBytes))
    out += c >= 0x20 && c < 0x7f && c != '\'' ? c : '?';
  return "'" + out + (text.size() > kMaxQuotedBytes ? "...'" : "'");
}

bool is_plain_text(std::string_view text) {
  return std::none_of(text.begin(), text.end(), is_control);
}

// Parser callback: drops and records values that are too deep or have a duplicate key, so that
// hostile nesting costs no memory.
class ParseGuard {
 public:
  bool operator()(int, Json::parse_event_t event, Json& value) {
    if (!problem_.empty()) return false;
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        begins_.push_back(keys_.size());
        if (begins_.size() > kMaxJsonDepth)
          problem_ = fmt::format("the body is nested deeper than {} levels", kMaxJsonDepth);
        break;
      case Json::parse_event_t::object_end:
        find_duplicate(value);
        [[fallthrough]];
      case Json::parse_event_t::array_end:
        keys_.resize(begins_.back());
        begins_.pop_back();
        break;
      case Json::parse_event_t::key:
        keys_.push_back(hash(value.get_ref<const std::string&>()));
        break;
      case Json::parse_event_t::value:
        break;
    }
    return problem_.empty();
  }
  const std::string& problem() const { return problem_; }

 private:
  static size_t hash(const std::string& key) { return std::hash<std::string>()(key); }

  void find_duplicate(const Json& object) {
    const auto begin = keys_.begin() + static_cast<ptrdiff_t>(begins_.back());
    std::sort(begin, keys_.end());
    const auto twice = std::adjacent_find(begin, keys_.end());
    if (twice == keys_.end()) return;
    for (const auto& [key, value] : object.items())
      if (hash(key) == *twice)
        problem_ = fmt::format("the key {} is given twice in one object", quote(key));
  }

  std::vector<size_t> keys_;    // hashes of those of the open objects
  std::vector<size_t> begins_;  // of each open object and array, in keys_
  std::string problem_;
};

}  // namespace

std::string field_of(const Error& error) {
  constexpr std::string_view kStart = "field '";
  if (error.context.rfind(kStart, 0) != 0) return {};
  const size_t end = error.context.find("': ");
  return end == std::string::npos ? std::string()
                                  : error.context.substr(kStart.size(), end - kStart.size());
}

bool is_name(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameBytes) return false;
  bool only_dots = true;
  for (const char c : text) {
    const bool letter_or_digit =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter_or_digit && c != '.' && c != '_' && c != '-') return false;
    only_dots = only_dots && c == '.';
  }
  return !only_dots;
}

Result<std::shared_ptr<const Json>> parse_json_object(std::string_view body) {
  ParseGuard guard;
  try {
    auto document = std::make_shared<Json>(
        Json::parse(body.begin(), body.end(), std::ref(guard), /*allow_exceptions=*/true));
    if (!guard.problem().empty()) return fail(ErrorCode::kInvalid, guard.problem());
    if (!document->is_object())
      return fail(ErrorCode::kInvalid, "the body must be one JSON object, as in {\"name\": 1}");
    return document;
  } catch (const Json::parse_error& error) {
    if (!guard.problem().empty()) return fail(ErrorCode::kInvalid, guard.problem());
    return fail(ErrorCode::kInvalid,
                fmt::format("the body is not JSON: wrong at byte {}", error.byte));
  } catch (const Json::exception&) {
    return fail(ErrorCode::kInvalid, "the body holds a number that no JSON reader can represent");
  }
}

JsonReader::JsonReader(const Json& object, UnknownFields unknown)
    : JsonReader(object, unknown, "", std::make_shared<Failure>()) {}

JsonReader::JsonReader(const Json& object, UnknownFields unknown, std::string path,
                       std::shared_ptr<Failure> failure)
    : object_(object), unknown_(unknown), path_(std::move(path)), failure_(std::move(failure)) {}

const Json* JsonReader::find(std::string_view key) {
  taken_.emplace(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Json* JsonReader::require(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) refuse(key, "is missing");
  return value;
}

bool JsonReader::has(std::string_view key) {
  return find(key) != nullptr;
}

void JsonReader::refuse(std::string_view key, std::string why) {
  if (!ok()) return;
  *failure_ = Error{ErrorCode::kInvalid, fmt::format("field '{}{}': {}", path_, key, why), 0};
}

uint64_t JsonReader::unsigned_of(const Json& value, std::string_view key, uint64_t min,
                                 uint64_t max) {
  // The parser returns an integer beyond 64 bits as a float, which is refused.
  if (!value.is_number_unsigned()) {
    refuse(key, fmt::format("must be an integer from {} to {}, written without sign or fraction",
                            min, max));
    return 0;
  }
  const auto number = value.get<uint64_t>();
  if (number < min || number > max) {
    refuse(key, fmt::format("is {}, but must be from {} to {}", number, min, max));
    return 0;
  }
  return number;
}

uint64_t JsonReader::number(const char* key, uint64_t min, uint64_t max) {
  const Json* value = require(key);
  return value == nullptr ? 0 : unsigned_of(*value, key, min, max);
}

uint64_t JsonReader::number_or(const char* key, uint64_t min, uint64_t max, uint64_t missing) {
  const Json* value = find(key);
  return value == nullptr ? missing : unsigned_of(*value, key, min, max);
}

bool JsonReader::boolean_or(const char* key, bool missing) {
  const Json* value = find(key);
  if (value == nullptr) return missing;
  if (!value->is_boolean()) {
    refuse(key, "must be true or false");
    return missing;
  }
  return value->get<bool>();
}

std::string JsonReader::text_or_empty(const char* key, size_t max_bytes) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const auto* text = value->get_ptr<const std::string*>();
  if (text == nullptr) {
    refuse(key, "must be a string");
  } else if (text->size() > max_bytes) {
    refuse(key, fmt::format("has {} bytes, at most {} are allowed", text->size(), max_bytes));
  } else if (!is_plain_text(*text)) {
    refuse(key, "must not hold control characters");
  } else {
    return *text;
  }
  return {};
}

std::string JsonReader::text(const char* key, size_t max_bytes) {
  if (require(key) == nullptr) return {};
  std::string text = text_or_empty(key, max_bytes);
  if (text.empty()) refuse(key, "must not be empty");
  return text;
}

std::string JsonReader::name(const char* key) {
  std::string text = this->text(key, kMaxTextBytes);
  if (ok() && !is_name(text))
    refuse(key, fmt::format("{} is not a name: use 1 to {} of the characters A-Z a-z 0-9 . _ -",
                            quote(text), kMaxNameBytes));
  return ok() ? text : std::string();
}

const Json* JsonReader::require_array(const char* key, size_t max) {
  const Json* value = require(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    refuse(key, "must be an array");
  } else if (value->size() > max) {
    refuse(key, fmt::format("has {} entries, at most {} are allowed", value->size(), max));
  } else {
    return value;
  }
  return nullptr;
}

void JsonReader::each(const char* key, size_t max, const std::function<void(JsonReader&)>& use) {
  const Json* array = require_array(key, max);
  if (array == nullptr) return;
  for (size_t i = 0; i < array->size() && ok(); ++i) {
    const Json& entry = (*array)[i];
    const std::string entry_path = fmt::format("{}[{}]", key, i);
    if (!entry.is_object()) return refuse(entry_path, "must be an object");
    JsonReader reader(entry, unknown_, path_ + entry_path + ".", failure_);
    use(reader);
    reader.refuse_unknown();
  }
}

void JsonReader::object(const char* key, const std::function<void(JsonReader&)>& use) {
  const Json* object = require(key);
  if (object == nullptr) return;
  if (!object->is_object()) return refuse(key, "must be an object");
  JsonReader reader(*object, unknown_, path_ + key + ".", failure_);
  use(reader);
  reader.refuse_unknown();
}

void JsonReader::each_number(const char* key, size_t max, uint64_t largest,
                             const std::function<void(uint64_t)>& use) {
  const Json* array = require_array(key, max);
  if (array == nullptr) return;
  for (size_t i = 0; i < array->size() && ok(); ++i) {
    const uint64_t number = unsigned_of((*array)[i], fmt::format("{}[{}]", key, i), 0, largest);
    if (ok()) use(number);
  }
}

const Json* JsonReader::find_object(const char* key, size_t max) {
  const Json* object = find(key);
  if (object == nullptr) return nullptr;
  if (!object->is_object()) {
    refuse(key, "must be an object");
    return nullptr;
  }
  if (object->size() > max) {
    refuse(key, fmt::format("has {} entries, at most {} are allowed", object->size(), max));
    return nullptr;
  }
  return object;
}

void JsonReader::each_text(const char* key, size_t max,
                           const std::function<void(const std::string&, const std::string&)>& use) {
  const Json* object = find_object(key, max);
  if (object == nullptr) return;
  for (const auto& [entry, value] : object->items()) {
    if (!value.is_string())
      return refuse(fmt::format("{}.{}", key, quote(entry)), "must be a string");
    use(entry, value.get_ref<const std::string&>());
    if (!ok()) return;
  }
}

void JsonReader::each_entry(const char* key, size_t max, uint64_t largest,
                            const std::function<void(const std::string&, uint64_t)>& use) {
  const Json* object = find_object(key, max);
  if (object == nullptr) return;
  for (const auto& [entry, value] : object->items()) {
    const auto* const number = value.get_ptr<const Json::number_unsigned_t*>();
    if (number == nullptr || *number > largest) {
      unsigned_of(value, fmt::format("{}.{}", key, quote(entry)), 0, largest);
    } else {
      use(entry, *number);
    }
    if (!ok()) return;
  }
}

void JsonReader::refuse_unknown() {
  if (unknown_ == UnknownFields::kIgnore) return;
  for (const auto& [key, value] : object_.items()) {
    if (taken_.find(key) == taken_.end()) {
      std::string plain = quote(key);
      return refuse(plain.substr(1, plain.size() - 2), "is unknown here: remove it");
    }
  }
}

Status JsonReader::finish() {
  refuse_unknown();
  if (!ok()) return tl::unexpected(**failure_);
  return {};
}

}  // namespace farpage::http

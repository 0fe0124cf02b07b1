// JsonReader: reads the fields of one JSON object and keeps the first error, so that a decode
// function is a plain list of its fields.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"

namespace farpage::http {

// Limits of number() when only the type limits the value.
inline constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
inline constexpr uint64_t kMaxU64 = std::numeric_limits<uint64_t>::max();

inline constexpr size_t kMaxJsonDepth = 16;
inline constexpr size_t kMaxNameBytes = 64;

// [A-Za-z0-9._-]{1,64}, and not only dots (names are parts of URLs).
bool is_name(std::string_view text);

// The field that a decode failure concerns; empty when it concerns the whole body.
std::string field_of(const Error& error);

enum class UnknownFields : bool { kRefuse, kIgnore };

// Parses a body that must be one JSON object; checks depth and duplicate keys.
Result<std::shared_ptr<const nlohmann::json>> parse_json_object(std::string_view body);

// Invariants:
//  1. After the first failure every getter returns zero or empty, and finish() the failure.
//  2. finish() of the outermost reader reports unknown fields; nested readers do so at their end.
class JsonReader {
 public:
  // `object` must outlive the reader.
  JsonReader(const nlohmann::json& object, UnknownFields unknown);

  bool has(std::string_view key);  // present, and not null
  // Integers written without sign, fraction or exponent, min..max.
  uint64_t number(const char* key, uint64_t min, uint64_t max);
  uint64_t number_or(const char* key, uint64_t min, uint64_t max, uint64_t missing);
  bool boolean_or(const char* key, bool missing);
  // UTF-8 without control characters, 1..max_bytes.
  std::string text(const char* key, size_t max_bytes);
  std::string text_or_empty(const char* key, size_t max_bytes);
  std::string name(const char* key);  // is_name()
  // A required array of 0..max objects.
  void each(const char* key, size_t max, const std::function<void(JsonReader&)>& use);
  // A required object.
  void object(const char* key, const std::function<void(JsonReader&)>& use);
  // A required array of 0..max unsigned integers up to `largest`.
  void each_number(const char* key, size_t max, uint64_t largest,
                   const std::function<void(uint64_t)>& use);
  // An optional object whose values are unsigned integers up to `largest`.
  void each_entry(const char* key, size_t max, uint64_t largest,
                  const std::function<void(const std::string& entry, uint64_t value)>& use);
  // An optional object whose values are strings.
  void each_text(
      const char* key, size_t max,
      const std::function<void(const std::string& entry, const std::string& value)>& use);

  // Marks a field that was already read as wrong.
  void refuse(std::string_view key, std::string why);
  bool ok() const { return !*failure_; }
  Status finish();

 private:
  using Failure = std::optional<Error>;
  JsonReader(const nlohmann::json& object, UnknownFields unknown, std::string path,
             std::shared_ptr<Failure> failure);
  const nlohmann::json* find(std::string_view key);
  const nlohmann::json* require(std::string_view key);
  const nlohmann::json* require_array(const char* key, size_t max);
  const nlohmann::json* find_object(const char* key, size_t max);  // null: missing, or refused
  uint64_t unsigned_of(const nlohmann::json& value, std::string_view key, uint64_t min,
                       uint64_t max);
  void refuse_unknown();

  const nlohmann::json& object_;
  const UnknownFields unknown_;
  const std::string path_;  // "" or "transports[0]."
  const std::shared_ptr<Failure> failure_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace farpage::http

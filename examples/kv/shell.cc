#include "kv/shell.h"

#include <charconv>
#include <sstream>
#include <string>

namespace kv {
namespace {

std::string put(Store& store, std::istream& words) {
  std::string key;
  std::string value;
  std::string time;
  if (!(words >> key >> value)) return "error: put KEY VALUE [TTL_MS]";
  std::optional<Milliseconds> time_to_live;
  if (words >> time) {
    int64_t milliseconds = 0;
    const char* end = time.data() + time.size();
    const auto [rest, error] = std::from_chars(time.data(), end, milliseconds);
    if (error != std::errc() || rest != end || milliseconds < 0)
      return "error: TTL_MS is a number of milliseconds";
    time_to_live = Milliseconds(milliseconds);
  }
  const PutResult result = store.put(key, std::as_bytes(std::span(value)), time_to_live);
  return (result == PutResult::kStored ? "" : "error: ") + std::string(to_string(result));
}

std::string get(const Store& store, std::istream& words) {
  std::string key;
  words >> key;
  const auto value = store.get(key);
  if (!value) return "none";
  return "value " + std::string(reinterpret_cast<const char*>(value->data()), value->size());
}

std::string remove(Store& store, std::istream& words) {
  std::string key;
  words >> key;
  return store.remove(key) ? "deleted" : "none";
}

}  // namespace

void run_shell(Store& store, std::istream& in, std::ostream& out) {
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string command;
    if (!(words >> command)) continue;
    if (command == "put") {
      out << put(store, words);
    } else if (command == "get") {
      out << get(store, words);
    } else if (command == "delete") {
      out << remove(store, words);
    } else if (command == "stats") {
      out << "keys " << store.size() << " value_bytes " << store.value_bytes();
    } else {
      out << "error: no command '" << command << "': put, get, delete, stats";
    }
    out << std::endl;
  }
}

}  // namespace kv

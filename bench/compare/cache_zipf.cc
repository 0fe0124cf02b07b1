// cache_zipf: a client of redis-server or memcached that requests Zipf-distributed keys.
//
//   cache_zipf redis|memcached SOCKET KEYS VALUE_BYTES SECONDS [SEED]
//
// Sets every key, then gets keys of Zipf-distributed rank (exponent 0.99) for SECONDS, then sets
// such keys for SECONDS, 16 commands in flight. Checks each returned value. Prints one JSON object;
// status 1 when a value is wrong.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/unix_socket.h"
#include "bench/touch_order.h"

namespace {

using farpage::SteadyClock;

constexpr size_t kInFlight = 16;

enum class Protocol : uint8_t { kRedis, kMemcached };

struct Settings {
  Protocol protocol = Protocol::kRedis;
  std::string socket_path;
  uint64_t keys = 0;
  size_t value_bytes = 0;
  farpage::Nanoseconds time{0};
  uint64_t seed = 1;
};

[[noreturn]] void give_up(const char* what) {
  std::perror(fmt::format("cache_zipf: {}", what).c_str());
  std::exit(2);
}

// Replies in the order of the commands. Threads: one.
class Connection {
 public:
  explicit Connection(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    const std::optional<sockaddr_un> address = farpage::unix_address(path);
    if (!address) {
      errno = ENAMETOOLONG;
      give_up("connect");
    }
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) !=
        0)
      give_up("connect");
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) give_up("send");
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // Without its CR LF. All views are valid until the next call.
  std::string_view line() {
    const std::string_view with_end = take(line_bytes());
    return with_end.substr(0, with_end.size() - 2);
  }
  // So many bytes, and CR LF.
  std::string_view value(size_t bytes) { return take(bytes + 2).substr(0, bytes); }

 private:
  size_t line_bytes() {
    for (;;) {
      const size_t end = std::string_view(buffer_).substr(begin_).find("\r\n");
      if (end != std::string_view::npos) return end + 2;
      receive();
    }
  }
  std::string_view take(size_t bytes) {
    while (buffer_.size() - begin_ < bytes) receive();
    begin_ += bytes;
    return std::string_view(buffer_).substr(begin_ - bytes, bytes);
  }
  void receive() {
    char piece[64 << 10];
    const ssize_t got = ::recv(socket_.get(), piece, sizeof piece, 0);
    if (got <= 0) give_up("recv");
    buffer_.erase(0, begin_);
    begin_ = 0;
    buffer_.append(piece, static_cast<size_t>(got));
  }

  const farpage::Fd socket_;
  std::string buffer_;
  size_t begin_ = 0;
};

// What is written to `request`, and how its reply is read. Threads: one.
void append_set(Protocol protocol, std::string_view key, std::string_view value,
                std::string& request) {
  if (protocol == Protocol::kRedis)
    fmt::format_to(std::back_inserter(request), "*3\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n{}\r\n",
                   key.size(), key, value.size(), value);
  else
    fmt::format_to(std::back_inserter(request), "set {} 0 0 {}\r\n{}\r\n", key, value.size(),
                   value);
}

bool is_stored(Protocol protocol, Connection& connection) {
  return connection.line() == (protocol == Protocol::kRedis ? "+OK" : "STORED");
}

void append_get(Protocol protocol, std::string_view key, std::string& request) {
  if (protocol == Protocol::kRedis)
    fmt::format_to(std::back_inserter(request), "*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", key.size(),
                   key);
  else
    fmt::format_to(std::back_inserter(request), "get {}\r\n", key);
}

// True if the reply is this value. redis: "$5", the value; memcached: "VALUE key:1 0 5", the value,
// "END", or only "END" when it has none.
bool is_value(Protocol protocol, std::string_view expected, Connection& connection) {
  const std::string_view head = connection.line();
  const size_t before = protocol == Protocol::kRedis ? head.find('$') : head.rfind(' ');
  if (before == std::string_view::npos) return false;
  size_t bytes = 0;
  const auto parsed = std::from_chars(head.data() + before + 1, head.data() + head.size(), bytes);
  if (parsed.ec != std::errc{}) return false;
  const bool same = connection.value(bytes) == expected;
  return protocol == Protocol::kRedis ? same : connection.line() == "END" && same;
}

// Threads: one.
class Load {
 public:
  explicit Load(const Settings& settings)
      : settings_(settings),
        connection_(settings.socket_path),
        order_(farpage::bench::Pattern::kZipf, {0, settings.keys}, settings.seed),
        versions_(settings.keys) {}

  void fill() {
    for (uint64_t key = 0; key < settings_.keys; key += kInFlight) {
      keys_.clear();
      for (uint64_t i = key; i < std::min(key + kInFlight, settings_.keys); ++i) keys_.push_back(i);
      set_all();
    }
  }
  double gets_per_s() {
    return rate([this] { get_all(); });
  }
  double sets_per_s() {
    return rate([this] { set_all(); });
  }
  uint64_t wrong() const { return wrong_; }

 private:
  template <typename Batch>
  double rate(Batch batch) {
    const farpage::Instant start = SteadyClock::read();
    uint64_t commands = 0;
    farpage::Nanoseconds taken{0};
    for (; taken < settings_.time; taken = SteadyClock::read() - start, commands += kInFlight) {
      keys_.clear();
      for (size_t i = 0; i < kInFlight; ++i) keys_.push_back(order_.next());
      batch();
    }
    return static_cast<double>(commands) * 1e9 / static_cast<double>(taken.count());
  }

  // Repeats the key and its version.
  void value_of(uint64_t key, std::string& value) const {
    const std::string word = fmt::format("{}.{}-", key, versions_[key]);
    value.clear();
    while (value.size() < settings_.value_bytes) value += word;
    value.resize(settings_.value_bytes);
  }
  void set_all() {
    request_.clear();
    for (const uint64_t key : keys_) {
      ++versions_[key];
      value_of(key, value_);
      append_set(settings_.protocol, name_of(key), value_, request_);
    }
    connection_.send(request_);
    for (size_t i = 0; i < keys_.size(); ++i)
      if (!is_stored(settings_.protocol, connection_)) ++wrong_;
  }
  void get_all() {
    request_.clear();
    for (const uint64_t key : keys_) append_get(settings_.protocol, name_of(key), request_);
    connection_.send(request_);
    for (const uint64_t key : keys_) {
      value_of(key, value_);
      if (!is_value(settings_.protocol, value_, connection_)) ++wrong_;
    }
  }
  static std::string name_of(uint64_t key) { return fmt::format("key:{}", key); }

  const Settings& settings_;
  Connection connection_;
  farpage::bench::TouchOrder order_;
  std::vector<uint32_t> versions_;  // of each key
  std::vector<uint64_t> keys_;      // of the commands in flight
  std::string request_, value_;
  uint64_t wrong_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view protocol = argc > 1 ? argv[1] : "";
  if (argc < 6 || (protocol != "redis" && protocol != "memcached")) {
    std::fputs(
        "usage: cache_zipf redis|memcached SOCKET KEYS VALUE_BYTES SECONDS [SEED]\n"
        "  cache_zipf redis /run/redis.sock 100000 1024 5\n",
        stderr);
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  const Settings settings{.protocol = protocol == "redis" ? Protocol::kRedis : Protocol::kMemcached,
                          .socket_path = argv[2],
                          .keys = number(3),
                          .value_bytes = number(4),
                          .time = std::chrono::seconds(number(5)),
                          .seed = argc > 6 ? number(6) : 1};
  if (settings.keys < 1 || settings.value_bytes < 1) {
    std::fputs("cache_zipf: KEYS and VALUE_BYTES: at least 1\n", stderr);
    return 2;
  }
  Load load(settings);
  load.fill();
  const double gets = load.gets_per_s();
  const double sets = load.sets_per_s();
  fmt::print("{{\"gets_per_s\": {:.0f}, \"sets_per_s\": {:.0f}, \"wrong\": {}}}\n", gets, sets,
             load.wrong());
  return load.wrong() == 0 ? 0 : 1;
}

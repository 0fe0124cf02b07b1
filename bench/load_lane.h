// LoadLane: one thread that sends the HTTP requests of many simulated hosts. Each host keeps its
// connection for some seconds, as nodes and pagers do (http/caller.h). A request in flight costs a
// record, and no thread.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "base/clock.h"

namespace farpage::bench {

struct LaneAnswer {
  int status = 0;  // 0: none came
  std::string body;
  std::string failure;  // why none came
  bool is_good() const { return status >= 200 && status < 300; }
};

// Threads: any for the constructor, the destructor and run(); the rest belongs to what run() runs,
// and to the calls that follow from it.
class LoadLane {
 public:
  using Done = std::function<void(const LaneAnswer&)>;

  explicit LoadLane(uint16_t port);  // of 127.0.0.1
  ~LoadLane();                       // requests without an answer are dropped
  LoadLane(const LoadLane&) = delete;
  LoadLane& operator=(const LoadLane&) = delete;

  // Runs `work` on the lane's thread, and returns after it.
  void run(const std::function<void()>& work);

  // `done` is called once, but not after drop_all(). On the connection that `host` has kept, or a
  // new one if that is in use.
  void call(uint32_t host, const char* method, std::string_view path, std::string_view body,
            Milliseconds timeout, Done done);
  size_t in_flight() const { return calls_.size(); }
  void drop_all();
  // Calls `tick` every `interval` until it returns false.
  void repeat(Milliseconds interval, std::function<bool()> tick);

 private:
  struct Call;
  struct Kept {
    boost::asio::ip::tcp::socket socket;
    Instant since;
  };
  std::optional<boost::asio::ip::tcp::socket> take_kept(uint32_t host);
  void advance(const std::shared_ptr<Call>& call);
  void receive(const std::shared_ptr<Call>& call);
  void end(const std::shared_ptr<Call>& call, LaneAnswer answer);
  void fail(const std::shared_ptr<Call>& call, std::string why);
  bool end_late_calls();

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const boost::asio::ip::tcp::endpoint server_;
  std::set<std::shared_ptr<Call>> calls_;
  std::unordered_map<uint32_t, Kept> kept_;  // by host
  std::thread thread_;
};

}  // namespace farpage::bench

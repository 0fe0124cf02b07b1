#include "coordinator/leader_caller.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "http/problem.h"

namespace farpage::coordinator {
namespace {

constexpr Milliseconds kBetweenRounds{100};
constexpr Milliseconds kShortestLimit{50};

Milliseconds left_until(Instant end) {
  return std::chrono::duration_cast<Milliseconds>(end - SteadyClock::read());
}

}  // namespace

Result<std::unique_ptr<LeaderCaller>> LeaderCaller::create(const std::string& urls,
                                                           const std::string& token) {
  auto list = http::parse_urls(urls);
  if (!list) return fail_with("coordinator", list.error());
  std::vector<http::Caller> coordinators;
  coordinators.reserve(list->size());
  for (http::Url& url : *list)
    coordinators.emplace_back(std::move(url), token, http::Connections::kKept);
  return std::unique_ptr<LeaderCaller>(new LeaderCaller(std::move(coordinators)));
}

size_t LeaderCaller::named(const std::string& url, size_t otherwise) const {
  const auto parsed = http::parse_url(url);
  if (!parsed) return otherwise;
  for (size_t i = 0; i < coordinators_.size(); ++i)
    if (coordinators_[i].server() == *parsed) return i;
  return otherwise;
}

Result<std::string> LeaderCaller::call(const char* method, const std::string& path,
                                       const std::string& body, Milliseconds timeout) const {
  const size_t count = coordinators_.size();
  const Instant end = SteadyClock::read() + timeout;
  // One machine that is off must leave time for the others.
  const Milliseconds to_connect = timeout / static_cast<int64_t>(count);
  size_t index = latest_.load(std::memory_order_relaxed);
  for (size_t asked = 1;; ++asked) {
    const Milliseconds left = count == 1 ? timeout : std::max(left_until(end), kShortestLimit);
    auto answer =
        coordinators_[index].exchange(method, path, body, {std::min(to_connect, left), left});
    const auto leader = answer && answer->status == 503 ? http::leader_of_problem(answer->body)
                                                        : std::optional<std::string>();
    const bool is_other =
        answer ? leader.has_value() : answer.error().code == ErrorCode::kUnavailable;
    const bool goes_on = is_other && count > 1 && left_until(end) > kBetweenRounds;
    if (!goes_on) {
      // One that did not answer may be stopped: the next call asks another one first.
      latest_.store(answer && !is_other ? index : after(index), std::memory_order_relaxed);
      if (!answer) return tl::unexpected(answer.error());
      return http::body_of(std::move(*answer));
    }
    const size_t next = leader ? named(*leader, after(index)) : after(index);
    index = next == index ? after(index) : next;
    if (asked % count == 0) std::this_thread::sleep_for(kBetweenRounds);
  }
}

}  // namespace farpage::coordinator

// Descriptors: eventfds and epoll sets of the simulation. The real ones would cost most of the time
// of a run.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace farpage::simulation {

// As the kernel's, but that nothing ever blocks: the caller waits (libc.cc). A number is not used
// again. Threads: one.
class Descriptors {
 public:
  // No number that the kernel gives.
  static bool owns(int descriptor) { return descriptor >= kFirst; }

  int make_event(uint64_t count);
  int make_set();
  void close(int descriptor) { at(descriptor).open = false; }

  // An eventfd's read(2) and write(2). nullopt: EAGAIN.
  std::optional<uint64_t> read(int descriptor);
  void write(int descriptor, uint64_t count);
  // epoll_ctl(2) and epoll_wait(2), level-triggered, without a wait.
  void control(int set, int operation, int member, const epoll_event* event);
  int ready_members(int set, epoll_event* events, int most) const;
  // poll(2) without a wait.
  int poll(std::span<pollfd> polls) const;
  bool is_ready(int descriptor) const;
  // Grows whenever a descriptor may have become ready.
  uint64_t changes() const { return changes_; }

 private:
  static constexpr int kFirst = 1 << 24;
  struct Member {
    int descriptor;
    epoll_event event;
  };
  struct Entry {
    bool open = true;
    uint64_t count = 0;           // of an eventfd
    std::vector<Member> members;  // of a set
  };
  Entry& at(int descriptor) { return entries_.at(static_cast<size_t>(descriptor - kFirst)); }
  const Entry& at(int descriptor) const {
    return entries_.at(static_cast<size_t>(descriptor - kFirst));
  }
  int add(Entry entry);

  std::vector<Entry> entries_;
  uint64_t changes_ = 0;
};

}  // namespace farpage::simulation

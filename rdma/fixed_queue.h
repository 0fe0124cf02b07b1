// FixedQueue: a FIFO in memory that is allocated once, for the queues of a channel: what may be
// queued is limited when the channel is made, and posting and polling must not allocate.
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"

namespace farpage::rdma {

// Threads: one. The items must be default constructible; a popped one is not destroyed before its
// place is used again.
template <typename T>
class FixedQueue {
 public:
  explicit FixedQueue(size_t capacity) : items_(capacity) {}

  size_t size() const { return size_; }
  size_t capacity() const { return items_.size(); }
  bool empty() const { return size_ == 0; }

  // From the front; below size(), unchecked.
  T& operator[](size_t index) { return items_[wrap(head_ + index)]; }
  T& front() { return items_[head_]; }

  // The caller leaves room: a full queue is a bug.
  void push_back(const T& item) {
    FARPAGE_CHECK(size_ < items_.size(), "a queue of %zu is full", items_.size());
    items_[wrap(head_ + size_)] = item;
    ++size_;
  }

  void pop_front() {
    FARPAGE_CHECK(size_ > 0, "pop from an empty queue of %zu", items_.size());
    head_ = wrap(head_ + 1);
    --size_;
  }

 private:
  size_t wrap(size_t index) const { return index >= items_.size() ? index - items_.size() : index; }

  std::vector<T> items_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace farpage::rdma

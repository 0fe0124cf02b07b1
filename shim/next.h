// The next definition of a function after the shim's, for wrappers of another library's functions.
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace farpage::shim {

// Threads: any. The lookup is done once, at the first call.
template <typename Function>
class Next {
 public:
  explicit constexpr Next(const char* name) : name_(name) {}

  // nullptr: there is none.
  Function* get() {
    void* found = found_.load(std::memory_order_acquire);
    if (found == nullptr) {
      found = dlsym(RTLD_NEXT, name_);
      found_.store(found, std::memory_order_release);
    }
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* const name_;
  std::atomic<void*> found_{nullptr};
};

}  // namespace farpage::shim

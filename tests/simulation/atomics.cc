// What the compiler calls for each atomic operation with -fsanitize=thread, with which the
// simulation compiles the pager a second time. It is not linked with ThreadSanitizer: before an
// atomic operation, another fiber may continue; all other calls do nothing. So the product has no
// trace of the simulation.
#include "atomics.h"

#include <cstddef>
#include <cstring>

#include "scheduler.h"

namespace {

using farpage::simulation::Scheduler;

void step() {
  if (Scheduler* scheduler = Scheduler::running()) scheduler->step_atomic();
}

const void* last_loaded = nullptr;
farpage::simulation::WordObserver* observer = nullptr;

// One fiber runs at a time, and the processor's atomic operations are faster than a check of that.
template <typename Value>
bool exchange_if(volatile Value* at, Value* expected, Value wanted) {
  step();
  if (*at != *expected) {
    *expected = *at;
    return false;
  }
  const Value before = *at;
  *at = wanted;
  if constexpr (sizeof(Value) == sizeof(uint32_t)) {
    if (observer != nullptr) observer->changed(const_cast<const Value*>(at), before, wanted);
  }
  return true;
}

template <typename Value, typename Change>
Value change(volatile Value* at, Change&& by) {
  step();
  const Value before = *at;
  *at = static_cast<Value>(by(before));
  return before;
}

}  // namespace

namespace farpage::simulation {

const void* last_loaded_word() {
  return last_loaded;
}

void observe_words(WordObserver* by) {
  observer = by;
}

}  // namespace farpage::simulation

// The names are those of the compiler.
// NOLINTBEGIN(bugprone-reserved-identifier,bugprone-macro-parentheses)
#define FARPAGE_ATOMICS(bits, Value)                                                     \
  Value __tsan_atomic##bits##_load(const volatile Value* at, int) {                      \
    step();                                                                              \
    if (bits == 32) last_loaded = const_cast<const Value*>(at);                          \
    return *at;                                                                          \
  }                                                                                      \
  void __tsan_atomic##bits##_store(volatile Value* at, Value value, int) {               \
    step();                                                                              \
    *at = value;                                                                         \
  }                                                                                      \
  Value __tsan_atomic##bits##_exchange(volatile Value* at, Value value, int) {           \
    return change(at, [value](Value) { return value; });                                 \
  }                                                                                      \
  Value __tsan_atomic##bits##_fetch_add(volatile Value* at, Value value, int) {          \
    return change(at, [value](Value now) { return now + value; });                       \
  }                                                                                      \
  Value __tsan_atomic##bits##_fetch_sub(volatile Value* at, Value value, int) {          \
    return change(at, [value](Value now) { return now - value; });                       \
  }                                                                                      \
  Value __tsan_atomic##bits##_fetch_and(volatile Value* at, Value value, int) {          \
    return change(at, [value](Value now) { return now & value; });                       \
  }                                                                                      \
  Value __tsan_atomic##bits##_fetch_or(volatile Value* at, Value value, int) {           \
    return change(at, [value](Value now) { return now | value; });                       \
  }                                                                                      \
  Value __tsan_atomic##bits##_fetch_xor(volatile Value* at, Value value, int) {          \
    return change(at, [value](Value now) { return now ^ value; });                       \
  }                                                                                      \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile Value* at, Value* expected, \
                                                    Value wanted, int, int) {            \
    return exchange_if(at, expected, wanted) ? 1 : 0;                                    \
  }                                                                                      \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile Value* at, Value* expected,   \
                                                  Value wanted, int, int) {              \
    return exchange_if(at, expected, wanted) ? 1 : 0;                                    \
  }                                                                                      \
  Value __tsan_atomic##bits##_compare_exchange_val(volatile Value* at, Value expected,   \
                                                   Value wanted, int, int) {             \
    (void)exchange_if(at, &expected, wanted);                                            \
    return expected;                                                                     \
  }

#define FARPAGE_ACCESSES(bytes)                \
  void __tsan_read##bytes(void*) {}            \
  void __tsan_write##bytes(void*) {}           \
  void __tsan_unaligned_read##bytes(void*) {}  \
  void __tsan_unaligned_write##bytes(void*) {} \
  void __tsan_volatile_read##bytes(void*) {}   \
  void __tsan_volatile_write##bytes(void*) {}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-declarations"
extern "C" {

FARPAGE_ATOMICS(8, uint8_t)
FARPAGE_ATOMICS(16, uint16_t)
FARPAGE_ATOMICS(32, uint32_t)
FARPAGE_ATOMICS(64, uint64_t)

void __tsan_atomic_thread_fence(int) {
  step();
}
void __tsan_atomic_signal_fence(int) {}

FARPAGE_ACCESSES(1)
FARPAGE_ACCESSES(2)
FARPAGE_ACCESSES(4)
FARPAGE_ACCESSES(8)
FARPAGE_ACCESSES(16)

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void*, size_t) {}
void __tsan_write_range(void*, size_t) {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void**, void*) {}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  return std::memset(to, value, bytes);
}

}  // extern "C"
#pragma GCC diagnostic pop
// NOLINTEND(bugprone-reserved-identifier,bugprone-macro-parentheses)

// Scenarios: what the test's target program does, one function each, chosen by its first argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/require.h"

namespace farpage::test {

inline constexpr size_t kPageSize = 4096;
inline constexpr size_t kMiB = 1 << 20;

using Scenario = int (*)(const char* argument);

unsigned char* map_memory(size_t bytes);
// Page i of the range begins with seed + i.
void fill(unsigned char* memory, size_t bytes, uint32_t seed);
bool is_filled(const unsigned char* memory, size_t bytes, uint32_t seed);
bool is_zero(const unsigned char* memory, size_t bytes);
// Whether the kernel can read a byte there; raises no signal.
bool is_readable(const void* memory);
// Prints "word address bytes" for the test, and waits for its line.
void tell(const char* word, const void* memory, size_t bytes);
void tell_and_wait(const char* word, const void* memory, size_t bytes);

// target_memory.cc
int run_places(const char*);
int run_unmap(const char*);
int run_unmap_across_the_end(const char*);
int run_dontneed(const char*);
int run_advice(const char*);
int run_remap(const char*);
int run_remap_refused(const char*);
int run_lock(const char*);
int run_fixed(const char*);
int run_full_window(const char*);
int run_drop(const char*);
int run_poison(const char*);
int run_pager_lost(const char*);
int run_stress(const char* seed);

// target_hints.cc
int run_casual_hints(const char*);
int run_needed_hints(const char*);

// target_processes.cc
int run_exit_status(const char* status);
int run_fork(const char*);
int run_fork_refused(const char*);
int run_bare_fork(const char*);
int run_exec(const char*);
int run_spawn(const char*);
int run_close_all(const char*);
int run_close_output(const char*);
int run_main_thread_exit(const char*);
int run_threads_fork(const char*);
int run_terminal(const char*);
int run_daemon(const char*);
int run_old_kernel(const char* scenario);

}  // namespace farpage::test

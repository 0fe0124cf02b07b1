// System resources held by this process, to detect leaks.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "rdma/memory_host.h"

namespace farpage::rdma {

inline size_t open_descriptors() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

inline size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t size = 0;
  size_t resident = 0;
  statm >> size >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// The sanitizers keep freed memory for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kResidentBytesTell = false;
#else
inline constexpr bool kResidentBytesTell = true;
#endif

inline void wait_for_peers(const MemoryHost& host, uint64_t peers) {
  while (host.counters().peers != peers) std::this_thread::yield();
}

}  // namespace farpage::rdma

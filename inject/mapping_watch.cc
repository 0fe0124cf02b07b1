#include "inject/mapping_watch.h"

#include <linux/perf_event.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/strong.h"

namespace farpage::inject {
namespace {

constexpr size_t kRingPages = 16;  // a power of two: some 600 announcements
constexpr uint64_t kRingBytes = kRingPages * kPageBytes;

Result<Fd> open_event(int cpu) {
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_DUMMY;
  attributes.mmap = 1;  // of code; mmap_data: the others
  attributes.mmap_data = 1;
  attributes.exclude_kernel = 1;
  attributes.watermark = 1;
  attributes.wakeup_watermark = 1;  // each announcement wakes
  return Fd::from_call(static_cast<int>(::syscall(SYS_perf_event_open, &attributes, -1, cpu, -1,
                                                  PERF_FLAG_FD_CLOEXEC)),
                       "perf_event_open");
}

// The bytes at an offset that wraps around.
template <typename T>
T value_at(const std::byte* data, uint64_t offset) {
  T value{};
  for (size_t i = 0; i < sizeof(T); ++i)
    std::memcpy(reinterpret_cast<std::byte*>(&value) + i, data + (offset + i) % kRingBytes, 1);
  return value;
}

}  // namespace

MappingWatch::MappingWatch(const Clock& clock, bool announced) : clock_(clock) {
  if (!announced) return;
  if (const Status opened = open_rings(); !opened) {
    rings_.clear();
    epoll_.reset();
    log::info("inject: new_mappings_not_announced reason=\"{}\" scan_interval_s={}",
              opened.error().message(), std::chrono::duration_cast<Seconds>(kScanInterval).count());
  }
}

Status MappingWatch::open_rings() {
  FARPAGE_TRY(epoll, Fd::from_call(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  epoll_ = std::move(epoll);
  const long cpus = ::sysconf(_SC_NPROCESSORS_CONF);
  for (int cpu = 0; cpu < cpus; ++cpu) {
    Result<Fd> event = open_event(cpu);
    if (!event && event.error().sys_errno == ENODEV) continue;  // offline
    if (!event) return tl::unexpected(std::move(event).error());
    FARPAGE_TRY(memory, Mapping::shared(event->get(), kPageBytes + kRingBytes));
    epoll_event wanted{.events = EPOLLIN, .data = {}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event->get(), &wanted) != 0)
      return fail_errno("epoll_ctl of a perf event");
    rings_.push_back({std::move(*event), std::move(memory)});
  }
  return {};
}

void MappingWatch::watch(pid_t pid) {
  watched_[pid] = {.changed = true, .last = clock_.now()};
}

void MappingWatch::forget(pid_t pid) {
  watched_.erase(pid);
}

bool MappingWatch::may_have_changed(pid_t pid) {
  drain();
  const auto found = watched_.find(pid);
  if (found == watched_.end()) return false;
  Watched& watched = found->second;
  const Nanoseconds interval = announces() ? kSlowScanInterval : kScanInterval;
  if (clock_.now() - watched.last >= interval) watched.changed = true;
  if (!watched.changed) return false;
  watched = {.changed = false, .last = clock_.now()};
  return true;
}

void MappingWatch::drain() {
  for (Ring& ring : rings_) drain(ring);
}

// perf_event_open(2), "MMAP layout": the kernel writes up to data_head, we have read up to
// data_tail.
void MappingWatch::drain(Ring& ring) {
  auto& page = *reinterpret_cast<perf_event_mmap_page*>(ring.memory.data());
  const std::byte* data = ring.memory.data() + kPageBytes;
  const uint64_t head = std::atomic_ref<__u64>(page.data_head).load(std::memory_order_acquire);
  uint64_t at = page.data_tail;
  while (at < head) {
    const auto header = value_at<perf_event_header>(data, at);
    if (header.size < sizeof(header)) break;
    if (header.type == PERF_RECORD_MMAP) {
      const auto pid = static_cast<pid_t>(value_at<uint32_t>(data, at + sizeof(header)));
      if (const auto found = watched_.find(pid); found != watched_.end())
        found->second.changed = true;
    } else if (header.type == PERF_RECORD_LOST) {
      for (auto& [pid, watched] : watched_) watched.changed = true;
    }
    at += header.size;
  }
  std::atomic_ref<__u64>(page.data_tail).store(head, std::memory_order_release);
}

}  // namespace farpage::inject

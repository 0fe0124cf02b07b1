// farpage: memory of other machines inside your program.
//
// A Region is a range of addresses of which at most `local_bytes` are in this host's memory. The
// rest is on memory nodes and is fetched, page by page, when it is touched. Pages are 4 KiB. Memory
// that was never written reads as zeros and costs nothing.
//
// If no replica delivers a page within the deadline, the touch ends in SIGBUS, with the address in
// si_addr and the reason in the log. It never reads zeros and never hangs.
//
// Documentation with an example: docs/library.md. There is no stable ABI yet: build the program
// and the library of one version with one compiler.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <variant>

#define FARPAGE_EXPORT __attribute__((visibility("default")))

namespace farpage {

// Only what a caller may need to distinguish; the message has the details.
enum class RegionErrorCode : uint8_t {
  kInvalid,      // an argument is wrong: the message names it and the fix
  kNotFound,     // no such object
  kConflict,     // wrong state for the call
  kUnavailable,  // the coordinator or a memory node is unreachable; a retry may succeed
  kExhausted,    // a limit or a capacity is reached
  kDenied,       // privilege or credentials are missing
  kUnsupported,  // this kernel, device or build cannot do it
  kTimedOut,     // the deadline passed
  kIo,           // a system call failed
};

struct RegionError {
  RegionErrorCode code = RegionErrorCode::kIo;
  std::string message;  // a sentence for the user
};

// A value, or the error. No function of this library throws, except
// RegionMemory::allocate, as the standard requires.
template <typename T>
class [[nodiscard]] RegionResult {
 public:
  RegionResult(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  RegionResult(RegionError error) : content_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  // REQUIRES: has_value().
  T& operator*() noexcept { return *std::get_if<0>(&content_); }
  const T& operator*() const noexcept { return *std::get_if<0>(&content_); }
  T* operator->() noexcept { return std::get_if<0>(&content_); }
  const T* operator->() const noexcept { return std::get_if<0>(&content_); }
  // REQUIRES: !has_value().
  const RegionError& error() const noexcept { return *std::get_if<1>(&content_); }

 private:
  std::variant<T, RegionError> content_;
};

// Success, or the error.
template <>
class [[nodiscard]] RegionResult<void> {
 public:
  RegionResult() = default;
  RegionResult(RegionError error) : error_(std::move(error)), failed_(true) {}

  bool has_value() const noexcept { return !failed_; }
  explicit operator bool() const noexcept { return !failed_; }
  // REQUIRES: !has_value().
  const RegionError& error() const noexcept { return error_; }

 private:
  RegionError error_;
  bool failed_ = false;
};
using RegionStatus = RegionResult<void>;

struct RegionOptions {
  std::string name = "region";  // shown by `farpage status`
  uint64_t bytes = 0;           // of the region; rounded up to whole pages
  // How much of it may be in local memory; at least 1 MiB. Region::set_local() changes it.
  uint64_t local_bytes = uint64_t{64} << 20;

  // The socket of the `farpage pager` of this host, which then serves the region: local_bytes is a
  // part of its budget, and it has a coordinator and options of its own, so those below are not
  // used. Its engine may be killed or replaced: the program waits some milliseconds. When the pager
  // is gone for good, the kernel kills this process. Empty: the pager is in this process.
  std::string pager;

  // http://host:port of the coordinator (of several all, with commas between), and its bearer token
  // if it requires one. Empty: a coordinator and `replicas` memory nodes inside this process. That
  // saves no memory; it is for tests and first steps.
  std::string coordinator;
  std::string token;
  // With a coordinator: "auto" (verbs, shm, tcp), or an ordered list such as "tcp,shm".
  std::string transport = "auto";
  uint32_t replicas = 1;                     // copies of each page on distinct nodes, 1 to 3
  uint64_t slab_bytes = uint64_t{64} << 20;  // unit of borrowing; as on the nodes

  uint32_t workers = 0;  // fault threads; 0: one for each CPU
  // No fault threads: the faulting thread resolves each fault in a SIGBUS handler of the library,
  // without a thread switch. Needs no privilege, and is faster, above all over shm
  // (docs/performance.md). It is not transparent:
  //   system calls on remote pages fail with EFAULT (ENOMEM for mlock): prefault() first;
  //   a thread must not block SIGBUS;
  //   a SIGBUS handler that is installed later must call the previous one for foreign signals.
  // A handler installed before is called for every SIGBUS that is not a fault of a region, and for
  // lost pages.
  bool resolve_in_handler = false;
  // The size of a prefetch batch, for remote or never used pages: at most 120 pages, and 1/128 of
  // local_bytes. 0: off.
  uint32_t prefetch_pages = 64;
  // Compressed copies (lz4) of pages that leave, which answer faults in place of READs: their share
  // of local_bytes, "1%" to "50%"; "auto": up to 30 % where it helps; "off".
  std::string compressed = "off";
  std::chrono::milliseconds fault_deadline{5000};     // then the touch ends in SIGBUS
  std::chrono::milliseconds operation_timeout{1000};  // of one READ or WRITE, which is then retried
};

// Counted since the creation of the region, or since the pager of the host has replaced its engine;
// the first group is the present state. In pages unless the name says otherwise.
struct RegionStats {
  uint64_t resident_bytes = 0;
  uint64_t local_bytes = 0;  // the budget
  uint64_t away_bytes = 0;   // only on memory nodes
  uint64_t leased_slabs = 0;

  uint64_t faults_remote = 0;      // answered by a READ
  uint64_t faults_compressed = 0;  // answered from a compressed copy
  uint64_t faults_zero = 0;        // first touch of a page
  uint64_t zeros_ahead = 0;        // zero pages installed before their first touch
  uint64_t faults_write = 0;       // first write to an unmodified page
  uint64_t faults_failed = 0;      // ended in SIGBUS
  uint64_t prefetched = 0;
  uint64_t evicted_written = 0;  // written back to every replica, then dropped
  uint64_t evicted_clean = 0;    // dropped: the nodes have it
  uint64_t evicted_zero = 0;     // all zeros: dropped without a WRITE
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t compressed_stored = 0;   // compressed copies of pages that have left
  uint64_t compressed_hits = 0;     // used for a fault or a prefetch
  uint64_t compressed_dropped = 0;  // gone without use
  uint64_t compressed_bytes = 0;    // of those that are here now
  uint64_t retries = 0;
  uint64_t replicas_lost = 0;
  uint64_t fault_p50_ns = 0;  // of remote faults: message read to thread woken
  uint64_t fault_p99_ns = 0;
  std::string transports;  // that connected: "shm,tcp"
};

// Threads: any thread may read and write the memory, and synchronizes its accesses as usual. Any
// thread may make the calls on ranges and stats() at any time. create(), moving and destroying: one
// thread, while no other touches the memory or is inside a call.
//
// In a child of fork() the range is not mapped (SIGSEGV): the pager lives in the parent. With
// RegionOptions::pager, calls fail there with kConflict, and destruction leaves the parent's region
// alone; otherwise neither is allowed.
class FARPAGE_EXPORT Region {
 public:
  // Borrows the first slab, waiting up to 5 s for enough memory nodes. kInvalid names the option;
  // kDenied says how to get userfaultfd; kUnavailable: coordinator or nodes; kExhausted: no slab.
  static RegionResult<Region> create(const RegionOptions& options);

  Region(Region&&) noexcept;
  Region& operator=(Region&&) noexcept;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  // Unmaps the range and returns the slabs. The content is lost.
  ~Region();

  // The memory, page-aligned. The same for the life of the region; moving the handle keeps it.
  std::span<std::byte> bytes() const noexcept;

  // Ranges below must lie inside bytes() (kInvalid otherwise).

  // Discards the content of the range: it reads as zeros from now on, uses no memory and is not
  // sent anywhere. Whole pages only: partial pages at both ends keep their content.
  RegionStatus discard(std::span<const std::byte> range);

  // Fetches every page of the range and waits for them. For writing: the pages are also writable,
  // so that the first write does not fault. kUnavailable: a page is lost. kExhausted: the range is
  // larger than the budget. The pages may be evicted again at any time.
  enum class Prefault : uint8_t { kForReading, kForWriting };
  RegionStatus prefault(std::span<const std::byte> range, Prefault purpose) const;

  // Hints: correctness never depends on them. They are executed soon, while there is room; excess
  // hints are dropped.
  // The access pattern of the range, which controls prefetch. In units of 16 pages.
  enum class Access : uint8_t { kNormal, kSequential, kRandom };
  RegionStatus expect(std::span<const std::byte> range, Access access);
  // The range is needed soon: its pages are fetched while the caller continues (with
  // resolve_in_handler: before this returns).
  RegionStatus will_need(std::span<const std::byte> range);
  // The range is not needed soon: its pages are evicted whatever their age; pages without a slab
  // when they get one. If very many hints are pending, some may be dropped.
  RegionStatus evict(std::span<const std::byte> range);

  // Fetches the range, writable, and keeps it resident until unpin(); pins of a page are not
  // counted. kExhausted: more than 85 % of the budget would be pinned; nothing was pinned.
  // kUnavailable: a page is lost; no further page was pinned.
  RegionStatus pin(std::span<const std::byte> range);
  RegionStatus unpin(std::span<const std::byte> range);

  // Sets a new RegionOptions::local_bytes; the limit for pins changes with it. Returns at once:
  // excess pages are evicted in the background, and meanwhile faults get half of the freed room.
  // kInvalid: less than 1 MiB. kConflict: more is pinned than the new limit; nothing has
  // changed.
  RegionStatus set_local(uint64_t local_bytes);

  RegionStats stats() const;

 private:
  friend class RegionMemory;
  struct Parts;
  explicit Region(std::unique_ptr<Parts> parts) noexcept;
  std::unique_ptr<Parts> parts_;
};

struct RegionMemoryStats {
  uint64_t allocated_bytes = 0;  // as requested
  uint64_t reserved_bytes = 0;   // taken from the region for them: rounding, and free small blocks
  uint64_t region_bytes = 0;
  uint64_t allocations = 0;  // that exist now
};

// Allocates from a region: for std::pmr containers, or directly.
//
// All metadata is in ordinary local memory, so that neither allocate nor deallocate touches a far
// page. Up to 16 KiB come from size classes (at most 25 % larger than requested, at least 16
// bytes), in chunks of 64 KiB that hold one class; larger ones are whole pages, best fit. Empty
// pages are discarded: freed data is not written to a node.
//
// Threads: any. The region outlives it, and nothing else allocates the same region's memory.
class FARPAGE_EXPORT RegionMemory final : public std::pmr::memory_resource {
 public:
  explicit RegionMemory(Region& region);
  ~RegionMemory() override;
  RegionMemory(const RegionMemory&) = delete;
  RegionMemory& operator=(const RegionMemory&) = delete;

  // nullptr where allocate() throws: no room, or an alignment above a page.
  void* try_allocate(size_t bytes, size_t alignment = alignof(std::max_align_t)) noexcept;
  RegionMemoryStats stats() const;

 private:
  void* do_allocate(size_t bytes,
                    size_t alignment) override;  // std::bad_alloc, as the standard says
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace farpage

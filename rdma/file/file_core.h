// FileCore: what the channels to one file share.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "rdma/file/file_places.h"
#include "rdma/log_limiter.h"

namespace farpage::rdma::file {

class FileIo;

// Of one channel. A channel announces each operation and then looks whether it is fenced; a newer
// one of its session fences it and then looks at the operations.
struct SessionGate {
  std::atomic<uint32_t> operations{0};  // that the kernel has not completed
  std::atomic<bool> fenced{false};
};

// Threads: any.
class FileCore {
 public:
  // `file`: opened with O_DIRECT; no other process has this open file description.
  FileCore(Fd file, uint64_t slab_bytes, uint32_t places, const RemoteKey& key);
  ~FileCore();

  int descriptor() const { return file_.get(); }
  FilePlaces& places() { return places_; }
  LogLimiter& log() { return log_; }
  // Of a whole place. False: it is logged why not. Waits for the disk.
  bool write_zeros(uint64_t offset);

  // A new gate for the session, when no operation of the former channel, and none of a dead
  // process, is under way any more. kTimedOut: they were until `deadline`.
  Result<std::shared_ptr<SessionGate>> enter(uint64_t session, Instant deadline);
  // Of a channel that has broken or ended: kept while the kernel has not completed all of it.
  void bury(std::unique_ptr<FileIo> io);

 private:
  bool try_lock();
  void take_buried() FARPAGE_REQUIRES(mutex_);

  const Fd file_;
  FilePlaces places_;
  LogLimiter log_;
  Mutex mutex_;
  bool locked_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<SessionGate>> gates_ FARPAGE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<FileIo>> buried_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::rdma::file

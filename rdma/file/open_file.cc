#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <thread>

#include "base/host.h"
#include "base/log.h"
#include "base/size.h"
#include "rdma/adaptive_wait.h"
#include "rdma/file/file.h"
#include "rdma/file/file_channel.h"
#include "rdma/file/nameless_file.h"
#include "rdma/limits.h"

namespace farpage::rdma {
namespace file {
namespace {

constexpr Milliseconds kLook{1};       // at operations that are to end
constexpr Milliseconds kPatience{50};  // with them, in one attempt to connect

std::string own_path(int descriptor) {
  return fmt::format("/proc/self/fd/{}", descriptor);
}

// An open file description of its own.
Result<Fd> open_again(int descriptor) {
  return Fd::from_call(::open(own_path(descriptor).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC),
                       "opening the spill file again");
}

RemoteKey new_key() {
  return {random_u32(), {random_u64(), random_u64()}};
}

class FileTransport final : public Transport {
 public:
  explicit FileTransport(std::shared_ptr<FileCore> core) : core_(std::move(core)) {}

  TransportKind kind() const override { return TransportKind::kFile; }

  Result<std::unique_ptr<Channel>> connect(const TransportAddress& address,
                                           const ChannelOptions& options,
                                           const QueuePairExchange& /*exchange*/) override {
    if (address.kind != TransportKind::kFile)
      return fail(ErrorCode::kUnsupported, "the address is not that of a file");
    FARPAGE_TRY_VOID(check_buffer(options));
    ChannelLimits limits = limits_for(options);
    const uint64_t memory =
        std::min<uint64_t>(kMaxOperationBytes, options.buffer.size() / kPageBytes * kPageBytes);
    if (memory == 0) return fail(ErrorCode::kInvalid, "buffer must have a page");
    limits.operation_bytes = static_cast<uint32_t>(memory);
    // The connector has others to connect, and comes again.
    const Nanoseconds patience = std::min<Nanoseconds>(options.connect_timeout, kPatience);
    FARPAGE_TRY(gate, core_->enter(options.session, deadline_after(SteadyClock::read(), patience)));
    FARPAGE_TRY(io, FileIo::create(*core_, std::move(gate), limits.operations_in_flight, memory));
    return std::make_unique<FileChannel>(core_, std::move(io), options, limits);
  }

 private:
  const std::shared_ptr<FileCore> core_;
};

class RealFile final : public OpenFile {
 public:
  explicit RealFile(std::shared_ptr<FileCore> core) : core_(std::move(core)) {}

  uint64_t slab_bytes() const override { return core_->places().slab_bytes(); }
  uint32_t places() const override { return core_->places().places(); }
  uint32_t free_places() const override { return core_->places().free_places(); }
  std::optional<Place> take() override {
    return core_->places().take([this](uint64_t offset) { return core_->write_zeros(offset); });
  }
  bool take_again(RemoteAddress address, Generation generation) override {
    return core_->places().take_again(address, generation);
  }
  void give_back(RemoteAddress address, Generation generation) override {
    core_->places().give_back(address, generation);
  }
  Result<FileHeirloom> leave() const override {
    FARPAGE_TRY(descriptor, open_again(core_->descriptor()));
    return FileHeirloom{descriptor.release(), core_->places().key()};
  }
  std::unique_ptr<Transport> transport() override { return std::make_unique<FileTransport>(core_); }

 private:
  const std::shared_ptr<FileCore> core_;
};

Result<uint32_t> places_of(const FileOptions& options) {
  const uint64_t places = options.bytes / options.slab_bytes;
  if (places == 0)
    return fail(ErrorCode::kInvalid,
                fmt::format("{} is less than one slab of {}", format_size(options.bytes),
                            format_size(options.slab_bytes)));
  if (places > UINT32_MAX)
    return fail(ErrorCode::kInvalid, format_size(options.bytes) + " is too large");
  return static_cast<uint32_t>(places);
}

Status check_io_uring() {
  tcp::Ring ring;
  return ring.open(1);
}

}  // namespace

FileCore::FileCore(Fd file, uint64_t slab_bytes, uint32_t places, const RemoteKey& key)
    : file_(std::move(file)), places_(slab_bytes, places, key) {}

FileCore::~FileCore() = default;

bool FileCore::write_zeros(uint64_t offset) {
  const Status written = file::write_zeros(file_.get(), offset, places_.slab_bytes());
  if (!written)
    log::error("file: write_failed offset={} bytes={} reason=\"{}\"", offset, places_.slab_bytes(),
               written.error().message());
  return written.has_value();
}

bool FileCore::try_lock() {
  return ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
}

void FileCore::take_buried() {
  for (const std::unique_ptr<FileIo>& io : buried_) io->take([](const Completion&) {});
  std::erase_if(buried_, [](const auto& io) { return io->in_flight() == 0; });
}

void FileCore::bury(std::unique_ptr<FileIo> io) {
  const MutexLock lock(mutex_);
  take_buried();
  buried_.push_back(std::move(io));
}

Result<std::shared_ptr<SessionGate>> FileCore::enter(uint64_t session, Instant deadline) {
  while (true) {
    {
      const MutexLock lock(mutex_);
      take_buried();
      locked_ = locked_ || try_lock();
      const auto former = session == 0 ? gates_.end() : gates_.find(session);
      bool over = true;
      if (former != gates_.end()) {
        former->second->fenced.store(true, std::memory_order_seq_cst);
        over = former->second->operations.load(std::memory_order_seq_cst) == 0;
      }
      if (locked_ && over) {
        auto gate = std::make_shared<SessionGate>();
        if (session != 0) gates_[session] = gate;
        return gate;
      }
    }
    if (SteadyClock::read() >= deadline)
      return fail(ErrorCode::kTimedOut, "the disk has not ended earlier operations");
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace file

Result<std::unique_ptr<OpenFile>> OpenFile::make(const FileOptions& options) {
  FARPAGE_TRY_VOID(file::check_io_uring());
  FARPAGE_TRY(places, file::places_of(options));
  FARPAGE_TRY(made, file::make_nameless_file(options.folder, places * options.slab_bytes));
  return std::make_unique<file::RealFile>(std::make_shared<file::FileCore>(
      std::move(made), options.slab_bytes, places, file::new_key()));
}

Result<std::unique_ptr<OpenFile>> OpenFile::take_over(const FileOptions& options,
                                                      const FileHeirloom& heirloom) {
  FARPAGE_TRY(places, file::places_of(options));
  FARPAGE_TRY(opened, file::open_again(heirloom.descriptor));
  return std::make_unique<file::RealFile>(std::make_shared<file::FileCore>(
      std::move(opened), options.slab_bytes, places, heirloom.key));
}

}  // namespace farpage::rdma

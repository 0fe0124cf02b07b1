#include "image/push.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "image/image.h"
#include "image/image_links.h"
#include "image/page_map.h"
#include "image/page_reads.h"
#include "image/page_writes.h"
#include "image/reader_name.h"
#include "rdma/session.h"

namespace farpage::image {
namespace {

constexpr uint32_t kChunkPages = 64;
constexpr size_t kChunks = 16;
constexpr size_t kChunkBytes = size_t{kChunkPages} << kPageShift;
// Each is a call of the coordinator, for which the sending waits: after so many pages, and not more
// often than that.
constexpr uint64_t kCheckpointPages = uint64_t{16} << (20 - kPageShift);
constexpr Milliseconds kCheckpointInterval{250};
constexpr size_t kProgressChunks = 16;
constexpr size_t kWritePort = 0;
constexpr size_t kReadPort = 1;

// Threads: one.
class Pusher {
 public:
  Pusher(const PushOptions& options, const PageSource& source, coordinator::ImageInfo info,
         std::unique_ptr<pager::LeaseMap> leases, PageMap map, ImageLinks& links,
         coordinator::ImageClient& images, coordinator::Client& client,
         const std::function<void(const PushProgress&)>& on_progress)
      : options_(options),
        source_(source),
        info_(std::move(info)),
        leases_(std::move(leases)),
        map_(std::move(map)),
        images_(images),
        client_(client),
        on_progress_(on_progress),
        port_(links.port(kWritePort)),
        links_(links),
        writes_(links, port_, options.patience) {
    FARPAGE_CHECK(port_.buffer().size() == kChunks * kChunkBytes, "%zu bytes",
                  port_.buffer().size());
  }

  // The base, if there is one. `reads` uses the other port.
  void use_base(const Image& base, PageReads& reads) {
    base_ = &base;
    base_reads_ = &reads;
  }

  Result<PushResult> run() {
    FARPAGE_TRY_VOID(scan(info_.pages));
    if (resume_failed_) {
      log::warn("push: not_resumed image={}: the pages before the checkpoint are others now",
                info_.name.value);
      FARPAGE_TRY_VOID(scan(0));
    }
    const std::string digest = map_.digest();
    FARPAGE_TRY_VOID(write_map());
    FARPAGE_TRY_VOID(drain());
    if (!source_.is_unchanged())
      return fail(ErrorCode::kConflict, source_.name() + " was changed meanwhile: push it again");
    FARPAGE_TRY_VOID(images_.complete(
        info_.name, {.upload = info_.upload, .pages = progress_.stored_pages, .digest = digest}));
    tell();
    return PushResult{progress_, digest};
  }

 private:
  struct Chunk {
    bool busy = false;
    uint32_t writes = 0;  // outstanding
  };
  // What is noted when all before has been acknowledged.
  struct Mark {
    size_t chunk = 0;
    uint64_t pages = 0;  // stored, with this chunk
    uint64_t digest = 0;
  };

  std::span<std::byte> buffer_of(size_t chunk) const {
    return port_.buffer().subspan(chunk * kChunkBytes, kChunkBytes);
  }

  // All pages of the file. The first `resumed` stored ones are at the nodes already.
  Status scan(uint64_t resumed) {
    resumed_ = resumed;
    resume_failed_ = false;
    progress_ = {};
    progress_.pages = map_.pages();
    stored_digest_ = 0;
    if (base_ == nullptr) {
      FARPAGE_TRY(data_pages, count_data());
      data_left_ = data_pages;
    }
    for (uint64_t page = 0; page < map_.pages();) {
      FARPAGE_TRY(data, source_.next_data(page));
      for (; page < data; ++page) take_hole(page);
      if (page == map_.pages()) break;
      FARPAGE_TRY(end, source_.end_of_data(page));
      while (page < end && !resume_failed_) {
        const auto pages = static_cast<uint32_t>(std::min<uint64_t>(kChunkPages, end - page));
        FARPAGE_TRY_VOID(take_data(page, pages));
        page += pages;
        data_left_ -= std::min<uint64_t>(pages, data_left_);
      }
      if (resume_failed_) return drain();
    }
    progress_.scanned_pages = map_.pages();
    // Fewer pages than at the checkpoint.
    if (progress_.stored_pages < resumed_) resume_failed_ = true;
    return drain();
  }

  Result<uint64_t> count_data() const {
    uint64_t pages = 0;
    for (uint64_t page = 0; page < map_.pages();) {
      FARPAGE_TRY(data, source_.next_data(page));
      if (data == map_.pages()) break;
      FARPAGE_TRY(end, source_.end_of_data(data));
      pages += end - data;
      page = end;
    }
    return pages;
  }

  void take_hole(uint64_t page) {
    PageEntry entry;
    if (base_ != nullptr && options_.holes == Holes::kBase) entry = of_base(page);
    ++(entry.is_stored() ? progress_.base_pages : progress_.zero_pages);
    map_.set(page, entry);
  }

  // As the base has it, seen from this image.
  PageEntry of_base(uint64_t page) const {
    PageEntry entry = base_->map()[page];
    if (entry.is_stored()) ++entry.generation;
    return entry;
  }

  Status take_data(uint64_t first, uint32_t pages) {
    FARPAGE_TRY(chunk, free_chunk());
    const std::span<std::byte> buffer = buffer_of(chunk);
    FARPAGE_TRY_VOID(source_.read(first, buffer.first(size_t{pages} << kPageShift)));
    const auto first_slot = static_cast<uint32_t>(progress_.stored_pages);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < pages; ++i) {
      const auto bytes = buffer.subspan(size_t{i} << kPageShift, kPageBytes);
      FARPAGE_TRY(entry, entry_of(first + i, bytes));
      map_.set(first + i, entry);
      if (!entry.is_stored() || entry.generation != 0) continue;
      if (kept != i)
        std::memcpy(buffer.data() + (size_t{kept} << kPageShift), bytes.data(), kPageBytes);
      ++kept;
      const std::array<uint64_t, 2> noted{first + i, entry.checksum};
      stored_digest_ = XXH3_64bits_withSeed(noted.data(), sizeof noted, stored_digest_);
    }
    progress_.scanned_pages = first + pages;
    if (kept == 0) return {};
    return send(chunk, first_slot, kept);
  }

  // A page of the file; one that is to be stored gets the next slot.
  Result<PageEntry> entry_of(uint64_t page, std::span<const std::byte> bytes) {
    if (is_zero(bytes)) {
      ++progress_.zero_pages;
      return PageEntry{};
    }
    const uint64_t checksum = checksum_of(bytes);
    if (base_ != nullptr && base_->map()[page].checksum == checksum) {
      // The guest wrote both pages, and may have made them on purpose: equal checksums are no
      // proof.
      FARPAGE_TRY(same, base_has(page, bytes));
      if (same) {
        ++progress_.base_pages;
        return of_base(page);
      }
    }
    return PageEntry{checksum, static_cast<uint32_t>(progress_.stored_pages++), 0};
  }

  Result<bool> base_has(uint64_t page, std::span<const std::byte> bytes) {
    const auto landing = base_reads_->port().buffer().first(kPageBytes);
    bool lost = false;
    base_reads_->start(*base_, page, base_->run_at(page, 1), landing, 0);
    base_reads_->finish(
        [&](const PageReads::Done& end) { lost = end.outcome == ReadOutcome::kLost; });
    if (lost)
      return fail(ErrorCode::kUnavailable, fmt::format("page {} of the base cannot be read", page));
    return std::memcmp(landing.data(), bytes.data(), kPageBytes) == 0;
  }

  Status send(size_t chunk, uint32_t first_slot, uint32_t pages) {
    const uint64_t end = first_slot + uint64_t{pages};
    const uint64_t digest = stored_digest_;
    if (end <= resumed_) {
      progress_.resumed_pages = end;
      // A chunk ends there, as it did when this was noted.
      if (end == resumed_ && fmt::format("{:016x}", digest) != info_.digest) resume_failed_ = true;
      return {};
    }
    if (first_slot < resumed_) {
      resume_failed_ = true;
      return {};
    }
    FARPAGE_TRY_VOID(write(chunk, first_slot, pages));
    marks_.push_back({chunk, end, digest});
    if (++sent_chunks_ % kProgressChunks == 0) tell();
    return note_checkpoint();
  }

  Status write(size_t chunk, uint32_t first_slot, uint32_t pages) {
    const uint32_t pages_of_slab = leases_->pages_per_slab();
    for (uint32_t done = 0; done < pages;) {
      const uint32_t slot = first_slot + done;
      const uint32_t part = std::min(pages - done, pages_of_slab - (slot & (pages_of_slab - 1)));
      FARPAGE_TRY_VOID(lease(slot));
      while (!writes_.has_room()) FARPAGE_TRY_VOID(progress_writes());
      chunks_[chunk].busy = true;
      ++chunks_[chunk].writes;
      // Two parts of a chunk must not have one token.
      writes_.start(
          *leases_, slot,
          buffer_of(chunk).subspan(size_t{done} << kPageShift, size_t{part} << kPageShift),
          (uint64_t{slot} << 8) | chunk);
      done += part;
    }
    return step();
  }

  Status lease(uint32_t slot) {
    const SlabIndex slab = leases_->slab_of(PageIndex{slot});
    if (leases_->find(PageIndex{slot}) == nullptr) {
      FARPAGE_TRY(leased, lease_now(slab));
      FARPAGE_TRY_VOID(links_.adopt(leased, *leases_));
    }
    lease_ahead(slot);
    return {};
  }

  // A request made ahead may have failed for a reason that has passed.
  Result<std::vector<coordinator::Lease>> lease_now(SlabIndex slab) {
    if (ahead_.valid() && ahead_slab_ == slab)
      if (auto leased = ahead_.get()) return leased;
    return client_.lease_slabs(info_.region, {slab});
  }

  // The slab behind that of `slot`, shortly before it is needed: it takes the coordinator, its
  // store and the nodes some milliseconds. In vain where the rest of the source is zeros. Pages
  // that a base does not have cannot be foreseen.
  void lease_ahead(uint32_t slot) {
    const uint32_t pages = leases_->pages_per_slab();
    const uint32_t at = slot & (pages - 1);
    const SlabIndex next{leases_->slab_of(PageIndex{slot}).value + 1};
    if (at < pages / 4 * 3 || data_left_ <= pages - at || base_ != nullptr) return;
    if (ahead_slab_ == next || leases_->find(PageIndex{slot - at + pages}) != nullptr) return;
    ahead_slab_ = next;
    ahead_ = std::async(std::launch::async,
                        [this, next] { return client_.lease_slabs(info_.region, {next}); });
  }

  Status step() { return writes_.progress(on_written_); }
  Status progress_writes() {
    FARPAGE_TRY_VOID(step());
    return writes_.wait_a_little(on_written_);
  }

  Result<size_t> free_chunk() {
    while (true) {
      for (size_t i = 0; i < kChunks; ++i)
        if (!chunks_[i].busy) return i;
      FARPAGE_TRY_VOID(progress_writes());
    }
  }

  Status drain() {
    while (writes_.outstanding() > 0) FARPAGE_TRY_VOID(progress_writes());
    marks_.clear();
    return {};
  }

  // A chunk whose buffer is in use again is done; marks are told apart by their order.
  Status note_checkpoint() {
    std::optional<Mark> done;
    while (!marks_.empty() && is_done(marks_.front())) {
      done = marks_.front();
      marks_.pop_front();
    }
    if (done) acknowledged_ = *done;
    const Instant now = SteadyClock::read();
    if (acknowledged_.pages < noted_pages_ + kCheckpointPages ||
        now - noted_at_ < kCheckpointInterval)
      return {};
    noted_pages_ = acknowledged_.pages;
    noted_at_ = now;
    progress_.written_bytes = writes_.written_bytes();
    return images_.checkpoint(info_.name, {.upload = info_.upload,
                                           .pages = acknowledged_.pages,
                                           .digest = fmt::format("{:016x}", acknowledged_.digest)});
  }
  bool is_done(const Mark& mark) const {
    const bool used_again = std::any_of(marks_.begin() + 1, marks_.end(), [&](const Mark& later) {
      return later.chunk == mark.chunk;
    });
    return used_again || !chunks_[mark.chunk].busy;
  }

  Status write_map() {
    const std::span<const std::byte> bytes = map_.encode();
    auto slot = static_cast<uint32_t>(progress_.stored_pages);
    for (size_t done = 0; done < bytes.size();) {
      FARPAGE_TRY(chunk, free_chunk());
      const size_t part = std::min(kChunkBytes, bytes.size() - done);
      std::memcpy(buffer_of(chunk).data(), bytes.data() + done, part);
      FARPAGE_TRY_VOID(write(chunk, slot, static_cast<uint32_t>(part >> kPageShift)));
      slot += static_cast<uint32_t>(part >> kPageShift);
      done += part;
    }
    return {};
  }

  void tell() {
    progress_.written_bytes = writes_.written_bytes();
    if (on_progress_) on_progress_(progress_);
  }

  const PushOptions& options_;
  const PageSource& source_;
  const coordinator::ImageInfo info_;
  const std::unique_ptr<pager::LeaseMap> leases_;
  PageMap map_;
  coordinator::ImageClient& images_;
  coordinator::Client& client_;
  const std::function<void(const PushProgress&)>& on_progress_;
  pager::LinkPort& port_;
  ImageLinks& links_;
  PageWrites writes_;
  const PageWrites::OnDone on_written_ = [this](uint64_t token) {
    Chunk& chunk = chunks_[token & 0xff];
    if (--chunk.writes == 0) chunk.busy = false;
  };
  const Image* base_ = nullptr;
  PageReads* base_reads_ = nullptr;
  std::array<Chunk, kChunks> chunks_{};
  std::deque<Mark> marks_;
  Mark acknowledged_;
  uint64_t noted_pages_ = 0;
  Instant noted_at_{0};
  uint64_t resumed_ = 0;
  bool resume_failed_ = false;
  size_t sent_chunks_ = 0;
  uint64_t stored_digest_ = 0;  // of all stored pages so far, in their order
  uint64_t data_left_ = 0;      // pages of the source that are no holes, and not scanned
  PushProgress progress_;
  SlabIndex ahead_slab_{0};  // asked for last; 0: none, that is not asked for ahead
  std::future<Result<std::vector<coordinator::Lease>>> ahead_;  // the last: its end waits for it
};

// The same for each push of one image: a later one fences the WRITEs of an earlier one.
uint64_t session_of_push(uint32_t group, const RegionId& region) {
  const auto hash = static_cast<uint32_t>(XXH3_64bits(region.value.data(), region.value.size()));
  return (uint64_t{group} << 32) | hash | 1;
}

// Ends the reading of an image at the end of its scope.
class OpenReader {
 public:
  OpenReader(coordinator::ImageClient& images, ImageId image, std::string name)
      : images_(images), image_(std::move(image)), reader_{std::move(name)} {}
  ~OpenReader() { (void)images_.close(image_, reader_); }
  OpenReader(const OpenReader&) = delete;
  OpenReader& operator=(const OpenReader&) = delete;

 private:
  coordinator::ImageClient& images_;
  const ImageId image_;
  const coordinator::ImageReader reader_;
};

}  // namespace

Result<PushResult> push(const PushOptions& options, const PageSource& source,
                        coordinator::ImageClient& images, coordinator::Client& client,
                        std::vector<std::unique_ptr<rdma::Transport>>& transports,
                        const std::function<void(const PushProgress&)>& on_progress) {
  const uint64_t pages = source.bytes() >> kPageShift;
  FARPAGE_TRY(info, images.create_image({.name = options.name,
                                         .base = options.base,
                                         .bytes = source.bytes(),
                                         .replicas = options.replicas,
                                         .slab_bytes = options.slab_bytes}));
  const std::string name = new_reader_name();
  FARPAGE_TRY(opened, images.open(options.name, {name}));
  const OpenReader reader(images, options.name, name);
  if (info.lost_leases > 0)
    return fail(ErrorCode::kUnavailable,
                "a node has lost a part of what was pushed: remove image '" + options.name.value +
                    "', and push it again");
  FARPAGE_TRY(links, ImageLinks::create({{"push", kChunks * kChunkBytes,
                                          session_of_push(opened.session_group, info.region),
                                          rdma::PackWrites::kOnSlowWire},
                                         {"base", size_t{PageReads::kMaxRunPages} * 4 << kPageShift,
                                          rdma::new_session(opened.session_group)}},
                                        options.channel, client, transports));
  const uint64_t most_pages = pages + PageMap::encoded_pages(pages);
  FARPAGE_TRY(leases, pager::LeaseMap::create(most_pages, info.slab_bytes));
  FARPAGE_TRY_VOID(links->adopt(opened.regions.front().leases, *leases));
  FARPAGE_TRY(map, PageMap::create(pages));
  ReadCounts counts;
  PageReads reads(
      *links, links->port(kReadPort),
      {.deadline = options.patience, .operation_timeout = options.channel.operation_timeout},
      counts);
  std::unique_ptr<Image> base;
  std::optional<OpenReader> base_reader;
  if (!options.base.value.empty()) {
    FARPAGE_TRY(opened_base, images.open(options.base, {name}));
    base_reader.emplace(images, options.base, name);
    FARPAGE_TRY(loaded, Image::load(opened_base, *links, reads));
    base = std::move(loaded);
    if (base->pages() != pages)
      return fail(ErrorCode::kInvalid,
                  fmt::format("{} has {} pages, and image '{}' has {}: a diff has as many as its "
                              "base",
                              source.name(), pages, options.base.value, base->pages()));
  }
  Pusher pusher(options, source, std::move(info), std::move(leases), std::move(map), *links, images,
                client, on_progress);
  if (base) pusher.use_base(*base, reads);
  return pusher.run();
}

}  // namespace farpage::image

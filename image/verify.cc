#include "image/verify.h"

#include "image/image.h"
#include "image/image_links.h"
#include "image/page_reads.h"
#include "image/reader_name.h"
#include "rdma/session.h"

namespace farpage::image {
namespace {

constexpr size_t kRunBytes = size_t{PageReads::kMaxRunPages} << kPageShift;
constexpr size_t kRuns = 16;  // in flight

// Threads: one.
class Verifier {
 public:
  Verifier(const Image& image, PageReads& reads, const std::function<void(uint64_t)>& on_progress)
      : image_(image), reads_(reads), on_progress_(on_progress) {}

  VerifiedReplica look_at(uint32_t replica) {
    VerifiedReplica found;
    found.map_is_right = image_.read_map(reads_, replica).has_value();
    reads_.use_only(replica);
    const auto done = [&](const PageReads::Done& end) {
      const uint64_t pages = end.bytes.size() >> kPageShift;
      // One bad page must not hide the others of its run: they are read again, one by one.
      if (end.outcome == ReadOutcome::kOk) {
        found.right_pages += pages;
      } else if (pages == 1) {
        ++found.bad_pages;
      } else {
        again_.push_back({end.token >> 8, pages});
      }
      busy_[end.token & 0xff] = false;
    };
    for (uint64_t page = 0; page < image_.pages();) {
      if (!image_.map()[page].is_stored()) {
        ++page;
        continue;
      }
      page += start(page, PageReads::kMaxRunPages, done);
    }
    reads_.finish(done);
    for (const auto& [first, pages] : std::exchange(again_, {}))
      for (uint64_t page = first; page < first + pages; ++page) start(page, 1, done);
    reads_.finish(done);
    reads_.use_only(std::nullopt);
    return found;
  }

 private:
  uint32_t start(uint64_t page, uint32_t most, const PageReads::OnDone& done) {
    size_t place = kRuns;
    while (place == kRuns) {
      for (place = 0; place < kRuns && busy_[place];) ++place;
      if (place == kRuns && !reads_.progress(done)) (void)reads_.wait_a_little();
    }
    busy_[place] = true;
    const StoredRun run = image_.run_at(page, most);
    reads_.start(image_, page, run,
                 reads_.port().buffer().subspan(place * kRunBytes, size_t{run.pages} << kPageShift),
                 (page << 8) | place);
    if (on_progress_) on_progress_(page);
    return run.pages;
  }

  const Image& image_;
  PageReads& reads_;
  const std::function<void(uint64_t)>& on_progress_;
  std::array<bool, kRuns> busy_{};
  std::vector<std::pair<uint64_t, uint64_t>> again_;
};

}  // namespace

Result<std::vector<VerifiedReplica>> verify(
    const VerifyOptions& options, coordinator::ImageClient& images, coordinator::Client& client,
    std::vector<std::unique_ptr<rdma::Transport>>& transports,
    const std::function<void(uint64_t pages)>& on_progress) {
  const coordinator::ImageReader reader{new_reader_name()};
  FARPAGE_TRY(opened, images.open(options.name, reader));
  FARPAGE_TRY(links, ImageLinks::create(
                         {{"verify", kRuns * kRunBytes, rdma::new_session(opened.session_group)}},
                         options.channel, client, transports));
  ReadCounts counts;
  PageReads reads(
      *links, links->port(0),
      {.deadline = options.deadline, .operation_timeout = options.channel.operation_timeout},
      counts);
  std::vector<VerifiedReplica> replicas;
  for (uint32_t replica = 0; replica < opened.image.replicas; ++replica) {
    // Anew for each: slabs may have moved.
    FARPAGE_TRY(present, images.open(options.name, reader));
    FARPAGE_TRY(image, Image::load(present, *links, reads));
    replicas.push_back(Verifier(*image, reads, on_progress).look_at(replica));
  }
  (void)images.close(options.name, reader);
  return replicas;
}

}  // namespace farpage::image

// SnapshotPager: restores guests of this host from images: accepts their VMMs, gives each a session
// with a worker, and keeps what they have in common: the cache, the channels, the recorded sets.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/doorbell.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/state_store.h"
#include "coordinator/client.h"
#include "coordinator/image_client.h"
#include "image/image_links.h"
#include "image/renewer.h"
#include "rdma/transport.h"
#include "snapshot/far_guests.h"
#include "snapshot/page_cache.h"
#include "snapshot/replayer.h"
#include "snapshot/session.h"
#include "snapshot/snapshot_state.h"
#include "snapshot/wire.h"
#include "snapshot/worker.h"

namespace farpage::snapshot {

// The answer to a request: a line, with its break.
struct Answer {
  std::string text;
  std::function<void()> when_sent = {};  // and the socket is closed
};
// Requests that are no SocketRequest, by who has connected to any of the sockets. nullopt: it is
// none that is known.
using AnswerOthers = std::function<std::optional<Answer>(std::string_view request,
                                                         const ucred& peer, size_t guests)>;

struct SnapshotOptions {
  uint64_t cache_bytes = uint64_t{1} << 30;
  uint32_t workers = 0;  // 0: one for each CPU
  uint32_t replay_threads = 2;
  std::string request_folder;  // of listen_for_requests(); empty: one image
  // A file; with several images a folder of them. Empty: nothing is recorded or replayed.
  std::string recorded_set;
  bool prefetch_all = false;
  image::ReadOptions reads;
  rdma::ChannelOptions channel;
  // Beside root and the user of this process, whose VMMs are served.
  std::optional<uid_t> allowed_uid;
  std::string stats_file;  // written at the end of each session, and at the end
  AnswerOthers answer_others = {};
  // Guests have a budget: no page is cached, recorded or placed ahead then.
  std::optional<FarOptions> far = {};
};

inline constexpr uint32_t kMaxSnapshotWorkers = 64;
inline constexpr uint32_t kMaxReplayThreads = 16;
inline constexpr size_t kMaxHandovers = 64;  // VMMs that have connected and not sent all
inline constexpr size_t kMaxListeners = 4096;
inline constexpr Seconds kHandoverTimeout{10};

// Threads: one, that of run(), and its own: workers, replay, and that of its renewer.
class SnapshotPager {
 public:
  // Clients, transports and store outlive it. What a successor needs is in the store; if a
  // predecessor has left something there, it goes on with that: listens where that one did, and
  // serves its guests. It asks the coordinator for nothing before.
  static Result<std::unique_ptr<SnapshotPager>> create(
      SnapshotOptions options, coordinator::ImageClient& images, coordinator::Client& client,
      std::vector<std::unique_ptr<rdma::Transport>>& transports, StateStore& store);
  ~SnapshotPager();

  // Each VMM that connects to the socket is restored from the image. The path must be free, or that
  // of a socket nobody listens to. Opens the image.
  Status listen(const std::string& path, const ImageId& image);
  // control.sock in the folder of requests takes them: {"image": NAME, "socket": NAME}.
  Status listen_for_requests();

  // Serves until `stop` is readable.
  Status run(int stop);
  // After run(): takes who has connected by now, and nobody any more.
  void stop_accepting();
  // Then: serves until the last guest has ended.
  Status drain();

  // It does, because a predecessor did.
  bool has_listener() const { return !listeners_.empty(); }

  // Guests, and VMMs whose message has not come yet.
  size_t guests() const {
    return sessions_.size() + waiting_.size() + (shared_.far ? shared_.far->size() : 0);
  }
  // {"sessions": .., "faults": {..}, ..}
  std::string stats() const;

 private:
  struct OpenImage {
    std::shared_ptr<ServedImage> served;
    coordinator::OpenedImage opened;
    std::string recorded_path;  // empty: not recorded
    std::optional<RecordedSet> recorded;
  };
  struct Listener {
    uint64_t number = 0;
    Fd fd;
    std::string path;
    OpenImage* image = nullptr;  // null: of requests
  };
  struct Waiting {
    std::unique_ptr<Handover> handover;
    OpenImage* image = nullptr;
    Instant until{0};
  };
  struct Asking {  // has connected to the socket of requests, or to one of VMMs
    Fd socket;
    ucred peer{};
    bool may_ask_for_sockets = false;
    Instant until{0};
    std::string text = {};
  };
  // What all sessions share; made when the first image is opened, whose session group it has.
  struct Shared {
    uint32_t session_group = 0;
    std::unique_ptr<image::ImageLinks> links;
    Mapping notes;  // a PlacingNote of each worker and replay thread
    std::unique_ptr<Serving> serving;
    std::vector<std::unique_ptr<Worker>> workers;
    std::unique_ptr<Replayer> replayer;
    std::unique_ptr<FarGuests> far;  // in place of these two
  };
  struct Totals {
    uint64_t started = 0, ended = 0, refused = 0;
    uint64_t cached = 0, read = 0, joined = 0, zero = 0, own = 0, huge = 0, lost = 0;
    uint64_t removed = 0, replayed = 0;
    void add(const SessionCounts& counts);
  };

  SnapshotPager(SnapshotOptions options, coordinator::ImageClient& images,
                coordinator::Client& client,
                std::vector<std::unique_ptr<rdma::Transport>>& transports,
                std::unique_ptr<PageCache> cache, Doorbell bell, SnapshotState state,
                StateStore& store, std::string reader);
  Status take_over();
  Status take_over_listener(uint64_t number, const ListenerRecord& listener);
  void take_over_sessions(const std::map<uint64_t, SessionRecord>& records);
  Result<std::shared_ptr<Session>> session_of(uint64_t number, const SessionRecord& record);
  Result<OpenImage*> open(const ImageId& name);
  OpenImage* add(std::unique_ptr<image::Image> image, const coordinator::OpenedImage& opened);
  Status listen_at(const std::string& path, OpenImage* image);
  Status share(uint32_t session_group);
  Status make_threads(std::span<PlacingNote> notes);
  static FarParts far_parts(uint64_t number, const OpenImage& image, const SessionRecord& record);
  Status resume_far(uint64_t number, const SessionRecord& record);
  Status begin_far(Handover& handover, OpenImage& image);
  void take_far_changes();
  void load_recorded(OpenImage& open);
  Result<Fd> bind(const std::string& path) const;
  void accept_all(Listener& listener);
  Status check_peer(const ucred& peer) const;
  void go_on(Waiting& waiting);
  Result<std::shared_ptr<Session>> begin(Handover& handover, OpenImage& image);
  Status serve(const std::shared_ptr<Session>& session, const OpenImage& image);
  void replay(const std::shared_ptr<Session>& session, const OpenImage& image);
  bool answer(Asking& asking);
  Answer answer_to(const Asking& asking, const std::string& request);
  std::string answer_to_socket_request(const std::string& request);
  void take_ended();
  Status turn(int stop, bool& stopped);
  void learn(const Session& session);
  void learn_of_all();
  void write_stats() const;
  void take_refreshed();
  OpenImage& image_of(const Session& session);

  const SnapshotOptions options_;
  coordinator::ImageClient& images_;
  coordinator::Client& client_;
  std::vector<std::unique_ptr<rdma::Transport>>& transports_;
  const std::unique_ptr<PageCache> cache_;
  const Doorbell bell_;  // a session has ended
  const SnapshotState state_;
  StateStore& store_;
  const coordinator::ImageReader reader_;
  std::deque<Listener> listeners_;
  std::vector<Waiting> waiting_;
  std::vector<Asking> asking_;
  std::vector<std::function<void()>> when_sent_;           // of the answers of this turn
  std::map<uint64_t, std::shared_ptr<Session>> sessions_;  // by number
  uint32_t next_store_ = 1;
  bool is_taking_over_ = false;
  std::map<RegionId, uint32_t> stores_;
  Totals totals_;
  Instant learned_at_{0};
  std::map<uint64_t, uint64_t> learned_;  // touches of each session so far
  Mutex mutex_;
  std::vector<uint64_t> ended_ FARPAGE_GUARDED_BY(mutex_);
  std::vector<coordinator::OpenedImage> refreshed_
      FARPAGE_GUARDED_BY(mutex_);  // others than before
  std::map<ImageId, OpenImage> open_;
  Shared shared_;
  std::unique_ptr<image::Renewer> renewer_;
};

}  // namespace farpage::snapshot

// PageServer: answers `criu lazy-pages --page-server` from the image of a checkpoint.
//
// Any number of restores of one checkpoint, one after the other or at once. criu reads each page
// once and asks ahead by itself, so nothing is cached here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/host_port.h"
#include "base/result.h"
#include "coordinator/client.h"
#include "coordinator/image_client.h"
#include "criu/address_index.h"
#include "criu/page_client.h"
#include "image/image.h"
#include "image/image_links.h"
#include "image/page_reads.h"
#include "image/renewer.h"
#include "rdma/transport.h"

namespace farpage::criu {

inline constexpr size_t kMaxClients = 32;  // at once; others wait in the queue of the socket

struct PageServerOptions {
  ImageId image;
  HostPort listen;
  bool once = false;  // one client is accepted, and run() returns when it has ended
  image::ReadOptions reads;
  rdma::ChannelOptions channel;
};

// Threads: one, that of run(), and that of its renewer.
class PageServer {
 public:
  // Opens the image and listens. kInvalid: it is no checkpoint.
  static Result<std::unique_ptr<PageServer>> create(
      PageServerOptions options, coordinator::ImageClient& images, coordinator::Client& client,
      std::vector<std::unique_ptr<rdma::Transport>>& transports);
  ~PageServer();

  // Serves until `stop` is readable. With `once`: kUnavailable, if the client broke off.
  Status run(int stop);
  // Then: accepts nobody any more, and serves until the last client has ended.
  Status drain();

  uint16_t port() const { return port_; }
  size_t clients() const { return clients_.size(); }
  const AddressIndex& index() const { return *index_; }
  // {"clients": .., "requests": .., ..}
  std::string stats() const;

 private:
  PageServer(PageServerOptions options, coordinator::ImageClient& images, std::string reader);
  Status open(coordinator::Client& client,
              std::vector<std::unique_ptr<rdma::Transport>>& transports);
  Status read_index();
  Result<std::vector<std::byte>> read_pages(uint64_t first, uint64_t pages);
  Status listen();
  bool accepts() const;
  // Waits for something, and does it. `stop` is -1: nothing stops it.
  Status turn(int stop, bool& stopped);
  bool advance();
  void take_ended();
  Status accept();

  const PageServerOptions options_;
  coordinator::ImageClient& images_;
  const coordinator::ImageReader reader_;
  std::unique_ptr<image::ImageLinks> links_;
  image::ReadCounts read_counts_;
  std::unique_ptr<image::PageReads> reads_;
  std::unique_ptr<image::Image> image_;
  std::optional<AddressIndex> index_;
  Fd listener_;
  uint16_t port_ = 0;
  ServedCounts counts_;
  std::vector<std::unique_ptr<PageClient>> clients_;
  std::vector<bool> numbers_;  // that clients have
  const image::PageReads::OnDone on_arrived_;
  uint64_t ended_ = 0;
  std::optional<image::Renewer> renewer_;
};

}  // namespace farpage::criu

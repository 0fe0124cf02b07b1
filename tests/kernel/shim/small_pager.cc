#include "small_pager.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace farpage::test {

SmallPager::SmallPager(PagerOptions options) : options_(std::move(options)) {
  char folder[] = "/tmp/farpage-shim-XXXXXX";
  FARPAGE_CHECK(mkdtemp(folder) != nullptr, "mkdtemp: errno %d", errno);
  folder_ = folder;
  socket_path_ = folder_ + "/handover";
  listener_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.c_str(), socket_path_.size() + 1);
  FARPAGE_CHECK(
      bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
          listen(listener_.get(), 16) == 0,
      "cannot listen: errno %d", errno);
  wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { loop(); });
}

SmallPager::~SmallPager() {
  run([this] { stop_ = true; });
  thread_.join();
  unlink(socket_path_.c_str());
  rmdir(folder_.c_str());
}

void SmallPager::run(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  const uint64_t one = 1;
  FARPAGE_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one), "eventfd: errno %d", errno);
}

void SmallPager::loop() {
  for (;;) {
    std::vector<pollfd> waiting = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    for (const auto& target : targets_) {
      waiting.push_back({target->control_fd(), POLLIN, 0});  // poll ignores -1
      waiting.push_back({target->userfault_fd(), POLLIN, 0});
    }
    poll(waiting.data(), waiting.size(), -1);
    const size_t known = targets_.size();
    for (size_t i = 0; i < known; ++i) {
      if (waiting[2 + 2 * i].revents != 0) {
        targets_[i]->on_control();
      }
      if ((waiting[3 + 2 * i].revents & POLLIN) != 0) {
        targets_[i]->on_userfault();
      }
    }
    if (waiting[0].revents != 0) {
      accept_one();
    }
    if (waiting[1].revents != 0) {
      uint64_t count = 0;
      FARPAGE_CHECK(read(wake_.get(), &count, sizeof(count)) == sizeof(count), "eventfd");
      std::vector<std::function<void()>> work;
      const std::lock_guard lock(mutex_);
      work.swap(work_);
      for (const auto& one : work) {
        one();
      }
      if (stop_) {
        return;
      }
    }
  }
}

void SmallPager::accept_one() {
  Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (connection.valid()) {
    targets_.push_back(std::make_unique<ServedTarget>(std::move(connection), options_));
  }
}

}  // namespace farpage::test

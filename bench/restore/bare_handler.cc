// A handler as short as one can be: the floor of `farpage serve`. One thread for each VMM: it reads
// a fault, copies the page out of a mapped file, and places it.
//
//   bare_handler SOCKET FILE     serves until it is killed
//   bare_handler --copy FILE N   places the file N times by calls of 2 MiB, in its own memory:
//                                prints the rate of UFFDIO_COPY of one thread, in MiB/s
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "uffd/kernel_abi.h"

namespace {

constexpr size_t kPage = 4096;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(3);
}

struct MappedFile {
  const unsigned char* data = nullptr;
  size_t bytes = 0;
};

MappedFile map_file(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0) give_up(path);
  const auto bytes = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) give_up("mmap");
  return {static_cast<const unsigned char*>(data), bytes};
}

// The message of one region, and its descriptor.
int receive(int socket, uint64_t& address) {
  std::array<char, 4096> text{};
  iovec part{text.data(), text.size() - 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) give_up("recvmsg");
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) give_up("no descriptor");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  address = std::strtoull(std::strchr(text.data(), ':') + 1, nullptr, 10);
  return fd;
}

void serve(int socket, MappedFile file) {
  uint64_t base = 0;
  const int fd = receive(socket, base);
  alignas(kPage) static thread_local std::array<unsigned char, kPage> page;
  std::array<pollfd, 2> polled{{{fd, POLLIN, 0}, {socket, POLLIN, 0}}};
  while (true) {
    if (::poll(polled.data(), polled.size(), -1) < 0) give_up("poll");
    uffd_msg message{};
    if (::read(fd, &message, sizeof message) == sizeof message) {
      if (message.event != UFFD_EVENT_PAGEFAULT) continue;
      const uint64_t address = message.arg.pagefault.address & ~uint64_t{kPage - 1};
      std::memcpy(page.data(), file.data + (address - base), kPage);
      uffdio_copy copy{};
      copy.dst = address;
      copy.src = reinterpret_cast<uint64_t>(page.data());
      copy.len = kPage;
      (void)::ioctl(fd, UFFDIO_COPY, &copy);
    } else if ((polled[1].revents & (POLLHUP | POLLIN)) != 0) {
      ::close(fd);
      ::close(socket);
      return;
    }
  }
}

int measure_copy(MappedFile file, int rounds) {
  constexpr size_t kBatch = size_t{2} << 20;
  const int fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  uffdio_api api{};
  api.api = UFFD_API;
  if (fd < 0 || ::ioctl(fd, UFFDIO_API, &api) != 0) give_up("userfaultfd");
  std::chrono::duration<double> took{0};
  for (int round = 0; round < rounds; ++round) {
    void* memory = ::mmap(nullptr, file.bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) give_up("mmap");
    (void)::madvise(memory, file.bytes, MADV_NOHUGEPAGE);
    uffdio_register request{};
    request.range = {reinterpret_cast<uint64_t>(memory), file.bytes};
    request.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (::ioctl(fd, UFFDIO_REGISTER, &request) != 0) give_up("UFFDIO_REGISTER");
    const auto start = std::chrono::steady_clock::now();
    for (size_t done = 0; done < file.bytes; done += kBatch) {
      uffdio_copy copy{};
      copy.dst = request.range.start + done;
      copy.src = reinterpret_cast<uint64_t>(file.data) + done;
      copy.len = std::min(kBatch, file.bytes - done);
      if (::ioctl(fd, UFFDIO_COPY, &copy) != 0) give_up("UFFDIO_COPY");
    }
    took += std::chrono::steady_clock::now() - start;
    ::munmap(memory, file.bytes);
  }
  std::printf("%.0f\n", static_cast<double>(file.bytes) * rounds / took.count() / (1 << 20));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (count == 4 && std::string(words[1]) == "--copy")
    return measure_copy(map_file(words[2]), std::atoi(words[3]));
  if (count != 3) return 2;
  const MappedFile file = map_file(words[2]);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, words[1], sizeof address.sun_path - 1);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener, 64) != 0)
    give_up("listen");
  std::printf("ready\n");
  std::fflush(stdout);
  while (true) {
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) std::thread(serve, socket, file).detach();
  }
}

// A VMM that restores a guest, as Firecracker does, without a guest: it hands its memory over by
// the same message, and then its threads touch that memory in every way, and check each byte
// against the file that the image was made of.
//
//   restored_guest SOCKET FILE [option ...]
//     --shape v1.1|v1.7|v1.12|v1.15   which fields the message has (default v1.15)
//     --regions N     the memory is in N mappings (1)
//     --threads N     (2)
//     --seed N        of the order and of the steps (1)
//     --percent N     of the pages are touched (100)
//     --start N       first of them, in percent of the memory (0)
//     --steps N       random steps of each thread: read, write, give back (0)
//     --rounds N      each page is checked, written and, later, checked again so many times (0)
//     --no-events     does not ask for REMOVE events
//     --seccomp       all threads have a filter of system calls, which forbids none
//     --wait          prints "restored" and waits for a line before it touches anything
//     --huge          pages of 2 MiB
//     --close         keeps no copy of the userfaultfd
//     --hold          waits for the end of its standard input before it ends
//     --send slow|late|stop|torn|twice|nothing|text:TEXT|many   another way to hand over
//
// Prints {"pages": touched, "wrong": .., "sigbus": .., "touch_ms": .., "p50_ns": .., "p99_ns": ..,
// "max_ns": ..}
// (the times of the first touches). Exit status 0: nothing was
// wrong (SIGBUS is counted apart). Source:
// docs/snapshotting/handling-page-faults-on-snapshot-resume.md of Firecracker; serde's compact
// JSON.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(3);
}

struct Options {
  std::string socket, file, shape = "v1.15", send = "once";
  size_t regions = 1, threads = 2, percent = 100, start = 0, steps = 0, rounds = 0;
  uint64_t seed = 1;
  bool events = true, wait = false, hold = false, close = false, huge = false, seccomp = false;
  size_t unit() const { return huge ? kHugePage : kPage; }
};

Options parse(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "restored_guest SOCKET FILE [option ...]\n");
    std::exit(2);
  }
  Options options;
  options.socket = words[1];
  options.file = words[2];
  for (int i = 3; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] {
      if (++i >= count) std::exit(2);
      return std::string(words[i]);
    };
    if (word == "--shape")
      options.shape = value();
    else if (word == "--send")
      options.send = value();
    else if (word == "--regions")
      options.regions = std::stoul(value());
    else if (word == "--threads")
      options.threads = std::stoul(value());
    else if (word == "--percent")
      options.percent = std::stoul(value());
    else if (word == "--start")
      options.start = std::stoul(value());
    else if (word == "--steps")
      options.steps = std::stoul(value());
    else if (word == "--rounds")
      options.rounds = std::stoul(value());
    else if (word == "--seccomp")
      options.seccomp = true;
    else if (word == "--seed")
      options.seed = std::stoull(value());
    else if (word == "--no-events")
      options.events = false;
    else if (word == "--wait")
      options.wait = true;
    else if (word == "--close")
      options.close = true;
    else if (word == "--huge")
      options.huge = true;
    else if (word == "--hold")
      options.hold = true;
    else
      std::exit(2);
  }
  return options;
}

struct Region {
  unsigned char* address = nullptr;
  size_t bytes = 0;
  size_t offset = 0;
};

// The guest's memory: mappings with a gap between them.
struct Memory {
  std::vector<Region> regions;
  unsigned char* at(size_t page) const {
    const size_t offset = page * kPage;
    for (const Region& region : regions)
      if (offset >= region.offset && offset < region.offset + region.bytes)
        return region.address + (offset - region.offset);
    std::abort();
  }
};

Memory make_memory(size_t pages, const Options& options) {
  Memory memory;
  const size_t unit = options.unit();
  const size_t units = pages * kPage / unit;
  const size_t count = options.regions;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = units * i / count * unit;
    const size_t end = units * (i + 1) / count * unit;
    // With a gap behind it.
    void* at =
        ::mmap(nullptr, end - begin + (options.huge ? 0 : kPage), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | (options.huge ? MAP_HUGETLB : MAP_NORESERVE), -1, 0);
    if (at == MAP_FAILED) give_up("mmap");
    memory.regions.push_back({static_cast<unsigned char*>(at), end - begin, begin});
  }
  return memory;
}

int open_userfaultfd(const Memory& memory, bool events) {
  const int fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (fd < 0) give_up("userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = events ? UFFD_FEATURE_EVENT_REMOVE : 0;
  if (::ioctl(fd, UFFDIO_API, &api) != 0) give_up("UFFDIO_API");
  for (const Region& region : memory.regions) {
    uffdio_register request{};
    request.range.start = reinterpret_cast<uint64_t>(region.address);
    request.range.len = region.bytes;
    request.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (::ioctl(fd, UFFDIO_REGISTER, &request) != 0) give_up("UFFDIO_REGISTER");
  }
  return fd;
}

// As the versions of Firecracker write it.
std::string message_of(const Memory& memory, const Options& options) {
  const std::string& shape = options.shape;
  std::string text = "[";
  for (const Region& region : memory.regions) {
    if (text.size() > 1) text += ",";
    text +=
        "{\"base_host_virt_addr\":" + std::to_string(reinterpret_cast<uint64_t>(region.address));
    text += ",\"size\":" + std::to_string(region.bytes);
    text += ",\"offset\":" + std::to_string(region.offset);
    if (shape == "v1.7") text += ",\"page_size_kib\":4";
    const std::string unit = std::to_string(options.unit());
    if (shape == "v1.12" || shape == "v1.15") text += ",\"page_size\":" + unit;
    if (shape == "v1.12" || shape == "v1.15") text += ",\"page_size_kib\":" + unit;
    text += "}";
  }
  return text + "]";
}

void send_part(int socket, const std::string& text, int descriptor) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
    give_up("sendmsg");
}

int hand_over(const Options& options, const Memory& memory, int userfaultfd) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, options.socket.c_str(), sizeof address.sun_path - 1);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    give_up("connect");
  const std::string text = message_of(memory, options);
  if (options.send == "once") {
    send_part(socket, text, userfaultfd);
  } else if (options.send == "slow") {
    // One byte at a time; the descriptor comes with the first.
    for (size_t i = 0; i < text.size(); ++i)
      send_part(socket, text.substr(i, 1), i == 0 ? userfaultfd : -1);
  } else if (options.send == "late") {
    send_part(socket, text, -1);
    send_part(socket, "\n", userfaultfd);
  } else if (options.send == "stop") {
    // Stops itself after the half.
    send_part(socket, text.substr(0, text.size() / 2), userfaultfd);
    (void)::raise(SIGSTOP);
    send_part(socket, text.substr(text.size() / 2), -1);
  } else if (options.send == "torn") {
    send_part(socket, text.substr(0, text.size() / 2), userfaultfd);
  } else if (options.send == "twice") {
    send_part(socket, text.substr(0, 10), userfaultfd);
    send_part(socket, text.substr(10), userfaultfd);
  } else if (options.send == "many") {
    const std::string blanks(1024, ' ');
    for (int i = 0; i < 80; ++i)
      if (::send(socket, blanks.data(), blanks.size(), MSG_NOSIGNAL) < 0) break;
  } else if (options.send.starts_with("text:")) {
    send_part(socket, options.send.substr(5), userfaultfd);
  }
  if (options.send == "torn" || options.send == "nothing") {
    ::close(socket);
    return -1;
  }
  return socket;
}

// ---- touching ----

thread_local sigjmp_buf lost_page;
thread_local volatile bool expects_loss = false;

void on_sigbus(int) {
  if (expects_loss) siglongjmp(lost_page, 1);
  _exit(4);
}

struct Figures {
  std::atomic<uint64_t> pages{0}, wrong{0}, sigbus{0};
};

class Toucher {
 public:
  Toucher(const Options& options, const Memory& memory, const unsigned char* file, size_t pages,
          size_t thread, Figures& figures)
      : memory_(memory),
        file_(file),
        figures_(figures),
        events_(options.events),
        unit_pages_(options.unit() / kPage),
        random_(options.seed * 7919 + thread + 1) {
    const size_t count = pages * options.percent / 100;
    const size_t first = pages * options.start / 100;
    // A thread has whole pages of the memory.
    for (size_t i = 0; i < count; ++i)
      if ((first + i) % pages / unit_pages_ % options.threads == thread)
        mine_.push_back((first + i) % pages);
    shuffle();
    times_.reserve(mine_.size() * (1 + options.rounds * 2) + options.steps * 3);
    given_back_.assign(pages, false);
    written_.assign(pages, 0);
  }

  void touch_all() {
    for (const size_t page : mine_) check(page);
  }
  void rewrite_all() {
    for (const size_t page : mine_) {
      check(page);
      write(page);
    }
    shuffle();
    for (const size_t page : mine_) check(page);
  }
  const std::vector<uint32_t>& times() const { return times_; }
  void step(size_t count) {
    if (mine_.empty()) return;
    for (size_t i = 0; i < count; ++i) {
      const size_t page = mine_[next() % mine_.size()];
      switch (next() % 4) {
        case 0:
        case 1:
          check(page);
          break;
        case 2: {
          write(page);
          check(page);
          break;
        }
        default:
          // Without events, what was never touched is still that of the image afterwards.
          if (!events_) check(page);
          give_back(page - page % unit_pages_);
          check(page);
          break;
      }
    }
  }

 private:
  uint64_t next() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_;
  }

  void shuffle() {
    for (size_t i = mine_.size(); i > 1; --i) std::swap(mine_[i - 1], mine_[next() % i]);
  }

  void write(size_t page) {
    written_[page] = next() | 1;
    std::memcpy(memory_.at(page) + 8, &written_[page], sizeof(uint64_t));
  }

  void give_back(size_t first) {
    if (::madvise(memory_.at(first), unit_pages_ * kPage, MADV_DONTNEED) != 0) give_up("madvise");
    for (size_t page = first; page < first + unit_pages_; ++page) {
      given_back_[page] = true;
      written_[page] = 0;
    }
  }

  void check(size_t page) {
    unsigned char copy[kPage];
    if (sigsetjmp(lost_page, 1) != 0) {
      expects_loss = false;
      ++figures_.sigbus;
      return;
    }
    expects_loss = true;
    const auto start = std::chrono::steady_clock::now();
    copy[0] = *static_cast<volatile unsigned char*>(memory_.at(page));
    const auto took = std::chrono::steady_clock::now() - start;
    std::memcpy(copy, memory_.at(page), kPage);
    expects_loss = false;
    times_.push_back(static_cast<uint32_t>(took.count()));
    unsigned char expected[kPage] = {};
    if (!given_back_[page]) std::memcpy(expected, file_ + page * kPage, kPage);
    if (written_[page] != 0) std::memcpy(expected + 8, &written_[page], sizeof(uint64_t));
    ++figures_.pages;
    if (std::memcmp(copy, expected, kPage) != 0) ++figures_.wrong;
  }

  const Memory& memory_;
  const unsigned char* file_;
  Figures& figures_;
  const bool events_;
  const size_t unit_pages_;
  uint64_t random_;
  std::vector<size_t> mine_;
  std::vector<uint32_t> times_;  // ns
  std::vector<bool> given_back_;
  std::vector<uint64_t> written_;  // 0: not
};

void restrict_system_calls() {
  sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  sock_fprog program{.len = 1, .filter = &allow};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    give_up("seccomp");
}

void wait_for_line() {
  char c = 0;
  while (::read(0, &c, 1) == 1 && c != '\n') {
  }
}

}  // namespace

int main(int count, char** words) {
  const Options options = parse(count, words);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction action {};
  action.sa_handler = on_sigbus;
  action.sa_flags = SA_NODEFER;
  (void)::sigaction(SIGBUS, &action, nullptr);

  if (options.seccomp) restrict_system_calls();

  const int file = ::open(options.file.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) give_up("open");
  const auto bytes = static_cast<size_t>(status.st_size);
  const auto* content =
      static_cast<const unsigned char*>(::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0));
  if (content == MAP_FAILED) give_up("mmap of the file");
  const size_t pages = bytes / kPage;
  const Memory memory = make_memory(pages, options);
  const int userfaultfd = open_userfaultfd(memory, options.events);
  const int socket = hand_over(options, memory, userfaultfd);
  if (options.send != "once" && options.send != "slow" && options.send != "late" &&
      options.send != "stop") {
    // It is refused: the pager closes its end.
    char c = 0;
    const bool closed = socket < 0 || ::read(socket, &c, 1) <= 0;
    std::printf("%s\n", closed ? "refused" : "not refused");
    return closed ? 0 : 1;
  }
  if (options.close) ::close(userfaultfd);
  if (options.wait) {
    std::printf("restored\n");
    std::fflush(stdout);
    wait_for_line();
  }
  Figures figures;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  std::vector<std::vector<uint32_t>> times(options.threads);
  for (size_t i = 0; i < options.threads; ++i)
    threads.emplace_back([&, i] {
      Toucher toucher(options, memory, content, pages, i, figures);
      for (size_t round = 0; round < options.rounds; ++round) toucher.rewrite_all();
      if (options.steps > 0) toucher.step(options.steps);
      toucher.touch_all();
      times[i] = toucher.times();
    });
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::vector<uint32_t> all;
  for (const auto& of_thread : times) all.insert(all.end(), of_thread.begin(), of_thread.end());
  std::sort(all.begin(), all.end());
  const auto at = [&](size_t percent) { return all.empty() ? 0 : all[all.size() * percent / 100]; };
  std::printf(
      "{\"pages\": %llu, \"wrong\": %llu, \"sigbus\": %llu, \"touch_ms\": %.1f, "
      "\"p50_ns\": %u, \"p99_ns\": %u, \"max_ns\": %u}\n",
      static_cast<unsigned long long>(figures.pages),
      static_cast<unsigned long long>(figures.wrong),
      static_cast<unsigned long long>(figures.sigbus), took.count(), at(50), at(99),
      all.empty() ? 0 : all.back());
  std::fflush(stdout);
  if (options.hold) wait_for_line();
  return figures.wrong == 0 ? 0 : 1;
}

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "small_pager.h"
#include "uffd/handover_server.h"
#include "uffd/kernel_abi.h"

namespace farpage::test {

namespace handover = uffd::handover;

namespace {
constexpr size_t kEvictionBatch = 64;
}  // namespace

ServedTarget::ServedTarget(Fd control, const PagerOptions& options)
    : options_(options), control_(std::move(control)) {
  take_hello();
}

ServedTarget::~ServedTarget() = default;

bool ServedTarget::holds(uint64_t address) const {
  const auto there = [address](const std::pair<uint64_t, uint64_t>& extent) {
    return address >= extent.first && address < extent.second;
  };
  return there({hello_.window_address, hello_.window_address + hello_.window_bytes}) ||
         std::any_of(extents_.begin(), extents_.end(), there);
}

size_t ServedTarget::requests_of(handover::RequestKind kind) const {
  return static_cast<size_t>(
      std::count_if(requests_.begin(), requests_.end(),
                    [kind](const handover::Request& request) { return request.kind == kind; }));
}

void ServedTarget::take_hello() {
  alignas(cmsghdr) char rights[CMSG_SPACE(2 * sizeof(int))];
  iovec part{&hello_, sizeof(hello_)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = rights;
  message.msg_controllen = sizeof(rights);
  const ssize_t got = recvmsg(control_.get(), &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  FARPAGE_CHECK(got == static_cast<ssize_t>(sizeof(hello_)) && hello_.magic == handover::kMagic &&
                    header != nullptr && header->cmsg_len == CMSG_LEN(2 * sizeof(int)),
                "a bad Hello of %zd bytes", got);
  int descriptors[2];
  std::memcpy(descriptors, CMSG_DATA(header), sizeof(descriptors));
  userfault_ = Fd(descriptors[0]);
  const Fd ring(descriptors[1]);
  ring_memory_ = Mapping::shared(ring.get(), hello_.ring_bytes).value();

  if (!options_.answer_hello) {
    return close();
  }
  handover::Welcome welcome;
  welcome.status = options_.welcome_status;
  std::strncpy(welcome.reason, options_.welcome_reason.c_str(), sizeof(welcome.reason) - 1);
  send(control_.get(), &welcome, sizeof(welcome), MSG_NOSIGNAL);
}

void ServedTarget::on_control() {
  auto request = uffd::read_request(control_);
  if (!request || !*request) {
    return close();
  }
  if ((*request)->kind == handover::RequestKind::kLifeline) {
    FARPAGE_CHECK((*request)->descriptor.valid() && !lifeline_.valid(), "a bad lifeline");
    lifeline_ = std::move((*request)->descriptor);
    return;
  }
  take(**request);
}

// The agent sends it after its start.
void ServedTarget::await_lifeline() {
  while (control_.valid() && !lifeline_.valid()) {
    on_control();
  }
}

void ServedTarget::hang_up() {
  await_lifeline();
  control_.reset();
}

void ServedTarget::end_lifeline() {
  await_lifeline();
  lifeline_.reset();
}

void ServedTarget::take(const handover::Request& request) {
  requests_.push_back(request);
  answer(request);
}

void ServedTarget::answer(const handover::Request& request) {
  handover::Reply reply;
  reply.number = request.number;
  switch (request.kind) {
    case handover::RequestKind::kAddExtent:
      extents_.emplace(request.address, request.address + request.bytes);
      break;
    case handover::RequestKind::kRemoveExtent:
      std::erase_if(extents_, [&](const auto& extent) {
        return extent.first >= request.address && extent.second <= request.address + request.bytes;
      });
      [[fallthrough]];
    case handover::RequestKind::kDiscard:
      forget(request.address, request.address + request.bytes);
      break;
    case handover::RequestKind::kForkBegin:
      reply.status = store_.empty() ? options_.fork_status : EAGAIN;
      break;
    case handover::RequestKind::kForkDone:
    case handover::RequestKind::kLifeline:
    case handover::RequestKind::kLeave:
    case handover::RequestKind::kColdHint:
    case handover::RequestKind::kWillNeedHint:
    case handover::RequestKind::kNormalAccess:
    case handover::RequestKind::kRandomAccess:
    case handover::RequestKind::kSequentialAccess:
    case handover::RequestKind::kAdoptPresent:
    case handover::RequestKind::kBringBack:
      break;
    case handover::RequestKind::kPin:
      reply.status = pin(request);
      break;
    case handover::RequestKind::kUnpin:
      std::erase_if(pinned_, [&](uint64_t page) {
        return page >= request.address && page < request.address + request.bytes;
      });
      break;
  }
  send(control_.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
}

int ServedTarget::pin(const handover::Request& request) {
  std::unordered_set<uint64_t> all = pinned_;
  for (uint64_t page = request.address; page < request.address + request.bytes;
       page += kPageBytes) {
    all.insert(page);
    if (all.size() > options_.pin_limit_pages) {
      return ENOMEM;
    }
  }
  pinned_ = std::move(all);
  return 0;
}

void ServedTarget::close() {
  control_.reset();
  userfault_.reset();
}

void ServedTarget::on_userfault() {
  read_events();
  keep_budget();
}

void ServedTarget::read_events() {
  uffd_msg messages[32];
  const ssize_t got = read(userfault_.get(), messages, sizeof(messages));
  for (size_t i = 0; got > 0 && i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i) {
    const uffd_msg& message = messages[i];
    if (message.event == UFFD_EVENT_UNMAP) {
      forget(message.arg.remove.start, message.arg.remove.end);
    } else if (message.event == UFFD_EVENT_PAGEFAULT) {
      const uint64_t page = message.arg.pagefault.address & ~(kPageBytes - 1);
      if ((message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) != 0) {
        on_write_protected(page);
      } else {
        on_missing(page);
      }
    }
  }
}

void ServedTarget::on_missing(uint64_t page) {
  if (held_pages_.erase(page) != 0) {
    ++held_faults_;
    return;
  }
  if (resident_.count(page) != 0) {
    return wake(page);  // a second thread's fault, answered by the first
  }
  install(page);
}

void ServedTarget::install(uint64_t page) {
  const auto found = store_.find(page);
  int result = 0;
  if (found == store_.end()) {
    uffdio_zeropage zero{};
    zero.range = {page, kPageBytes};
    result = ioctl(userfault_.get(), UFFDIO_ZEROPAGE, &zero);
  } else {
    uffdio_copy copy{};
    copy.dst = page;
    copy.src = reinterpret_cast<uint64_t>(found->second.data());
    copy.len = kPageBytes;
    result = ioctl(userfault_.get(), UFFDIO_COPY, &copy);
  }
  if (result != 0) {
    return wake(page);  // an event is queued (EAGAIN), or the page is present or unmapped: the
                        // thread faults again
  }
  if (found == store_.end()) {
    ++zero_fills_;
  } else {
    ++refetches_;
    store_.erase(found);
  }
  if (resident_.insert(page).second) {
    order_.push_back(page);
  }
  most_resident_pages_ = std::max(most_resident_pages_, resident_.size());
}

void ServedTarget::on_write_protected(uint64_t page) {
  if (resident_.count(page) == 0 || !protect(page, false)) {
    wake(page);
  }
}

bool ServedTarget::protect(uint64_t page, bool on) {
  uffdio_writeprotect request{};
  request.range = {page, kPageBytes};
  request.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
  return ioctl(userfault_.get(), UFFDIO_WRITEPROTECT, &request) == 0;
}

void ServedTarget::wake(uint64_t page) {
  uffdio_range range{page, kPageBytes};
  ioctl(userfault_.get(), UFFDIO_WAKE, &range);
}

void ServedTarget::keep_budget() {
  while (options_.budget_pages != 0 && resident_.size() > options_.budget_pages) {
    std::vector<uint64_t> victims;
    while (!order_.empty() && victims.size() < kEvictionBatch) {
      if (resident_.count(order_.front()) != 0) {
        victims.push_back(order_.front());
      }
      order_.pop_front();
    }
    if (victims.empty()) {
      return;
    }
    evict(victims);
  }
}

void ServedTarget::evict(const std::vector<uint64_t>& pages) {
  std::vector<uint64_t> dropped;
  for (const uint64_t page : pages) {
    if (resident_.count(page) == 0 || !protect(page, true)) {
      continue;
    }
    PageBytes bytes(kPageBytes);
    const iovec here{bytes.data(), kPageBytes};
    const iovec there{reinterpret_cast<void*>(page), kPageBytes};
    if (process_vm_readv(hello_.pid, &here, 1, &there, 1, 0) != static_cast<ssize_t>(kPageBytes)) {
      protect(page, false);  // PROT_NONE now: it stays
      continue;
    }
    resident_.erase(page);
    store_[page] = std::move(bytes);
    dropped.push_back(page);
  }
  for (const int result : command(handover::CommandKind::kDrop, dropped)) {
    FARPAGE_CHECK(result == 0, "the agent could not drop a page: errno %d", result);
  }
  for (const uint64_t page : dropped) {
    ++evictions_;
    wake(page);
  }
}

void ServedTarget::put(uint64_t address, PageBytes bytes) {
  store_[address] = std::move(bytes);
}

const PageBytes* ServedTarget::stored(uint64_t address) const {
  const auto found = store_.find(address);
  return found == store_.end() ? nullptr : &found->second;
}

void ServedTarget::forget(uint64_t begin, uint64_t end) {
  std::erase_if(store_, [=](const auto& e) { return e.first >= begin && e.first < end; });
  std::erase_if(resident_, [=](uint64_t page) { return page >= begin && page < end; });
  std::erase_if(order_, [=](uint64_t page) { return page >= begin && page < end; });
}

std::vector<int> ServedTarget::command(handover::CommandKind kind,
                                       const std::vector<uint64_t>& addresses) {
  auto& ring = *reinterpret_cast<handover::AgentRing*>(ring_memory_.data());
  const uint32_t first = ring.head.load();
  FARPAGE_CHECK(addresses.size() <= handover::kRingCommands, "more commands than places");
  uint32_t head = first;
  for (const uint64_t address : addresses) {
    handover::Command& command = ring.commands[head++ % handover::kRingCommands];
    command = {.address = address, .pages = 1, .kind = kind, .result = -1};
  }
  ring.head.store(head);
  if (ring.agent_sleeps.exchange(0) != 0) {
    syscall(SYS_futex, &ring.head, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  for (;;) {
    ring.pager_sleeps.store(1);
    const uint32_t tail = ring.tail.load();
    if (tail == head) {
      break;
    }
    const timespec patience{.tv_sec = 0, .tv_nsec = 1'000'000};
    syscall(SYS_futex, &ring.tail, FUTEX_WAIT, tail, &patience, nullptr, 0);
    read_events();
    pollfd hang_up{control_.get(), POLLRDHUP, 0};
    if (poll(&hang_up, 1, 0) > 0 && (hang_up.revents & (POLLRDHUP | POLLHUP)) != 0) {
      return {};
    }
  }
  ring.pager_sleeps.store(0);
  std::vector<int> results;
  for (uint32_t i = first; i != head; ++i) {
    results.push_back(ring.commands[i % handover::kRingCommands].result);
  }
  return results;
}

}  // namespace farpage::test

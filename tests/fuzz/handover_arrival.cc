// What a process sends that connects to a pager: a Hello, a Resize, a question about children, or
// none of them; then a request. The first byte: how many descriptors come with it, and whether the
// second is a ring.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/strong.h"
#include "base/unix_socket.h"
#include "tests/fuzz/fuzz_target.h"
#include "uffd/handover_server.h"

namespace {

using farpage::Fd;
namespace uffd = farpage::uffd;

const Fd& ring() {
  static const Fd made = [] {
    Fd memfd(::memfd_create("ring", MFD_CLOEXEC));
    FUZZ_EXPECT(::ftruncate(memfd.get(), sizeof(uffd::handover::AgentRing)) == 0);
    return memfd;
  }();
  return made;
}

// An errno in Welcome, unless it was accepted.
void expect_answer(const Fd& socket) {
  uffd::handover::Welcome welcome;
  FUZZ_EXPECT(::recv(socket.get(), &welcome, sizeof welcome, MSG_DONTWAIT) == sizeof welcome);
  FUZZ_EXPECT(welcome.status != 0);
  FUZZ_EXPECT(std::ranges::find(welcome.reason, '\0') != std::end(welcome.reason));
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const size_t descriptors = data[0] % (farpage::kMaxSentDescriptors + 1);
  const int second = (data[0] & 0x80) != 0 ? nothing.get() : ring().get();
  const std::array sent{nothing.get(), second};
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const size_t first = std::min(bytes.size(), sizeof(uffd::handover::Hello));
  std::array<int, 2> ends{};
  FUZZ_EXPECT(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const Fd peer(ends[0]);
  const Fd kept(::dup(ends[1]));
  FUZZ_EXPECT(farpage::send_with_descriptors(peer.get(), bytes.first(first),
                                             std::span(sent).first(descriptors)) ==
              static_cast<ssize_t>(first));
  const auto arrival = uffd::receive_arrival(Fd(ends[1]), ::getuid());
  if (!arrival) {
    expect_answer(peer);
    return 0;
  }
  if (const auto* target = std::get_if<uffd::HandedOver>(&*arrival)) {
    FUZZ_EXPECT(descriptors == 2 && target->userfaultfd.valid() && target->pidfd.valid());
    FUZZ_EXPECT(target->window_bytes > 0 && target->window_bytes % farpage::kPageBytes == 0);
    FUZZ_EXPECT(target->window_address % farpage::kPageBytes == 0);
    FUZZ_EXPECT(target->ring.size() >= sizeof(uffd::handover::AgentRing));
    FUZZ_EXPECT(target->program.size() < sizeof(uffd::handover::Hello::program));
  }
  const auto rest = bytes.subspan(first);
  if (rest.empty() || ::send(peer.get(), rest.data(), rest.size(), 0) < 0) return 0;
  const auto request = uffd::read_request(kept);
  if (request && *request) FUZZ_EXPECT((*request)->magic == uffd::handover::kMagic);
  return 0;
}

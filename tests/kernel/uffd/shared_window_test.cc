// The kernel's rules for shared memory that two mappings of one memfd have registered, and
// SharedWindow over two processes that are both this one.
#include "uffd/shared_window.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <thread>

#include "uffd/kernel_abi.h"
#include "uffd/shared_memory.h"

namespace farpage::uffd {
namespace {

constexpr size_t kPages = 1200;  // more than two blocks
constexpr int kPatienceMs = 10000;

class Page {
 public:
  explicit Page(uint8_t value) { bytes_.fill(std::byte{value}); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  alignas(kPageBytes) std::array<std::byte, kPageBytes> bytes_;
};

// A mapping of the file with a userfaultfd of its own.
struct Mapped {
  explicit Mapped(int file) {
    memory = static_cast<volatile uint8_t*>(
        ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    EXPECT_EQ(::madvise(const_cast<uint8_t*>(memory), bytes(), MADV_DONTFORK), 0);
    auto created = Userfaultfd::create(shared_features());
    EXPECT_TRUE(created.has_value()) << created.error().message();
    uffd.emplace(std::move(*created));
    EXPECT_TRUE(uffd->register_shared_range(address(0), bytes()).has_value());
  }
  ~Mapped() { ::munmap(const_cast<uint8_t*>(memory), bytes()); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  static size_t bytes() { return kPages << kPageShift; }
  uint64_t address(size_t page) const {
    return reinterpret_cast<uint64_t>(memory) + (page << kPageShift);
  }
  volatile uint8_t& at(size_t page) const { return memory[page << kPageShift]; }
  // The flags of the next fault, and its page.
  std::pair<uint64_t, size_t> await_fault() {
    pollfd polled{uffd->fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&polled, 1, kPatienceMs), 1);
    uffd_msg message{};
    EXPECT_EQ(uffd->read({&message, 1}), 1U);
    EXPECT_EQ(message.event, UFFD_EVENT_PAGEFAULT);
    return {uint64_t{message.arg.pagefault.flags},
            (message.arg.pagefault.address - address(0)) >> kPageShift};
  }

  volatile uint8_t* memory = nullptr;
  std::optional<Userfaultfd> uffd;
};

struct Rig {
  Rig() : file(::memfd_create("farpage-test", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(Mapped::bytes())), 0);
    a.emplace(file.get());
    b.emplace(file.get());
  }
  void punch(size_t page) const {
    EXPECT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(page << kPageShift), kPageBytes),
              0);
  }
  bool is_cached(size_t page) const {
    const auto at = static_cast<off_t>(page << kPageShift);
    return ::lseek(file.get(), at, SEEK_DATA) == at;
  }

  Fd file;
  std::optional<Mapped> a;
  std::optional<Mapped> b;
};

// A thread that touches, and what it saw.
class Touch {
 public:
  Touch(volatile uint8_t& at, std::optional<uint8_t> write = std::nullopt)
      : thread_([this, &at, write] {
          if (write) at = *write;
          seen_ = at;
        }) {}
  uint8_t seen() {
    thread_.join();
    return seen_;
  }

 private:
  uint8_t seen_ = 0;
  std::thread thread_;
};

constexpr uint64_t kAnyKind =
    UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_MINOR;

TEST(SharedRules, AbsentPageIsMissingAndOneInTheCacheIsMinor) {
  Rig rig;
  Touch first(rig.a->at(3));
  EXPECT_EQ(rig.a->await_fault(), std::pair(uint64_t{0}, size_t{3}));
  EXPECT_EQ(rig.a->uffd->copy(rig.a->address(3), Page(7).bytes().data(), kPageBytes,
                              Protection::kWritable),
            Outcome::kDone);
  EXPECT_EQ(first.seen(), 7);
  Touch second(rig.b->at(3), 9);
  EXPECT_EQ(rig.b->await_fault().first & kAnyKind,
            uint64_t{UFFD_PAGEFAULT_FLAG_MINOR | UFFD_PAGEFAULT_FLAG_WRITE});
  EXPECT_EQ(rig.b->uffd->map_cached(rig.b->address(3), Protection::kWritable), Outcome::kDone);
  EXPECT_EQ(second.seen(), 9);
  EXPECT_EQ(rig.a->at(3), 9);
}

TEST(SharedRules, PageOfTheCacheIsReplacedByNothing) {
  Rig rig;
  EXPECT_EQ(rig.a->uffd->copy(rig.a->address(3), Page(7).bytes().data(), kPageBytes,
                              Protection::kWritable),
            Outcome::kDone);
  EXPECT_EQ(rig.b->uffd->copy(rig.b->address(3), Page(8).bytes().data(), kPageBytes,
                              Protection::kWritable),
            Outcome::kAlreadyPresent);
  const ZeroResult zero = rig.b->uffd->zero(rig.b->address(3), kPageBytes, ZeroFrames::kShared);
  EXPECT_EQ(zero.outcome, Outcome::kAlreadyPresent);
  EXPECT_EQ(rig.a->at(3), 7);
}

TEST(SharedRules, PageIsMappedAsProtectedAndItsWriteIsAFault) {
  Rig rig;
  ASSERT_EQ(rig.a->uffd->copy(rig.a->address(3), Page(7).bytes().data(), kPageBytes,
                              Protection::kWriteProtected),
            Outcome::kDone);
  ASSERT_EQ(rig.b->uffd->map_cached(rig.b->address(3), Protection::kWriteProtected),
            Outcome::kDone);
  for (Mapped* mapped : {&*rig.a, &*rig.b}) {
    EXPECT_EQ(mapped->at(3), 7);
    Touch write(mapped->at(3), 7);
    EXPECT_NE(mapped->await_fault().first & UFFD_PAGEFAULT_FLAG_WP, 0U);
    EXPECT_EQ(mapped->uffd->write_protect(mapped->address(3), kPageBytes, false), Outcome::kDone);
    EXPECT_EQ(write.seen(), 7);
  }
}

TEST(SharedRules, HoleTakesThePageOutOfAllMappings) {
  Rig rig;
  ASSERT_EQ(rig.a->uffd->copy(rig.a->address(3), Page(7).bytes().data(), kPageBytes,
                              Protection::kWritable),
            Outcome::kDone);
  ASSERT_EQ(rig.b->uffd->map_cached(rig.b->address(3), Protection::kWritable), Outcome::kDone);
  for (Mapped* mapped : {&*rig.a, &*rig.b})
    ASSERT_EQ(mapped->uffd->write_protect(mapped->address(3), kPageBytes, true), Outcome::kDone);
  rig.punch(3);
  EXPECT_FALSE(rig.is_cached(3));
  Touch in_a(rig.a->at(3));
  Touch in_b(rig.b->at(3), 5);
  EXPECT_EQ(rig.a->await_fault().first & kAnyKind, 0U);
  EXPECT_EQ(rig.b->await_fault().first & kAnyKind, uint64_t{UFFD_PAGEFAULT_FLAG_WRITE});
  // The marks of protection that are left do not hinder, and what is placed is as it is asked for.
  EXPECT_EQ(rig.b->uffd->copy(rig.b->address(3), Page(8).bytes().data(), kPageBytes,
                              Protection::kWritable),
            Outcome::kDone);
  EXPECT_EQ(in_b.seen(), 5);
  EXPECT_EQ(rig.a->uffd->map_cached(rig.a->address(3), Protection::kWritable), Outcome::kDone);
  EXPECT_EQ(in_a.seen(), 5);
  rig.a->at(3) = 6;  // no fault
  EXPECT_EQ(rig.b->at(3), 6);
}

TEST(SharedRules, HoleThatIsMetIsNoError) {
  Rig rig;
  EXPECT_EQ(rig.a->uffd->map_cached(rig.a->address(3), Protection::kWritable), std::nullopt);
  ASSERT_EQ(rig.a->uffd->copy(rig.a->address(3), Page(7).bytes().data(), kPageBytes,
                              Protection::kWritable),
            Outcome::kDone);
  rig.punch(3);
  EXPECT_EQ(rig.a->uffd->map_cached(rig.a->address(3), Protection::kWritable), std::nullopt);
  EXPECT_EQ(rig.b->uffd->map_cached(rig.b->address(3), Protection::kWritable), std::nullopt);
}

TEST(SharedRules, ProtectionOfWhatIsNotMappedIsKeptUntilItIs) {
  Rig rig;
  ASSERT_EQ(rig.b->uffd->write_protect(rig.b->address(3), kPageBytes, true), Outcome::kDone);
  ASSERT_EQ(rig.a->uffd->copy(rig.a->address(3), Page(7).bytes().data(), kPageBytes,
                              Protection::kWritable),
            Outcome::kDone);
  Touch read(rig.b->at(3));
  EXPECT_EQ(rig.b->await_fault().first & kAnyKind, uint64_t{UFFD_PAGEFAULT_FLAG_MINOR});
  EXPECT_EQ(rig.b->uffd->map_cached(rig.b->address(3), Protection::kWritable), Outcome::kDone);
  EXPECT_EQ(read.seen(), 7);
  rig.b->at(3) = 8;  // it was overruled
  EXPECT_EQ(rig.a->at(3), 8);
}

TEST(SharedRules, FileIsReadWithoutPlacingAnything) {
  Rig rig;
  std::array<char, kPageBytes> bytes;
  bytes.fill('x');
  EXPECT_EQ(::pread(rig.file.get(), bytes.data(), bytes.size(), 0), kPageBytes);
  EXPECT_EQ(bytes[17], 0);
  EXPECT_FALSE(rig.is_cached(0));
}

TEST(SharedRules, MarkOfProtectionKeepsAPageFromBeingPoisoned) {
  Rig rig;
  ASSERT_EQ(rig.a->uffd->write_protect(rig.a->address(3), kPageBytes, true), Outcome::kDone);
  EXPECT_EQ(rig.a->uffd->poison(rig.a->address(3), kPageBytes), Outcome::kAlreadyPresent);
  ASSERT_EQ(rig.a->uffd->write_protect(rig.a->address(3), kPageBytes, false), Outcome::kDone);
  EXPECT_EQ(rig.a->uffd->poison(rig.a->address(3), kPageBytes), Outcome::kDone);
}

// ---- SharedWindow ----

struct Shared : Rig {
  Shared() {
    auto adopted = adopt_shared_file(Fd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)));
    EXPECT_TRUE(adopted.has_value()) << adopted.error().message();
    std::vector<SharedFile> files;
    files.push_back(std::move(*adopted));
    window = std::move(*SharedWindow::create(std::move(files)));
    for (Mapped* mapped : {&*a, &*b}) join(*mapped);
  }
  void join(Mapped& mapped) {
    auto sent = adopt_shared_userfaultfd(Fd(::fcntl(mapped.uffd->fd(), F_DUPFD_CLOEXEC, 0)));
    EXPECT_TRUE(sent.has_value()) << sent.error().message();
    EXPECT_TRUE(window
                    ->join(next++, std::move(*sent), {{mapped.address(0), {PageIndex{0}, kPages}}},
                           ::getpid())
                    .has_value());
  }
  // Messages until there is an event.
  Event await_event() const {
    std::array<Event, 8> events;
    pollfd polled{window->event_descriptor(), POLLIN, 0};
    while (::poll(&polled, 1, kPatienceMs) == 1) {
      const size_t got = window->read_events(events);
      EXPECT_LE(got, 1U);
      if (got > 0) return std::move(events[0]);
    }
    ADD_FAILURE() << "no event came";
    return StrayFault{};
  }
  Fault await_fault() const {
    const Event event = await_event();
    const Fault* fault = std::get_if<Fault>(&event);
    EXPECT_NE(fault, nullptr);
    return fault != nullptr ? *fault : Fault{};
  }
  // What comes until the touch is over is answered without an event.
  uint8_t expect_no_event(Touch& touch) const {
    std::array<Event, 8> events;
    std::atomic<bool> over{false};
    std::thread reader([&] {
      while (!over.load()) {
        pollfd polled{window->event_descriptor(), POLLIN, 0};
        if (::poll(&polled, 1, 20) != 1) continue;
        EXPECT_EQ(window->read_events(events), 0U);
      }
    });
    const uint8_t seen = touch.seen();
    over.store(true);
    reader.join();
    return seen;
  }
  void drop(PageRun run) const {
    std::array<DropResult, 1> results;
    EXPECT_TRUE(window->drop({&run, 1}, results, Nanoseconds(0)).has_value());
    EXPECT_EQ(results[0].sys_errno, 0);
    window->wake(run);
  }

  std::unique_ptr<SharedWindow> window;
  uint32_t next = 0;  // number of a process
};

TEST(SharedWindow, PageIsPlacedForWhoWaitsAndMappedForOthersWithoutAnEvent) {
  Shared rig;
  Touch in_b(rig.b->at(600));
  EXPECT_EQ(rig.await_fault().page, PageIndex{600});
  EXPECT_EQ(rig.window->install(PageIndex{600}, Page(7).bytes(), Protection::kWriteProtected),
            Outcome::kDone);
  EXPECT_EQ(in_b.seen(), 7);
  Touch in_a(rig.a->at(600));
  EXPECT_EQ(rig.expect_no_event(in_a), 7);
}

TEST(SharedWindow, AllThatWaitForAPageGetIt) {
  Shared rig;
  Touch in_a(rig.a->at(3));
  (void)rig.await_fault();
  Touch in_b(rig.b->at(3));
  (void)rig.await_fault();
  EXPECT_EQ(rig.window->install(PageIndex{3}, Page(7).bytes(), Protection::kWriteProtected),
            Outcome::kDone);
  EXPECT_EQ(in_a.seen(), 7);
  EXPECT_EQ(in_b.seen(), 7);
}

TEST(SharedWindow, ZerosWakeWhoeverWaitsForAPageThatIsThere) {
  Shared rig;
  Touch in_a(rig.a->at(3), 1);
  EXPECT_EQ(rig.await_fault().kind, FaultKind::kMissingWrite);
  Touch in_b(rig.b->at(3));
  (void)rig.await_fault();
  ZeroResult zero = rig.window->zero({PageIndex{3}, 1}, ZeroFrames::kOwn);
  EXPECT_EQ(zero.outcome, Outcome::kDone);
  EXPECT_EQ(in_a.seen(), 1);
  EXPECT_LE(in_b.seen(), 1);
  zero = rig.window->zero({PageIndex{3}, 1}, ZeroFrames::kOwn);
  EXPECT_EQ(zero.outcome, Outcome::kAlreadyPresent);
  EXPECT_EQ(rig.b->at(3), 1);
}

TEST(SharedWindow, ProtectionHoldsForAProcessThatMapsThePageLater) {
  Shared rig;
  ASSERT_EQ(rig.window->zero({PageIndex{3}, 1}, ZeroFrames::kOwn).outcome, Outcome::kDone);
  ASSERT_EQ(rig.window->protect({PageIndex{0}, kPages}), Outcome::kDone);
  for (Mapped* mapped : {&*rig.a, &*rig.b}) {
    Touch read(mapped->at(3));
    EXPECT_EQ(rig.expect_no_event(read), 0);
  }
  Touch in_a(rig.a->at(3), 4);
  EXPECT_EQ(rig.await_fault().kind, FaultKind::kWriteProtected);
  Touch in_b(rig.b->at(3), 4);
  EXPECT_EQ(rig.await_fault().kind, FaultKind::kWriteProtected);
  EXPECT_EQ(rig.window->unprotect({PageIndex{3}, 1}), Outcome::kDone);
  EXPECT_EQ(in_a.seen(), 4);
  EXPECT_EQ(in_b.seen(), 4);
}

TEST(SharedWindow, CleanPageIsProtectedForAllAlsoAfterOtherStates) {
  Shared rig;
  // Unprotected while nothing is known of it, then installed as clean.
  ASSERT_EQ(rig.window->unprotect({PageIndex{3}, 1}), Outcome::kDone);
  ASSERT_EQ(rig.window->install(PageIndex{3}, Page(7).bytes(), Protection::kWriteProtected),
            Outcome::kDone);
  Touch in_b(rig.b->at(3), 8);
  EXPECT_EQ(rig.await_fault().kind, FaultKind::kWriteProtected);
  EXPECT_EQ(rig.window->unprotect({PageIndex{3}, 1}), Outcome::kDone);
  EXPECT_EQ(in_b.seen(), 8);
}

TEST(SharedWindow, DroppedPageIsReadBeforeAndMissingAfterwardsInEachProcess) {
  Shared rig;
  for (const size_t page : {500, 520}) {
    rig.window->install(PageIndex{page}, Page(static_cast<uint8_t>(page)).bytes(),
                        Protection::kWritable);
    ASSERT_EQ(rig.b->uffd->map_cached(rig.b->address(page), Protection::kWritable), Outcome::kDone);
  }
  ASSERT_EQ(rig.window->protect({PageIndex{500}, 21}), Outcome::kDone);
  std::array<std::byte, 2 * kPageBytes> bytes;
  const std::array<PageIndex, 2> pages = {PageIndex{500}, PageIndex{520}};
  ASSERT_TRUE(rig.window->copy_out(pages, bytes).has_value());
  EXPECT_EQ(bytes[1], std::byte{500 % 256});
  EXPECT_EQ(bytes[kPageBytes], std::byte{520 % 256});
  rig.drop({PageIndex{500}, 21});
  EXPECT_FALSE(rig.is_cached(500));
  for (Mapped* mapped : {&*rig.a, &*rig.b}) {
    Touch touch(mapped->at(500));
    EXPECT_EQ(rig.await_fault().kind, FaultKind::kMissingRead);
    EXPECT_EQ(rig.window->install(PageIndex{500}, Page(9).bytes(), Protection::kWriteProtected),
              Outcome::kDone);
    EXPECT_EQ(touch.seen(), 9);
    rig.drop({PageIndex{500}, 1});
  }
}

TEST(SharedWindow, ReadOfAnAbsentPageIsAFault) {
  Shared rig;
  std::array<std::byte, kPageBytes> bytes;
  const PageIndex page{77};
  Status status;
  std::thread reader([&] { status = rig.window->read({&page, 1}, bytes); });
  EXPECT_EQ(rig.await_fault().page, page);
  EXPECT_EQ(rig.window->install(page, Page(7).bytes(), Protection::kWritable), Outcome::kDone);
  reader.join();
  ASSERT_TRUE(status.has_value()) << status.error().message();
  EXPECT_EQ(bytes[5], std::byte{7});
}

TEST(SharedWindow, PresentPagesAreFound) {
  Rig plain;
  ASSERT_EQ(::pwrite(plain.file.get(), "x", 1, 5 << kPageShift), 1);
  auto file = adopt_shared_file(Fd(::fcntl(plain.file.get(), F_DUPFD_CLOEXEC, 0)));
  std::vector<SharedFile> files;
  files.push_back(std::move(*file));
  const auto window = std::move(*SharedWindow::create(std::move(files)));
  ASSERT_EQ(::pwrite(plain.file.get(), "x", 1, 6 << kPageShift), 1);
  ASSERT_EQ(::pwrite(plain.file.get(), "x", 1, 1199 << kPageShift), 1);
  std::vector<std::pair<uint64_t, uint32_t>> found;
  ASSERT_TRUE(
      window
          ->find_present(window->runs_in(0, UINT64_MAX).at(0),
                         [&](PageRun run) { found.emplace_back(run.first.value, run.pages); })
          .has_value());
  EXPECT_EQ(found, (std::vector<std::pair<uint64_t, uint32_t>>{{5, 2}, {1199, 1}}));
}

TEST(SharedWindow, EndsOfProcessesAreSeenAndOthersGoOn) {
  Shared rig;
  rig.window->leave(0);
  EXPECT_EQ(rig.window->member_count(), 1U);
  EXPECT_TRUE(rig.window->alive());
  ASSERT_EQ(rig.window->install(PageIndex{3}, Page(7).bytes(), Protection::kWritable),
            Outcome::kDone);
  EXPECT_EQ(rig.b->at(3), 7);
  rig.window->leave(1);
  EXPECT_FALSE(rig.window->alive());
  // A page that nobody maps is kept for who maps it again.
  ASSERT_EQ(rig.window->install(PageIndex{4}, Page(8).bytes(), Protection::kWriteProtected),
            Outcome::kDone);
  rig.join(*rig.a);
  Touch in_a(rig.a->at(4));
  EXPECT_EQ(rig.expect_no_event(in_a), 8);
}

TEST(SharedWindow, MoreProcessesThanBitsAreRefused) {
  Shared rig;
  for (size_t i = 2; i < SharedWindow::kMaxMembers; ++i) rig.join(*rig.a);
  auto sent = adopt_shared_userfaultfd(Fd(::fcntl(rig.a->uffd->fd(), F_DUPFD_CLOEXEC, 0)));
  const auto refused = rig.window->join(99, std::move(*sent), {}, ::getpid());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
}

TEST(SharedWindow, PartThatOneProcessHasUnmappedIsProtectedInTheOthers) {
  Shared rig;
  ASSERT_EQ(rig.window->install(PageIndex{3}, Page(7).bytes(), Protection::kWritable),
            Outcome::kDone);
  // Another mapping in its place: the stack of a thread of this test would be there else.
  uint8_t* const place = const_cast<uint8_t*>(rig.b->memory);
  ASSERT_EQ(
      ::mmap(place, Mapped::bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
      place);
  EXPECT_EQ(rig.window->protect({PageIndex{3}, 1}), Outcome::kDone);
  Touch in_a(rig.a->at(3), 8);
  EXPECT_EQ(rig.await_fault().kind, FaultKind::kWriteProtected);
  EXPECT_EQ(rig.window->unprotect({PageIndex{3}, 1}), Outcome::kDone);
  EXPECT_EQ(in_a.seen(), 8);
  // Where the file is mapped past the userfaultfd nothing is safe.
  ASSERT_EQ(::mmap(place, Mapped::bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   rig.file.get(), 0),
            place);
  EXPECT_EQ(rig.window->protect({PageIndex{3}, 1}), Outcome::kUnmapped);
}

// The kernel cannot split a huge page of which somebody has a reference: the hole is zeros then.
TEST(SharedWindow, PageThatAHoleLeavesInTheCacheIsOverwritten) {
  constexpr size_t kHuge = size_t{2} << 20;
  const Fd file(::memfd_create("huge", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), kHuge), 0);
  auto* place = static_cast<uint8_t*>(
      ::mmap(nullptr, 2 * kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  place += kHuge - reinterpret_cast<uint64_t>(place) % kHuge;
  auto* memory = static_cast<uint8_t*>(
      ::mmap(place, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0));
  std::memset(memory, 0x11, kHuge);
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1
  if (::madvise(memory, kHuge, kCollapse) != 0)
    GTEST_SKIP() << "no huge page could be made: " << std::strerror(errno);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const Fd ends[2] = {Fd(pipe[0]), Fd(pipe[1])};
  const iovec held{memory + 9 * kPageBytes, 1};
  ASSERT_EQ(::vmsplice(ends[1].get(), &held, 1, 0), 1);

  auto uffd = Userfaultfd::create(shared_features());
  ASSERT_TRUE(uffd.has_value());
  ASSERT_TRUE(uffd->register_shared_range(reinterpret_cast<uint64_t>(memory), kHuge).has_value());
  std::vector<SharedFile> files;
  files.push_back(std::move(*adopt_shared_file(Fd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)))));
  auto window = std::move(*SharedWindow::create(std::move(files)));
  ASSERT_TRUE(
      window
          ->join(0, std::move(*uffd),
                 {{reinterpret_cast<uint64_t>(memory), {PageIndex{0}, kHuge >> kPageShift}}},
                 ::getpid())
          .has_value());
  ASSERT_TRUE(window->find_present({PageIndex{0}, 512}, [](PageRun) {}).has_value());
  const PageRun run{PageIndex{4}, 8};
  ASSERT_EQ(window->protect(run), Outcome::kDone);
  std::array<DropResult, 1> results;
  ASSERT_TRUE(window->drop({&run, 1}, results, Nanoseconds(0)).has_value());
  ASSERT_EQ(results[0].sys_errno, 0);
  const off_t at = 5 * kPageBytes;
  RecordProperty("stays_in_the_cache", ::lseek(file.get(), at, SEEK_DATA) == at ? 1 : 0);
  EXPECT_EQ(window->install(PageIndex{5}, Page(7).bytes(), Protection::kWriteProtected),
            Outcome::kDone);
  std::array<std::byte, kPageBytes> bytes;
  const PageIndex page{5};
  ASSERT_TRUE(window->copy_out({&page, 1}, bytes).has_value());
  EXPECT_EQ(bytes[0], std::byte{7});
  // Of several, each is placed alone.
  std::vector<std::byte> two(2 * kPageBytes, std::byte{8});
  if (window->install(PageIndex{6}, two, Protection::kWritable) == Outcome::kUnmapped) {
    EXPECT_EQ(
        window->install(PageIndex{6}, std::span(two).first(kPageBytes), Protection::kWritable),
        Outcome::kDone);
  }
  const PageIndex next{6};
  ASSERT_TRUE(window->copy_out({&next, 1}, bytes).has_value());
  EXPECT_EQ(bytes[0], std::byte{8});
  ::munmap(memory, kHuge);
}

TEST(SharedWindow, ZerosThatAStrangersTouchHasLeftAreOverwritten) {
  Shared rig;
  for (const uint64_t page : {3, 4, 5})
    ASSERT_EQ(rig.window->install(PageIndex{page}, Page(7).bytes(), Protection::kWritable),
              Outcome::kDone);
  rig.drop({PageIndex{3}, 3});
  auto* stranger = static_cast<volatile uint8_t*>(
      ::mmap(nullptr, Mapped::bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, rig.file.get(), 0));
  EXPECT_EQ(stranger[3 << kPageShift], 0);  // it has not handed its mapping over
  stranger[4 << kPageShift] = 1;
  std::vector<std::byte> both(2 * kPageBytes, std::byte{8});
  EXPECT_EQ(rig.window->install(PageIndex{3}, both, Protection::kWriteProtected),
            Outcome::kUnmapped);
  for (const uint64_t page : {3, 4, 5})
    (void)rig.window->install(PageIndex{page}, Page(8).bytes(), Protection::kWriteProtected);
  Touch in_b(rig.b->at(3));
  EXPECT_EQ(rig.expect_no_event(in_b), 8);
  EXPECT_EQ(stranger[4 << kPageShift], 1);  // what it has written is what is there
  EXPECT_EQ(stranger[5 << kPageShift], 8);
  ::munmap(const_cast<uint8_t*>(stranger), Mapped::bytes());
}

sigjmp_buf bus_error;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

TEST(SharedWindow, LostPageIsABusErrorInEachProcess) {
  Shared rig;
  ASSERT_EQ(rig.window->protect({PageIndex{0}, kPages}), Outcome::kDone);
  ASSERT_TRUE(rig.window->poison({PageIndex{3}, 1}).has_value());
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { siglongjmp(bus_error, 1); };
  ASSERT_EQ(::sigaction(SIGBUS, &action, &before), 0);
  for (Mapped* mapped : {&*rig.a, &*rig.b}) {
    if (sigsetjmp(bus_error, 1) == 0) {
      const volatile uint8_t read = mapped->at(3);  // nothing else is left behind by the jump
      ADD_FAILURE() << "the touch has read " << int{read};
    }
  }
  ::sigaction(SIGBUS, &before, nullptr);
}

// ---- what a process has sent ----

TEST(SharedMemory, FilesFromWhichNoHoleCanBeMadeAreRefused) {
  EXPECT_FALSE(adopt_shared_file(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))).has_value());
  EXPECT_FALSE(adopt_shared_file(Fd(::memfd_create("empty", MFD_CLOEXEC))).has_value());
  Fd torn(::memfd_create("torn", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(torn.get(), 4097), 0);
  EXPECT_FALSE(adopt_shared_file(std::move(torn)).has_value());
  Fd sealed(::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(sealed.get(), 4096), 0);
  ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  const auto refused = adopt_shared_file(std::move(sealed));
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().context.find("F_SEAL_WRITE"), std::string::npos);
}

TEST(SharedMemory, UserfaultfdWithEventsOrWithoutFeaturesIsRefused) {
  for (const Features& features :
       {Features{.required = shared_features().required | UFFD_FEATURE_EVENT_REMOVE, .wanted = 0},
        Features{.required = UFFD_FEATURE_PAGEFAULT_FLAG_WP, .wanted = 0}}) {
    auto made = Userfaultfd::create(features);
    ASSERT_TRUE(made.has_value());
    const auto refused = adopt_shared_userfaultfd(std::move(*made).release());
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  }
}

struct Claims : Rig {
  Claims() {
    files.push_back(std::move(*adopt_shared_file(Fd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)))));
    for (const Mapped* mapped : {&*a, &*b})
      claims.push_back({mapped->address(0), Mapped::bytes(), 0, 0});
  }
  std::string refused(Touched touched = Touched::kAllowed) const {
    const Status status = check_claims(::getpid(), files, claims, touched);
    return status ? "" : status.error().context;
  }
  std::vector<SharedFile> files;
  std::vector<SharedClaim> claims;
};

TEST(SharedMemory, MappingsAreWhatTheProcessSays) {
  Claims rig;
  EXPECT_EQ(rig.refused(), "");
  rig.claims[1].offset = kPageBytes;
  EXPECT_NE(rig.refused().find("is in no region"), std::string::npos);
  rig.claims.pop_back();
  EXPECT_NE(rig.refused().find("is in no region"), std::string::npos);
  rig.claims.push_back({4096, 4096, 0, 0});
  rig.b.reset();
  EXPECT_NE(rig.refused().find("not mapped so"), std::string::npos);
}

TEST(SharedMemory, MappingThatOthersCouldReachIsRefused) {
  Claims rig;
  auto* memory = const_cast<uint8_t*>(rig.a->memory);
  ASSERT_EQ(::madvise(memory, Mapped::bytes(), MADV_DOFORK), 0);
  EXPECT_NE(rig.refused().find("MADV_DONTFORK"), std::string::npos);
  ASSERT_EQ(::madvise(memory, Mapped::bytes(), MADV_DONTFORK), 0);
  ASSERT_TRUE(rig.a->uffd->unregister_range(rig.a->address(0), Mapped::bytes()).has_value());
  EXPECT_NE(rig.refused().find("UFFDIO_REGISTER"), std::string::npos);
}

TEST(SharedMemory, MappingThatWasTouchedIsRefusedWhereOthersShareIt) {
  Claims rig;
  ASSERT_EQ(rig.b->uffd->zero(rig.b->address(9), kPageBytes, ZeroFrames::kShared).outcome,
            Outcome::kDone);
  EXPECT_EQ(rig.refused(), "");
  EXPECT_NE(rig.refused(Touched::kRefused).find("was touched"), std::string::npos);
}

}  // namespace
}  // namespace farpage::uffd

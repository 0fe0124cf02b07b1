#include "rdma/file/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/mapping.h"

namespace farpage::rdma {
namespace {

struct SpillFile : testing::Test {
  static constexpr uint64_t kSlabBytes = uint64_t{2} << 20;
  static constexpr size_t kBufferPages = 256;
  static constexpr Seconds kPatience{60};

  SpillFile() { std::filesystem::create_directories(folder); }
  ~SpillFile() override { std::filesystem::remove_all(folder); }

  FileOptions options(uint64_t slabs = 4) const {
    return {.folder = folder, .bytes = slabs * kSlabBytes, .slab_bytes = kSlabBytes};
  }
  std::unique_ptr<OpenFile> make(uint64_t slabs = 4) const {
    auto made = OpenFile::make(options(slabs));
    EXPECT_TRUE(made.has_value()) << made.error().message();
    return std::move(*made);
  }
  Result<std::unique_ptr<Channel>> try_connect(OpenFile& file, uint64_t session = 0,
                                               Milliseconds timeout = Milliseconds(1000)) {
    const auto transport = file.transport();
    return transport->connect(
        {TransportKind::kFile, "any"},
        {.buffer = buffer.bytes(), .session = session, .connect_timeout = timeout}, {});
  }
  std::unique_ptr<Channel> connect(OpenFile& file, uint64_t session = 0) {
    // As the connector does: the disk may have to end something first.
    const Instant start = SteadyClock::read();
    auto channel = try_connect(file, session);
    while (!channel && channel.error().code == ErrorCode::kTimedOut &&
           SteadyClock::read() - start < kPatience)
      channel = try_connect(file, session);
    EXPECT_TRUE(channel.has_value()) << channel.error().message();
    return std::move(*channel);
  }
  Operation operation(OperationKind kind, const SlabFile::Place& place, size_t page, size_t pages,
                      size_t at = 0, uint64_t token = 1) const {
    return {.kind = kind,
            .local = buffer.bytes().subspan(at * kPageBytes, pages * kPageBytes),
            .remote = {place.address.value + page * kPageBytes},
            .key = place.key,
            .generation = place.generation,
            .token = token};
  }
  static CompletionStatus run(Channel& channel, const Operation& operation) {
    EXPECT_EQ(channel.post(std::span(&operation, 1)), 1U);
    std::array<Completion, 4> completions;
    EXPECT_EQ(channel.wait(completions, kPatience), 1U);
    EXPECT_EQ(completions[0].token, operation.token);
    return completions[0].status;
  }
  void fill(size_t at, size_t pages, int byte) const {
    std::memset(buffer.data() + at * kPageBytes, byte, pages * kPageBytes);
  }
  bool holds(size_t at, size_t pages, int byte) const {
    const auto all = buffer.bytes().subspan(at * kPageBytes, pages * kPageBytes);
    return std::ranges::all_of(all, [&](std::byte b) { return b == static_cast<std::byte>(byte); });
  }

  const std::string folder = "file_test." + std::to_string(::getpid());
  const Mapping buffer = Mapping::anonymous(kBufferPages * kPageBytes).value();
};

TEST_F(SpillFile, WhatWasWrittenIsReadFromEachPlace) {
  const auto file = make();
  const auto channel = connect(*file);
  EXPECT_EQ(channel->kind(), TransportKind::kFile);
  std::array<SlabFile::Place, 4> places;
  for (SlabFile::Place& place : places) place = file->take().value();
  EXPECT_EQ(file->free_places(), 0U);
  EXPECT_FALSE(file->take().has_value());
  for (size_t i = 0; i < places.size(); ++i) {
    fill(0, 64, static_cast<int>(i + 1));
    EXPECT_EQ(run(*channel, operation(OperationKind::kWrite, places[i], 448, 64)),
              CompletionStatus::kOk);
  }
  for (size_t i = 0; i < places.size(); ++i) {
    fill(0, 2, 0xff);
    EXPECT_EQ(run(*channel, operation(OperationKind::kRead, places[i], 511, 1)),
              CompletionStatus::kOk);
    EXPECT_TRUE(holds(0, 1, static_cast<int>(i + 1)));
    EXPECT_TRUE(holds(1, 1, 0xff));
  }
}

TEST_F(SpillFile, ManyOperationsAtOnceEndOnceEach) {
  const auto file = make();
  const auto channel = connect(*file);
  const SlabFile::Place place = file->take().value();
  for (size_t page = 0; page < kBufferPages; ++page) fill(page, 1, static_cast<int>(page));
  for (const OperationKind kind : {OperationKind::kWrite, OperationKind::kRead}) {
    std::array<int, kBufferPages> ended{};
    size_t posted = 0;
    size_t completed = 0;
    const Instant start = SteadyClock::read();
    while (completed < kBufferPages && SteadyClock::read() - start < kPatience) {
      std::vector<Operation> operations;
      for (size_t page = posted; page < kBufferPages; ++page)
        operations.push_back(operation(kind, place, page, 1, page, page));
      posted += channel->post(operations);
      std::array<Completion, 16> completions;
      const size_t got = channel->wait(completions, kPatience);
      for (size_t i = 0; i < got; ++i) {
        EXPECT_EQ(completions[i].status, CompletionStatus::kOk);
        ++ended.at(completions[i].token);
      }
      completed += got;
    }
    EXPECT_TRUE(std::ranges::all_of(ended, [](int times) { return times == 1; }));
    if (kind == OperationKind::kWrite) fill(0, kBufferPages, 0xff);
  }
  for (size_t page = 0; page < kBufferPages; ++page)
    EXPECT_TRUE(holds(page, 1, static_cast<int>(page))) << page;
}

TEST_F(SpillFile, OperationsThatAreWrongAreRefusedAndTheChannelStaysUsable) {
  const auto file = make();
  const auto channel = connect(*file);
  const SlabFile::Place place = file->take().value();
  const Operation good = operation(OperationKind::kRead, place, 0, 1);
  const auto changed = [&](auto change) {
    Operation operation = good;
    change(operation);
    return run(*channel, operation);
  };
  EXPECT_EQ(changed([](Operation& o) { o.key.secret[1] ^= 1; }), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(changed([](Operation& o) { o.key.value ^= 1; }), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(changed([](Operation& o) { ++o.generation.value; }), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(changed([](Operation& o) { o.generation.value = 0; }), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(changed([](Operation& o) { o.remote.value += kSlabBytes; }),
            CompletionStatus::kRemoteAccess)
      << "that place is not in use";
  EXPECT_EQ(changed([](Operation& o) { o.remote.value = 100 * kSlabBytes; }),
            CompletionStatus::kRemoteAccess);
  EXPECT_EQ(run(*channel, operation(OperationKind::kRead, place, 511, 2)),
            CompletionStatus::kRemoteAccess)
      << "across the end of the place";
  EXPECT_EQ(changed([](Operation& o) { o.remote.value += 512; }), CompletionStatus::kLocalError);
  EXPECT_EQ(changed([](Operation& o) { o.local = o.local.first(512); }),
            CompletionStatus::kLocalError);
  EXPECT_TRUE(channel->usable());
  EXPECT_EQ(run(*channel, good), CompletionStatus::kOk);
}

TEST_F(SpillFile, PlaceThatWasGivenBackIsRefusedAndThenAnothersUnderItsNewGeneration) {
  const auto file = make(1);
  const auto channel = connect(*file);
  const SlabFile::Place first = file->take().value();
  EXPECT_EQ(run(*channel, operation(OperationKind::kWrite, first, 0, 1)), CompletionStatus::kOk);
  file->give_back(first.address, Generation{first.generation.value + 1});
  EXPECT_EQ(file->free_places(), 0U) << "that was not its generation";
  file->give_back(first.address, first.generation);
  EXPECT_EQ(file->free_places(), 1U);
  EXPECT_EQ(run(*channel, operation(OperationKind::kRead, first, 0, 1)),
            CompletionStatus::kRemoteAccess);
  const SlabFile::Place second = file->take().value();
  EXPECT_EQ(second.address, first.address);
  EXPECT_NE(second.generation, first.generation);
  EXPECT_EQ(run(*channel, operation(OperationKind::kWrite, first, 0, 1)),
            CompletionStatus::kRemoteAccess);
  EXPECT_EQ(run(*channel, operation(OperationKind::kWrite, second, 0, 1)), CompletionStatus::kOk);
}

TEST_F(SpillFile, PlaceIsNotGivenAgainWhileAnOperationOfItsFormerSlabIsUnderWay) {
  const auto file = make(1);
  const auto channel = connect(*file);
  for (int round = 0; round < 50; ++round) {
    const SlabFile::Place place = file->take().value();
    const Operation write = operation(OperationKind::kWrite, place, 0, 64);
    ASSERT_EQ(channel->post(std::span(&write, 1)), 1U);
    file->give_back(place.address, place.generation);
    EXPECT_FALSE(file->take().has_value()) << "its WRITE was not taken by the channel yet";
    std::array<Completion, 4> completions;
    ASSERT_EQ(channel->wait(completions, kPatience), 1U);
    EXPECT_EQ(completions[0].status, CompletionStatus::kRemoteAccess);
  }
  EXPECT_TRUE(file->take().has_value());
}

TEST_F(SpillFile, NewerChannelOfASessionFencesTheFormerOne) {
  const auto file = make();
  const SlabFile::Place place = file->take().value();
  const auto former = connect(*file, 7);
  const auto other = connect(*file, 8);
  EXPECT_EQ(run(*former, operation(OperationKind::kWrite, place, 0, 1)), CompletionStatus::kOk);
  const Operation write = operation(OperationKind::kWrite, place, 1, 1);
  ASSERT_EQ(former->post(std::span(&write, 1)), 1U);
  EXPECT_EQ(try_connect(*file, 7, Milliseconds(20)).error().code, ErrorCode::kTimedOut)
      << "the former one has not taken the completion";
  std::array<Completion, 4> completions;
  ASSERT_EQ(former->wait(completions, kPatience), 1U);
  EXPECT_EQ(completions[0].status, CompletionStatus::kOk);
  const auto newer = connect(*file, 7);
  EXPECT_EQ(former->post(std::span(&write, 1)), 0U);
  EXPECT_FALSE(former->usable());
  EXPECT_NE(former->why_broken().find("newer"), std::string::npos);
  EXPECT_EQ(run(*newer, write), CompletionStatus::kOk);
  EXPECT_EQ(run(*other, write), CompletionStatus::kOk);
}

TEST_F(SpillFile, ChannelThatEndsWithOperationsInFlightIsWaitedFor) {
  const auto file = make();
  const SlabFile::Place place = file->take().value();
  for (int round = 0; round < 20; ++round) {
    fill(0, 64, round);
    auto channel = connect(*file, 7);
    const Operation write = operation(OperationKind::kWrite, place, 0, 64);
    ASSERT_EQ(channel->post(std::span(&write, 1)), 1U);
    channel.reset();
    fill(0, 64, 0xee);  // the buffer is the caller's again
    const auto next = connect(*file, 7);
    ASSERT_EQ(run(*next, operation(OperationKind::kRead, place, 0, 64)), CompletionStatus::kOk);
    EXPECT_TRUE(holds(0, 64, round)) << "it was under way, and has ended";
  }
}

TEST_F(SpillFile, WhatIsNotDoneInTimeBreaksTheChannel) {
  const auto file = make();
  const SlabFile::Place place = file->take().value();
  const auto transport = file->transport();
  const auto channel = transport->connect(
      {TransportKind::kFile, "any"},
      {.buffer = buffer.bytes(), .session = 3, .operation_timeout = Nanoseconds(0)}, {});
  ASSERT_TRUE(channel.has_value());
  std::array<Completion, 4> completions;
  // A disk may be faster than the first look.
  for (int tries = 0; tries < 10000 && (*channel)->usable(); ++tries) {
    const std::array<Operation, 2> two{operation(OperationKind::kWrite, place, 0, 64, 0, 1),
                                       operation(OperationKind::kWrite, place, 64, 64, 64, 2)};
    ASSERT_EQ((*channel)->post(two), 2U);
    size_t ended = 0;
    while (ended < 2) {
      const size_t got = (*channel)->poll(completions);
      if (!(*channel)->usable() && got == 2) {
        EXPECT_EQ(completions[0].status, CompletionStatus::kTimedOut);
        EXPECT_EQ(completions[1].status, CompletionStatus::kFlushed);
      }
      ended += got;
    }
    EXPECT_EQ((*channel)->poll(completions), 0U) << "each ends once";
  }
  EXPECT_FALSE((*channel)->usable());
  EXPECT_EQ(run(*connect(*file, 3), operation(OperationKind::kRead, place, 0, 1)),
            CompletionStatus::kOk);
}

TEST_F(SpillFile, WhatTheDiskRefusesIsALocalErrorAndTheChannelStaysUsable) {
  const auto file = make(2);
  const auto channel = connect(*file);
  const SlabFile::Place first = file->take().value();
  const SlabFile::Place second = file->take().value();
  EXPECT_EQ(run(*channel, operation(OperationKind::kWrite, second, 0, 1)), CompletionStatus::kOk);
  // As if the end of the disk were gone.
  const int descriptor = file->leave().value().descriptor;
  ASSERT_EQ(::ftruncate(descriptor, kSlabBytes), 0);
  EXPECT_EQ(run(*channel, operation(OperationKind::kRead, second, 0, 1)),
            CompletionStatus::kLocalError);
  EXPECT_EQ(run(*channel, operation(OperationKind::kRead, first, 0, 1)), CompletionStatus::kOk);
  EXPECT_TRUE(channel->usable());
  ::close(descriptor);
}

TEST_F(SpillFile, SuccessorOfAKilledProcessReadsWhatItHadWritten) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const auto made = make();
  const FileHeirloom heirloom = made->leave().value();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // the process that is killed: with operations in flight
    auto file = OpenFile::take_over(options(), heirloom);
    if (!file || !(*file)->take_again(RemoteAddress{kSlabBytes}, Generation{5})) ::_exit(1);
    const SlabFile::Place place{RemoteAddress{kSlabBytes}, heirloom.key, Generation{5}};
    auto channel = try_connect(**file, 7);
    if (!channel) ::_exit(2);
    fill(0, 64, 0x11);
    if (run(**channel, operation(OperationKind::kWrite, place, 0, 64)) != CompletionStatus::kOk)
      ::_exit(3);
    for (size_t page = 64; page < 512; page += 64) {
      const Operation write = operation(OperationKind::kWrite, place, page, 64);
      (void)(*channel)->post(std::span(&write, 1));
    }
    (void)::write(ends[1], "x", 1);
    while (true) ::pause();
  }
  // The former process has the lock: no two write at once.
  char byte = 0;
  ::close(ends[1]);
  EXPECT_EQ(::read(ends[0], &byte, 1), 1) << "the child ended early";
  ::close(ends[0]);
  auto file = OpenFile::take_over(options(), heirloom);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(try_connect(**file, 7, Milliseconds(20)).error().code, ErrorCode::kTimedOut);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;

  ASSERT_TRUE((*file)->take_again(RemoteAddress{kSlabBytes}, Generation{5}));
  EXPECT_FALSE((*file)->take_again(RemoteAddress{kSlabBytes}, Generation{5})) << "it is in use";
  EXPECT_FALSE((*file)->take_again(RemoteAddress{kSlabBytes + 1}, Generation{5}));
  EXPECT_FALSE((*file)->take_again(RemoteAddress{4 * kSlabBytes}, Generation{5}));
  const auto channel = connect(**file, 7);
  const SlabFile::Place place{RemoteAddress{kSlabBytes}, heirloom.key, Generation{5}};
  fill(0, 64, 0xff);
  ASSERT_EQ(run(*channel, operation(OperationKind::kRead, place, 0, 64)), CompletionStatus::kOk);
  EXPECT_TRUE(holds(0, 64, 0x11));
  EXPECT_EQ((*file)->take()->address, RemoteAddress{0});
  ::close(heirloom.descriptor);
}

TEST_F(SpillFile, HasNoNameAndTakesItsRoomWhenItIsMade) {
  const auto file = make();
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const int descriptor = file->leave().value().descriptor;
  struct stat facts {};
  ASSERT_EQ(::fstat(descriptor, &facts), 0);
  EXPECT_EQ(facts.st_size, static_cast<off_t>(4 * kSlabBytes));
  EXPECT_GE(facts.st_blocks * 512, facts.st_size);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  ::close(descriptor);
}

TEST_F(SpillFile, WhereItCannotBeIsSaid) {
  const auto problem = [](const FileOptions& options) {
    const auto made = OpenFile::make(options);
    return made ? Error{ErrorCode::kConflict, "it was made"} : made.error();
  };
  FileOptions absent = options();
  absent.folder += "/absent";
  EXPECT_NE(problem(absent).message().find("absent"), std::string::npos);
  std::ofstream(folder + "/plain") << "content";
  FileOptions plain = options();
  plain.folder += "/plain";
  EXPECT_EQ(problem(plain).code, ErrorCode::kInvalid);
  EXPECT_EQ(std::filesystem::file_size(folder + "/plain"), 7U) << "it is not touched";
  FileOptions small = options();
  small.bytes = kSlabBytes - 1;
  EXPECT_EQ(problem(small).code, ErrorCode::kInvalid);
  FileOptions large = options(uint64_t{1} << 23);  // 16 TiB
  const Error full = problem(large);
  EXPECT_EQ(full.code, ErrorCode::kExhausted) << full.message();
  EXPECT_NE(full.message().find("no room"), std::string::npos) << full.message();
  EXPECT_NE(full.message().find(folder), std::string::npos) << full.message();
  if (std::filesystem::exists("/dev/shm")) {
    FileOptions memory = options();
    memory.folder = "/dev/shm";
    EXPECT_EQ(problem(memory).code, ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace farpage::rdma

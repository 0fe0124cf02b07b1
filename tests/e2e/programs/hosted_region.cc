// Calls of a region that the pager of the host serves. Arguments: its socket. Prints what went
// wrong, or "right".
#include <farpage/region.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr size_t kPage = 4096;

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  std::exit(1);
}

template <typename Result>
void expect_done(const Result& result, const char* what) {
  if (result) return;
  std::printf("%s: %s\n", what, result.error().message.c_str());
  std::exit(1);
}

farpage::RegionOptions options_for(const char* pager, uint64_t bytes) {
  farpage::RegionOptions options;
  options.name = "hosted";
  options.bytes = bytes;
  options.local_bytes = 4 * kMib;
  options.pager = pager;
  return options;
}

uint64_t* word(const farpage::Region& region, size_t page) {
  return reinterpret_cast<uint64_t*>(region.bytes().data() + page * kPage);
}

size_t pages_of(const farpage::Region& region) {
  return region.bytes().size() / kPage;
}

void fill(const farpage::Region& region, uint64_t version) {
  for (size_t page = 0; page < pages_of(region); ++page) *word(region, page) = version + page;
}

bool holds(const farpage::Region& region, uint64_t version) {
  for (size_t page = 0; page < pages_of(region); ++page)
    if (*word(region, page) != version + page) return false;
  return true;
}

void check_calls(farpage::Region& region) {
  const auto range = region.bytes().subspan(0, kMib);
  fill(region, 1'000'000);
  expect(holds(region, 1'000'000), "what was written");
  const farpage::RegionStats stats = region.stats();
  expect(stats.local_bytes == 4 * kMib, "local_bytes");
  expect(stats.resident_bytes > 0 && stats.resident_bytes <= 4 * kMib, "resident_bytes");
  expect(stats.away_bytes >= 8 * kMib, "away_bytes");
  expect(stats.faults_remote + stats.prefetched > 1000, "faults");
  expect(stats.fault_p50_ns > 0, "fault_p50_ns");
  expect(stats.transports == "shm", "transports");
  expect_done(region.expect(range, farpage::Region::Access::kRandom), "expect");
  expect_done(region.will_need(range), "will_need");
  expect_done(region.evict(range), "evict");
  expect_done(region.prefault(range, farpage::Region::Prefault::kForWriting), "prefault");
  expect_done(region.pin(range), "pin");
  expect(!region.pin(region.bytes().subspan(kMib, 4 * kMib)), "too much is pinned");
  expect(!region.set_local(kMib), "less than what is pinned");
  expect_done(region.unpin(range), "unpin");
  expect_done(region.set_local(2 * kMib), "set_local");
  expect(holds(region, 1'000'000), "what was written, with less local memory");
  expect(region.stats().local_bytes == 2 * kMib, "the new local_bytes");
  expect_done(region.discard(range), "discard");
  expect(*word(region, 0) == 0 && *word(region, 255) == 0, "discarded pages are zeros");
  expect(*word(region, 256) == 1'000'256, "their neighbour is not");
}

void check_refusals(const char* pager) {
  const auto refusal = [](const farpage::RegionOptions& options) {
    const auto region = farpage::Region::create(options);
    return region ? std::string("created") : region.error().message;
  };
  farpage::RegionOptions options = options_for(pager, 16 * kMib);
  options.local_bytes = uint64_t{1} << 40;
  expect(refusal(options).find("local_bytes 1T: the programs of this pager") == 0,
         "too much local");
  options = options_for("/nowhere", 16 * kMib);
  expect(refusal(options) == "pager: no farpage pager listens on /nowhere", "no pager");
  options = options_for(pager, 16 * kMib);
  options.coordinator = "http://127.0.0.1:1";
  expect(refusal(options).find("coordinator: not with pager") == 0, "two coordinators");
  options = options_for(pager, 16 * kMib);
  options.resolve_in_handler = true;
  expect(refusal(options).find("resolve_in_handler: not with pager") == 0, "who resolves");
}

// A child must leave the parent's region alone, also when it destroys its copies.
void check_children(const char* pager) {
  auto region = farpage::Region::create(options_for(pager, 16 * kMib));
  expect_done(region, "create, to fork");
  auto memory = std::make_unique<farpage::RegionMemory>(*region);
  auto* const words = static_cast<uint64_t*>(memory->allocate(8 * kMib));
  for (size_t i = 0; i < kMib; ++i) words[i] = i;
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      memory->deallocate(words, 8 * kMib);
      const bool refused = !region->discard(region->bytes()) && !region->set_local(2 * kMib);
      memory.reset();
      region = farpage::RegionError{};
      exit(refused ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    expect(status == 0, "a child");
  }
  for (size_t i = 0; i < kMib; ++i) expect(words[i] == i, "the parent's words");
  memory->deallocate(words, 8 * kMib);
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

void check_leaks(const char* pager) {
  const size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    auto region = farpage::Region::create(options_for(pager, 8 * kMib));
    expect_done(region, "create, again and again");
    fill(*region, 1);
  }
  expect(open_descriptors() == before, "descriptors are closed");
}

}  // namespace

int main(int, char** arguments) {
  const char* pager = arguments[1];
  check_refusals(pager);
  for (int round = 0; round < 3; ++round) {
    auto region = farpage::Region::create(options_for(pager, 16 * kMib));
    expect_done(region, "create");
    check_calls(*region);
  }
  auto first = farpage::Region::create(options_for(pager, 16 * kMib));
  auto second = farpage::Region::create(options_for(pager, 16 * kMib));
  expect_done(first, "the first of two");
  expect_done(second, "the second of two");
  std::thread other([&first] { fill(*first, 2'000'000); });
  fill(*second, 3'000'000);
  other.join();
  expect(holds(*first, 2'000'000) && holds(*second, 3'000'000), "two regions");
  check_children(pager);
  check_leaks(pager);
  std::printf("right\n");
  return 0;
}

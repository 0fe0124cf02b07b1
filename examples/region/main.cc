// Sorts more numbers than fit in the local budget of the region, in a std::pmr::vector.
#include <farpage/region.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <random>
#include <vector>

int main(int argc, char** argv) {
  farpage::RegionOptions options;
  options.name = "example";
  options.bytes = uint64_t{64} << 20;
  options.local_bytes = uint64_t{8} << 20;
  if (argc > 1) options.coordinator = argv[1];  // http://host:port; without one: in this process

  farpage::RegionResult<farpage::Region> region = farpage::Region::create(options);
  if (!region) {
    std::fprintf(stderr, "no region: %s\n", region.error().message.c_str());
    return 1;
  }

  farpage::RegionMemory memory(*region);
  std::pmr::vector<uint64_t> numbers(&memory);
  numbers.reserve(4'000'000);  // 32 MB, of which at most 8 MiB are resident
  std::mt19937_64 random(1);
  for (size_t i = 0; i < numbers.capacity(); ++i) numbers.push_back(random());
  std::sort(numbers.begin(), numbers.end());
  const bool sorted = std::is_sorted(numbers.begin(), numbers.end());

  // A buffer for a system call: fetched at once, not page by page.
  const auto page = std::as_bytes(std::span(numbers)).first(4096);
  const farpage::RegionStatus here = region->prefault(page, farpage::Region::Prefault::kForReading);
  if (!here) std::fprintf(stderr, "prefault: %s\n", here.error().message.c_str());

  const farpage::RegionStats stats = region->stats();
  std::printf("sorted=%s remote_faults=%" PRIu64 " prefetched=%" PRIu64 " resident_bytes=%" PRIu64
              " over %s\n",
              sorted ? "yes" : "no", stats.faults_remote, stats.prefetched, stats.resident_bytes,
              stats.transports.c_str());
  return sorted && here ? 0 : 1;
}

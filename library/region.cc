#include "library/include/farpage/region.h"

#include "library/far_memory.h"
#include "library/hosted_memory.h"
#include "library/logging.h"
#include "library/region_parts.h"
#include "library/signals.h"
#include "rdma/transport_choice.h"

namespace farpage {
namespace {

using coordinator::Client;

constexpr uint64_t kMaxBytes = uint64_t{1} << 42;

uint64_t pages_of(uint64_t bytes) {
  return (bytes + kPageBytes - 1) >> kPageShift;
}

Status check(const RegionOptions& options) {
  const auto invalid = [](std::string text) { return fail(ErrorCode::kInvalid, std::move(text)); };
  if (options.bytes == 0 || options.bytes > kMaxBytes) return invalid("bytes: from 1 to 4 TiB");
  if (!options.pager.empty() && !options.coordinator.empty())
    return invalid("coordinator: not with pager, which has its own");
  if (!options.pager.empty() && options.resolve_in_handler)
    return invalid("resolve_in_handler: not with pager, which resolves the faults");
  if (options.pager.empty() && options.coordinator.empty() && options.transport != "auto")
    return invalid("transport: needs a coordinator; without one the transport is in-process");
  return {};
}

Result<pager::PagerOptions> pager_options(const RegionOptions& options) {
  pager::PagerOptions pager;
  pager.name = options.name;
  pager.local_bytes = options.local_bytes;
  pager.replicas = options.replicas;
  pager.slab_bytes = options.slab_bytes;
  pager.workers = options.workers;
  pager.prefetch_depth = options.prefetch_pages;
  FARPAGE_TRY(compressed, pager::parse_compressed(options.compressed));
  pager.compressed = compressed;
  pager.fault_deadline = options.fault_deadline;
  pager.channel.operation_timeout = options.operation_timeout;
  FARPAGE_TRY_VOID(pager::validate(pager));
  return pager;
}

library::FaultMode fault_mode(const RegionOptions& options) {
  return options.resolve_in_handler ? library::FaultMode::kInHandler
                                    : library::FaultMode::kInWorker;
}

pager::AccessPattern pattern_of(Region::Access access) {
  switch (access) {
    case Region::Access::kNormal:
      return pager::AccessPattern::kNormal;
    case Region::Access::kSequential:
      return pager::AccessPattern::kSequential;
    case Region::Access::kRandom:
      return pager::AccessPattern::kRandom;
  }
  return pager::AccessPattern::kNormal;
}

// The pages that a range overlaps, or (kInner) those entirely inside it.
enum class Rounding : uint8_t { kOuter, kInner };
Result<uffd::PageRun> run_of(std::span<const std::byte> range, std::span<const std::byte> window,
                             Rounding rounding) {
  if (range.data() < window.data() || range.size() > window.size() ||
      static_cast<size_t>(range.data() - window.data()) > window.size() - range.size())
    return fail(ErrorCode::kInvalid, "range: must lie inside the region's bytes()");
  const auto first_byte = static_cast<uint64_t>(range.data() - window.data());
  const uint64_t end_byte = first_byte + range.size();
  const bool outer = rounding == Rounding::kOuter;
  const uint64_t first = outer ? first_byte >> kPageShift : pages_of(first_byte);
  const uint64_t end = outer ? pages_of(end_byte) : end_byte >> kPageShift;
  return uffd::PageRun{PageIndex{first}, static_cast<uint32_t>(end > first ? end - first : 0)};
}

}  // namespace

RegionError region_error(const Error& error) {
  return {static_cast<RegionErrorCode>(error.code), error.message()};
}
static_assert(static_cast<int>(RegionErrorCode::kIo) == static_cast<int>(ErrorCode::kIo));
static_assert(static_cast<int>(RegionErrorCode::kExhausted) ==
              static_cast<int>(ErrorCode::kExhausted));

namespace {

RegionStatus status_of(Status status) {
  if (status) return {};
  return region_error(status.error());
}

}  // namespace

Region::Region(std::unique_ptr<Parts> parts) noexcept : parts_(std::move(parts)) {}
Region::Region(Region&&) noexcept = default;
Region& Region::operator=(Region&&) noexcept = default;
Region::~Region() = default;

Status Region::Parts::borrow_here(const RegionOptions& options) {
  const uint64_t slabs = (options.bytes + options.slab_bytes - 1) / options.slab_bytes;
  FARPAGE_TRY(started, library::LocalCluster::start({.lend_bytes = slabs * options.slab_bytes,
                                                     .slab_bytes = options.slab_bytes,
                                                     .nodes = options.replicas}));
  FARPAGE_TRY(made, Client::create({.url = started->url(), .token = started->token()}));
  transports.push_back(started->make_transport());
  cluster = std::move(started);
  client = std::move(made);
  return {};
}

Status Region::Parts::borrow_from(const RegionOptions& options) {
  FARPAGE_TRY(choice, rdma::parse_transports(options.transport, "transport"));
  FARPAGE_TRY(chosen, rdma::make_transports(choice));
  FARPAGE_TRY(made, Client::create({.url = options.coordinator, .token = options.token}));
  transports = std::move(chosen);
  client = std::move(made);
  return {};
}

Status Region::Parts::page_here(const RegionOptions& options) {
  FARPAGE_TRY(pager, pager_options(options));
  FARPAGE_TRY_VOID(options.coordinator.empty() ? borrow_here(options) : borrow_from(options));
  FARPAGE_TRY(made, library::FarMemory::create(pages_of(options.bytes), pager, *client, transports,
                                               fault_mode(options)));
  memory = std::move(made);
  return {};
}

Status Region::Parts::page_at_host_pager(const RegionOptions& options) {
  FARPAGE_TRY(made, library::HostedMemory::create(pages_of(options.bytes),
                                                  {.pager = options.pager,
                                                   .name = options.name,
                                                   .local_bytes = options.local_bytes}));
  memory = std::move(made);
  return {};
}

RegionResult<Region> Region::create(const RegionOptions& options) {
  const auto make = [&]() -> Result<std::unique_ptr<Parts>> {
    FARPAGE_TRY_VOID(check(options));
    library::log_to_stderr_if_unset();
    const library::SignalsBlocked blocked;
    auto parts = std::make_unique<Parts>();
    FARPAGE_TRY_VOID(options.pager.empty() ? parts->page_here(options)
                                           : parts->page_at_host_pager(options));
    return parts;
  };
  Result<std::unique_ptr<Parts>> parts = make();
  if (!parts) return region_error(parts.error());
  return Region(std::move(*parts));
}

std::span<std::byte> Region::bytes() const noexcept {
  return parts_->memory->bytes();
}

RegionStatus Region::discard(std::span<const std::byte> range) {
  const Result<uffd::PageRun> run = run_of(range, bytes(), Rounding::kInner);
  if (!run) return region_error(run.error());
  if (run->pages == 0) return {};
  const library::SignalsBlocked signals;  // a fault in a handler may evict, too
  return status_of(parts_->memory->discard(*run));
}

RegionStatus Region::prefault(std::span<const std::byte> range, Prefault purpose) const {
  const std::span<std::byte> all = bytes();
  const Result<uffd::PageRun> run = run_of(range, all, Rounding::kOuter);
  if (!run) return region_error(run.error());
  if (run->pages == 0) return {};
  const uint64_t local = parts_->memory->local_pages();
  if (run->pages > local)
    return RegionError{RegionErrorCode::kExhausted,
                       "range: " + std::to_string(run->pages) + " pages are more than the " +
                           std::to_string(local) + " that local_bytes permits"};
  return status_of(parts_->memory->prefault(*run, purpose == Prefault::kForWriting));
}

RegionStatus Region::expect(std::span<const std::byte> range, Access access) {
  const Result<uffd::PageRun> run = run_of(range, bytes(), Rounding::kOuter);
  if (!run) return region_error(run.error());
  parts_->memory->advise(*run, pattern_of(access));
  return {};
}

RegionStatus Region::will_need(std::span<const std::byte> range) {
  const Result<uffd::PageRun> run = run_of(range, bytes(), Rounding::kOuter);
  if (!run) return region_error(run.error());
  const library::SignalsBlocked signals;
  parts_->memory->hint_willneed(*run);
  return {};
}

RegionStatus Region::evict(std::span<const std::byte> range) {
  const Result<uffd::PageRun> run = run_of(range, bytes(), Rounding::kInner);
  if (!run) return region_error(run.error());
  const library::SignalsBlocked signals;
  parts_->memory->hint_cold(*run);
  return {};
}

RegionStatus Region::pin(std::span<const std::byte> range) {
  const Result<uffd::PageRun> run = run_of(range, bytes(), Rounding::kOuter);
  if (!run) return region_error(run.error());
  return status_of(parts_->memory->pin(*run));
}

RegionStatus Region::unpin(std::span<const std::byte> range) {
  const Result<uffd::PageRun> run = run_of(range, bytes(), Rounding::kOuter);
  if (!run) return region_error(run.error());
  parts_->memory->unpin(*run);
  return {};
}

RegionStatus Region::set_local(uint64_t local_bytes) {
  return status_of(parts_->memory->set_local(local_bytes));
}

RegionStats Region::stats() const {
  return parts_->memory->stats();
}

}  // namespace farpage

#include "interrupted_space.h"

#include <utility>

namespace farpage::pager {

void InterruptedSpace::interrupt(Call call, PageIndex page, std::function<void()> meanwhile) {
  const std::lock_guard lock(mutex_);
  call_ = call;
  interrupted_page_ = page;
  meanwhile_ = std::move(meanwhile);
}

std::future<void> InterruptedSpace::next_write_fault_handled(PageIndex page) {
  const std::lock_guard lock(mutex_);
  awaited_page_ = page;
  awaited_ = true;
  handled_ = {};
  return handled_.get_future();
}

size_t InterruptedSpace::read_events(std::span<uffd::Event> out) {
  {
    const std::lock_guard lock(mutex_);
    if (reader_ == std::this_thread::get_id()) {
      reader_ = {};
      handled_.set_value();
    }
  }
  const size_t count = real_->read_events(out);
  const std::lock_guard lock(mutex_);
  for (const uffd::Event& event : out.first(count)) {
    const auto* fault = std::get_if<uffd::Fault>(&event);
    if (!awaited_ || fault == nullptr || fault->page != awaited_page_) continue;
    if (fault->kind != uffd::FaultKind::kWriteProtected) continue;
    awaited_ = false;
    reader_ = std::this_thread::get_id();
  }
  return count;
}

uffd::Outcome InterruptedSpace::install(PageIndex first, std::span<const std::byte> bytes,
                                        uffd::Protection protection) {
  const uffd::Outcome outcome = real_->install(first, bytes, protection);
  pause_after(Call::kInstall, {first, static_cast<uint32_t>(bytes.size() >> kPageShift)});
  return outcome;
}

uffd::ZeroResult InterruptedSpace::zero(uffd::PageRun run, uffd::ZeroFrames frames) {
  if (run.pages == 1 || !half_of_next_run_.exchange(false)) {
    const uffd::ZeroResult result = real_->zero(run, frames);
    pause_after(Call::kZero, run);
    return result;
  }
  const uffd::ZeroResult half = real_->zero({run.first, run.pages / 2}, frames);
  return {half.pages, uffd::Outcome::kRetry};
}

uffd::Outcome InterruptedSpace::protect(uffd::PageRun run) {
  const uffd::Outcome outcome = real_->protect(run);
  pause_after(Call::kProtect, run);
  return outcome;
}

uffd::Outcome InterruptedSpace::unprotect(uffd::PageRun run) {
  const uffd::Outcome outcome = real_->unprotect(run);
  pause_after(Call::kUnprotect, run);
  return outcome;
}

void InterruptedSpace::pause_after(Call call, uffd::PageRun run) {
  std::function<void()> meanwhile;
  {
    const std::lock_guard lock(mutex_);
    if (!meanwhile_ || call != call_ || interrupted_page_ < run.first ||
        interrupted_page_.value >= run.first.value + run.pages)
      return;
    meanwhile = std::exchange(meanwhile_, nullptr);
  }
  meanwhile();
}

RigOptions interruptible(InterruptedSpace*& space) {
  return {.transport = rdma::TransportKind::kLoop,
          .workers = 2,
          .wrap_space = [&space](std::unique_ptr<uffd::AddressSpace> real) {
            auto wrapped = std::make_unique<InterruptedSpace>(std::move(real));
            space = wrapped.get();
            return wrapped;
          }};
}

}  // namespace farpage::pager

// SpaceView: an address space as an engine owns it, of a process that outlives the engine.
#pragma once

#include <vector>

#include "simulated_space.h"

namespace farpage::simulation {

// Threads: as SimulatedSpace, which outlives it.
class SpaceView final : public uffd::AddressSpace {
 public:
  explicit SpaceView(SimulatedSpace& space) : space_(space) {}
  SimulatedSpace& space() const { return space_; }

  uint64_t pages() const override { return space_.pages(); }
  uint64_t address_of(PageIndex page) const override { return space_.address_of(page); }
  std::vector<uffd::PageRun> runs_in(uint64_t begin, uint64_t end) const override {
    return space_.runs_in(begin, end);
  }
  Status add_extent(uint64_t begin, uint64_t end) override { return space_.add_extent(begin, end); }
  void remove_extent(uint64_t begin, uint64_t end) override { space_.remove_extent(begin, end); }
  size_t read_events(std::span<uffd::Event> out) override { return space_.read_events(out); }
  int event_descriptor() const override { return space_.event_descriptor(); }
  uffd::Outcome install(PageIndex first, std::span<const std::byte> bytes,
                        uffd::Protection protection) override {
    return space_.install(first, bytes, protection);
  }
  uffd::ZeroResult zero(uffd::PageRun run, uffd::ZeroFrames frames) override {
    return space_.zero(run, frames);
  }
  uffd::Outcome protect(uffd::PageRun run) override { return space_.protect(run); }
  uffd::Outcome unprotect(uffd::PageRun run) override { return space_.unprotect(run); }
  Status read(std::span<const PageIndex> present, std::span<std::byte> out) override {
    return space_.read(present, out);
  }
  Status drop(std::span<const uffd::PageRun> runs, std::span<uffd::DropResult> results,
              Nanoseconds patience) override {
    return space_.drop(runs, results, patience);
  }
  Status await_drop(std::span<uffd::DropResult> results, Nanoseconds patience) override {
    return space_.await_drop(results, patience);
  }
  Status poison(uffd::PageRun run) override { return space_.poison(run); }
  bool event_pending() override { return space_.event_pending(); }
  bool alive() override { return space_.alive(); }
  void wake(uffd::PageRun run) override { space_.wake(run); }

 private:
  SimulatedSpace& space_;
};

}  // namespace farpage::simulation

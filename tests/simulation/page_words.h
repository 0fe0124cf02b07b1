// PageWords: the page tables of a run, as its address spaces' pages show them.
#pragma once

#include <vector>

#include "atomics.h"
#include "pager/pager.h"
#include "pager/pages/page_state.h"
#include "scheduler.h"
#include "simulated_space.h"

namespace farpage::simulation {

// Checks each change of a word at the moment when it happens:
//  1. a page becomes Remote, or Empty after an eviction, only when it is absent;
//  2. a page whose write-back is complete cannot be written unnoticed;
//  3. a slot is chosen for a write-back only if no other process of the fork group refers to it.
//
// Threads: fibers of one scheduler.
class PageWords final : public WordObserver {
 public:
  explicit PageWords(Scheduler& scheduler) : scheduler_(scheduler) { observe_words(this); }
  ~PageWords() override { observe_words(nullptr); }

  // `group`: of the related processes.
  void add(const pager::Pager& pager, const SimulatedSpace& space, uint32_t group);
  void remove(const SimulatedSpace& space);
  pager::PageWord word(const SimulatedSpace& space, PageIndex page) const;

  void changed(const uint32_t* word, uint32_t from, uint32_t to) override;

 private:
  struct Table {
    const uint32_t* words;
    const SimulatedSpace* space;
    uint32_t group;
  };
  void check(const Table& table, PageIndex page, pager::PageWord from, pager::PageWord to) const;
  void check_slot(const Table& table, PageIndex page, pager::PageWord to) const;

  Scheduler& scheduler_;
  std::vector<Table> tables_;
};

}  // namespace farpage::simulation

// ClusterChoice: whether the neighbours of a page that faults are fetched with it.
//
// Pages that a program puts side by side are often used together, in an order in which no stream
// is seen. Whether that is so where the fault is cannot be seen once the neighbours are fetched,
// because a page that is present does not fault. So one cluster in eight is never fetched as a
// whole. In this control group it is watched whether the neighbours of a page that came back fault
// soon, and as large a part of the neighbours would be used elsewhere in the same piece of memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "pager/fault/cluster.h"
#include "pager/pages/page_table.h"
#include "pager/stats.h"

namespace farpage::pager {

// Threads: any. When two threads ask at the same time, neither waits, and the second one gets no
// cluster.
// Invariant: of the pages that were named, those that the control group gives no reason to expect
// to be used are at most kMostUnused of the pages that come in where clusters are fetched.
// Memory of zeros is a choice that has seen nothing.
class ClusterChoice {
 public:
  // A fault that belongs to no stream fetches `page`; `word`: its word while Remote. Returns the
  // neighbours that are to be fetched with it: Remote, and gone at about the same time.
  // `age_clock`: that of Target.
  Cluster choose(const PageTable& table, PageIndex page, PageWord word, uint64_t age_clock);

  // Of the control group: neighbours that were watched, and those of them that faulted soon.
  uint64_t watched() const { return watched_.get(); }
  uint64_t used() const { return used_.get(); }

 private:
  // Of all clusters, one in as many is in the control group.
  static constexpr uint32_t kControlEvery = 8;
  // A piece of memory has its own record: one program has several kinds of data. Pieces whose
  // numbers are equal modulo kPieces share one.
  static constexpr uint32_t kPieceShift = 13;  // pages: 32 MiB
  static constexpr uint32_t kPieces = 64;
  static constexpr int kPartShift = 16;                 // the age clock counts 2^32 in an epoch
  static constexpr uint32_t kSoon = uint32_t{1} << 16;  // parts: one epoch
  static constexpr int kTogether = 1;                   // epochs between two departures
  static constexpr float kLeastUsed = 0.65F;
  // Neighbours that were watched and not used, before the first real one.
  static constexpr float kPrior = 16;
  static constexpr float kMemory = 512;  // neighbours; then both counts are halved
  static constexpr float kMostUnused = 0.3F;
  static constexpr float kMostCredit = 1024;  // pages
  static constexpr uint32_t kTrials = 256;

  // Written by whoever is alone. Most faults only read it, so that it stays in the caches of all
  // CPUs.
  struct Piece {
    std::atomic<float> watched{0};
    std::atomic<float> used{0};
    float share() const {
      return used.load(std::memory_order_relaxed) /
             (watched.load(std::memory_order_relaxed) + kPrior);
    }
  };
  // A cluster of the control group of which a page came back, and when.
  struct Trial {
    uint32_t tag = 0;    // the cluster's number plus 1, modulo 2^32; 0: none
    uint32_t since = 0;  // age clock, in parts of an epoch, modulo 2^32
    uint8_t members = 0;
  };

  static bool left_together(PageWord a, PageWord b);
  static Cluster neighbours(const PageTable& table, PageIndex page, PageWord word);
  void watch(Piece& piece, const Cluster& cluster, PageIndex page, uint64_t age_clock);
  bool may_fetch(const Piece& piece, const Cluster& cluster);

  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::array<Piece, kPieces> pieces_{};
  std::array<Trial, kTrials> trials_{};
  float credit_ = 0;  // pages that may come in without use
  Counter watched_, used_;
};

}  // namespace farpage::pager

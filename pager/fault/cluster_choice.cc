#include "pager/fault/cluster_choice.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace farpage::pager {
namespace {

// Spreads the numbers of clusters, of which programs use regular ones (Knuth's multiplicative
// hashing).
uint64_t hash_of(uint64_t cluster) {
  return cluster * 0x9E3779B97F4A7C15 >> 32;
}

}  // namespace

bool ClusterChoice::left_together(PageWord a, PageWord b) {
  return std::abs(static_cast<int8_t>(a.epoch() - b.epoch())) <= kTogether;
}

Cluster ClusterChoice::neighbours(const PageTable& table, PageIndex page, PageWord word) {
  Cluster cluster{PageIndex{page.value / Cluster::kPages * Cluster::kPages}};
  for (uint32_t i = 0; i < Cluster::kPages; ++i) {
    const PageIndex neighbour{cluster.first.value + i};
    if (neighbour == page) continue;
    if (neighbour.value >= table.pages()) break;
    const PageWord other = table.load(neighbour);
    if (can_be_read(other) && left_together(other, word)) cluster.members |= 1U << i;
  }
  return cluster;
}

Cluster ClusterChoice::choose(const PageTable& table, PageIndex page, PageWord word,
                              uint64_t age_clock) {
  Piece& piece = pieces_[(page.value >> kPieceShift) % kPieces];
  const bool is_control = hash_of(page.value / Cluster::kPages) % kControlEvery == 0;
  if (!is_control && piece.share() < kLeastUsed) return {};
  const Cluster cluster = neighbours(table, page, word);
  if (busy_.test_and_set(std::memory_order_acquire)) return {};
  bool fetch = false;
  if (is_control) {
    watch(piece, cluster, page, age_clock);
  } else {
    fetch = may_fetch(piece, cluster);
  }
  busy_.clear(std::memory_order_release);
  return fetch ? cluster : Cluster{};
}

// A trial that another cluster displaces has shown what it has until then.
void ClusterChoice::watch(Piece& piece, const Cluster& cluster, PageIndex page,
                          uint64_t age_clock) {
  const uint64_t number = page.value / Cluster::kPages;
  Trial& trial = trials_[hash_of(number) / kControlEvery % kTrials];
  float watched = piece.watched.load(std::memory_order_relaxed);
  float used = piece.used.load(std::memory_order_relaxed);
  const auto tag = static_cast<uint32_t>(number + 1);
  const auto now = static_cast<uint32_t>(age_clock >> kPartShift);
  if (trial.tag == tag && now - trial.since <= kSoon) {
    const uint32_t bit = 1U << (page.value % Cluster::kPages);
    if ((trial.members & bit) == 0) return;
    trial.members = static_cast<uint8_t>(trial.members & ~bit);
    used += 1;
    used_.add();
  } else {
    if (cluster.members == 0) return;
    trial = {tag, now, static_cast<uint8_t>(cluster.members)};
    const auto pages = static_cast<uint32_t>(std::popcount(cluster.members));
    watched_.add(pages);
    watched += static_cast<float>(pages);
    if (watched >= kMemory) {
      watched /= 2;
      used /= 2;
    }
  }
  piece.watched.store(watched, std::memory_order_relaxed);
  piece.used.store(used, std::memory_order_relaxed);
}

// Each fault earns kMostUnused of a page, and a page that is used as much; one that is not costs
// one.
bool ClusterChoice::may_fetch(const Piece& piece, const Cluster& cluster) {
  credit_ = std::min(credit_ + kMostUnused, kMostCredit);
  const auto pages = static_cast<float>(std::popcount(cluster.members));
  const float cost = pages * std::max(0.0F, 1 - (1 + kMostUnused) * piece.share());
  if (pages == 0 || cost > credit_) return false;
  credit_ -= cost;
  return true;
}

}  // namespace farpage::pager

#include "coordinator/memory_store.h"

#include <algorithm>

namespace farpage::coordinator {
namespace {

template <typename Map>
void override_with(Map& earlier, Map later) {
  for (auto& [key, value] : later) earlier.insert_or_assign(key, std::move(value));
}

template <typename Map>
void apply(const Map& changes, Map& kept) {
  for (const auto& [key, value] : changes) {
    if (value)
      kept.insert_or_assign(key, value);
    else
      kept.erase(key);
  }
}

template <typename Map, typename List>
void collect(const Map& records, List& list) {
  for (const auto& [key, record] : records) list.push_back(*record);
}

// Keeps all writes as one change relative to an empty store, without removals.
class MemoryStore final : public Store {
 public:
  std::string_view kind() const override { return "memory"; }

  Result<Snapshot> load() override {
    Snapshot snapshot;
    collect(kept_.nodes, snapshot.nodes);
    collect(kept_.regions, snapshot.regions);
    collect(kept_.revocations, snapshot.revocations);
    collect(kept_.images, snapshot.images);
    for (const auto& [key, lease] : kept_.leases) snapshot.leases.emplace(key, *lease);
    snapshot.last_sequence = kept_.last_sequence;
    return snapshot;
  }

  Status write(const Changes& changes) override {
    apply(changes.nodes, kept_.nodes);
    apply(changes.regions, kept_.regions);
    apply(changes.leases, kept_.leases);
    apply(changes.revocations, kept_.revocations);
    apply(changes.images, kept_.images);
    kept_.last_sequence = changes.last_sequence;
    return {};
  }

 private:
  Changes kept_;
};

}  // namespace

void Changes::add(Changes later) {
  override_with(nodes, std::move(later.nodes));
  override_with(regions, std::move(later.regions));
  override_with(leases, std::move(later.leases));
  override_with(revocations, std::move(later.revocations));
  override_with(images, std::move(later.images));
  last_sequence = std::max(last_sequence, later.last_sequence);
}

Changes changes_of(const Snapshot& snapshot) {
  Changes changes;
  for (const NodeRecord& node : snapshot.nodes) changes.nodes[node.join.id] = node;
  for (const RegionRecord& region : snapshot.regions) changes.regions[region.id] = region;
  for (const auto& [key, lease] : snapshot.leases) changes.leases[key] = lease;
  for (const Revocation& revocation : snapshot.revocations)
    changes.revocations[revocation.id] = revocation;
  for (const ImageRecord& image : snapshot.images) changes.images[image.id] = image;
  changes.last_sequence = snapshot.last_sequence;
  return changes;
}

std::unique_ptr<Store> make_memory_store() {
  return std::make_unique<MemoryStore>();
}

}  // namespace farpage::coordinator

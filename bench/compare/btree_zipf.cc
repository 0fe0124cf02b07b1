// btree_zipf: a B+ tree in memory under skewed lookups, updates and range scans.
//
//   btree_zipf KEYS OPERATIONS
//
// Inserts KEYS records of 64 bytes in a scattered order, then does OPERATIONS: 80 % lookups, 15 %
// updates of a record, 5 % scans of 50 records, at keys of Zipf-distributed rank (exponent 0.99).
// Checks every record that it finds; prints a checksum; status 1 when a record is wrong.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "bench/touch_order.h"

namespace {

struct Record {
  uint64_t key = 0;
  uint64_t updates = 0;
  std::array<uint64_t, 6> words{};  // word i: key * (i + 3)
};

// Nodes are never freed before the end. Each is about one page. Threads: one.
class BTree {
 public:
  BTree() : root_(new Leaf) {}
  BTree(const BTree&) = delete;
  BTree& operator=(const BTree&) = delete;
  ~BTree() { free_below(root_, height_); }

  // REQUIRES: no record has this key.
  void insert(const Record& record) {
    const Split split = insert_below(root_, height_, record);
    if (split.right == nullptr) return;
    Inner* root = new Inner;
    root->count = 1;
    root->keys[0] = split.key;
    root->children[0] = root_;
    root->children[1] = split.right;
    root_ = root;
    ++height_;
  }
  // The record, valid until the next insert(); null: there is none.
  Record* find(uint64_t key) {
    Place place = place_of(key);
    return place.at < place.leaf->count && place.leaf->records[place.at].key == key
               ? &place.leaf->records[place.at]
               : nullptr;
  }
  // Calls visit(record) for the first `count` records whose key is at least `key`.
  template <typename Visit>
  void scan(uint64_t key, size_t count, Visit visit) {
    Place place = place_of(key);
    for (const Leaf* leaf = place.leaf; leaf != nullptr; leaf = leaf->next, place.at = 0)
      for (; place.at < leaf->count; ++place.at, --count) {
        if (count == 0) return;
        visit(leaf->records[place.at]);
      }
  }

 private:
  static constexpr size_t kRecords = 62, kKeys = 250;
  struct Leaf {
    size_t count = 0;
    Leaf* next = nullptr;
    std::array<Record, kRecords> records;
  };
  // children[i] has the keys below keys[i], and children[count] the others.
  struct Inner {
    size_t count = 0;
    std::array<uint64_t, kKeys> keys;
    std::array<void*, kKeys + 1> children;
  };
  struct Place {
    Leaf* leaf;
    size_t at;
  };
  // right: the new node, with the keys from `key` on; null: the node was not split.
  struct Split {
    uint64_t key = 0;
    void* right = nullptr;
  };

  static size_t child_of(const Inner& inner, uint64_t key) {
    const auto* end = inner.keys.begin() + inner.count;
    return static_cast<size_t>(std::upper_bound(inner.keys.begin(), end, key) - inner.keys.begin());
  }
  static size_t position_in(const Leaf& leaf, uint64_t key) {
    const auto* end = leaf.records.begin() + leaf.count;
    return static_cast<size_t>(std::lower_bound(leaf.records.begin(), end, key,
                                                [](const Record& record, uint64_t wanted) {
                                                  return record.key < wanted;
                                                }) -
                               leaf.records.begin());
  }
  Place place_of(uint64_t key) const {
    void* node = root_;
    for (size_t level = height_; level > 0; --level) {
      Inner* inner = static_cast<Inner*>(node);
      node = inner->children[child_of(*inner, key)];
    }
    Leaf* leaf = static_cast<Leaf*>(node);
    return {leaf, position_in(*leaf, key)};
  }

  Split insert_below(void* node, size_t level, const Record& record) {
    if (level == 0) return insert_in(*static_cast<Leaf*>(node), record);
    Inner& inner = *static_cast<Inner*>(node);
    const size_t at = child_of(inner, record.key);
    const Split below = insert_below(inner.children[at], level - 1, record);
    if (below.right == nullptr) return {};
    std::move_backward(inner.keys.begin() + at, inner.keys.begin() + inner.count,
                       inner.keys.begin() + inner.count + 1);
    std::move_backward(inner.children.begin() + at + 1, inner.children.begin() + inner.count + 1,
                       inner.children.begin() + inner.count + 2);
    inner.keys[at] = below.key;
    inner.children[at + 1] = below.right;
    if (++inner.count < kKeys) return {};
    Inner* right = new Inner;
    const size_t kept = inner.count / 2;
    right->count = inner.count - kept - 1;
    std::copy_n(inner.keys.begin() + kept + 1, right->count, right->keys.begin());
    std::copy_n(inner.children.begin() + kept + 1, right->count + 1, right->children.begin());
    inner.count = kept;
    return {inner.keys[kept], right};
  }
  static Split insert_in(Leaf& leaf, const Record& record) {
    const size_t at = position_in(leaf, record.key);
    std::move_backward(leaf.records.begin() + at, leaf.records.begin() + leaf.count,
                       leaf.records.begin() + leaf.count + 1);
    leaf.records[at] = record;
    if (++leaf.count < kRecords) return {};
    Leaf* right = new Leaf;
    right->count = leaf.count / 2;
    leaf.count -= right->count;
    std::copy_n(leaf.records.begin() + leaf.count, right->count, right->records.begin());
    right->next = leaf.next;
    leaf.next = right;
    return {right->records[0].key, right};
  }

  static void free_below(void* node, size_t level) {
    if (level == 0) {
      delete static_cast<Leaf*>(node);
      return;
    }
    Inner* inner = static_cast<Inner*>(node);
    for (size_t i = 0; i <= inner->count; ++i) free_below(inner->children[i], level - 1);
    delete inner;
  }

  void* root_;
  size_t height_ = 0;  // of the root above the leaves
};

Record make_record(uint64_t key) {
  Record record{.key = key};
  for (size_t i = 0; i < record.words.size(); ++i) record.words[i] = key * (i + 3);
  return record;
}

bool is_right(const Record& record) {
  for (size_t i = 0; i < record.words.size(); ++i)
    if (record.words[i] != record.key * (i + 3)) return false;
  return true;
}

// One to one for numbers below 2^64: scatters 0, 1, 2, ...
uint64_t key_of(uint64_t number) {
  return number * 0x9e3779b97f4a7c15;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strtoull(argv[1], nullptr, 10) < 1) {
    std::fputs("usage: btree_zipf KEYS OPERATIONS\n", stderr);
    return 2;
  }
  const uint64_t keys = std::strtoull(argv[1], nullptr, 10);
  const uint64_t operations = std::strtoull(argv[2], nullptr, 10);
  BTree tree;
  for (uint64_t i = 0; i < keys; ++i) tree.insert(make_record(key_of(i)));
  farpage::bench::TouchOrder order(farpage::bench::Pattern::kZipf, {0, keys}, 1);
  farpage::bench::Random random(2);
  uint64_t checksum = 0, wrong = 0;
  for (uint64_t i = 0; i < operations; ++i) {
    const uint64_t key = key_of(order.next()), kind = random.below(100);
    Record* const record = tree.find(key);
    if (record == nullptr || !is_right(*record)) {
      ++wrong;
      continue;
    }
    if (kind < 15) {
      ++record->updates;
    } else if (kind < 20) {
      tree.scan(key, 50, [&](const Record& found) {
        if (!is_right(found)) ++wrong;
        checksum = checksum * 31 + found.key + found.updates;
      });
    } else {
      checksum = checksum * 31 + record->words[kind % 6] + record->updates;
    }
  }
  fmt::print("{} {:016x}, {} wrong\n", keys, checksum, wrong);
  return wrong == 0 ? 0 : 1;
}

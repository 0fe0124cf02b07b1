#include "pager/compress/compressed_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace farpage::pager {
namespace {

constexpr uint32_t kNoPoolPage = UINT32_MAX;
constexpr uint32_t kPagesOfChunk = 256;  // of pool pages, allocated together
constexpr uint32_t kCellBits = 4;        // a location: pool page, then cell; plus 1
constexpr uint64_t kMostPoolPages = uint64_t{1} << (32 - kCellBits);
// After as many young pages the next one loses its copies, young or not: the lock is held
// meanwhile.
constexpr uint32_t kMostLooks = 64;
constexpr uint64_t kFreePart = 16;  // of the pool may be kept free

struct CellHeader {
  uint32_t page;
  uint32_t moment;
  uint16_t bytes;
  uint16_t unused;
};

// How many cells a pool page of each class has.
constexpr std::array<uint32_t, 10> kCellsOfClass{16, 12, 10, 8, 7, 6, 5, 4, 3, 2};
constexpr size_t kClasses = kCellsOfClass.size();
constexpr size_t cell_bytes(size_t size_class) {
  return kPageBytes / kCellsOfClass[size_class] / alignof(CellHeader) * alignof(CellHeader);
}
static_assert(cell_bytes(kClasses - 1) == CompressedPages::kMaxBytes + sizeof(CellHeader));
static_assert(kCellsOfClass[0] <= 1U << kCellBits);

size_t class_for(size_t copy_bytes) {
  size_t size_class = 0;
  while (cell_bytes(size_class) < copy_bytes + sizeof(CellHeader)) ++size_class;
  return size_class;
}

}  // namespace

// Threads: with the lock held.
struct CompressedPages::Pool {
  struct PoolPage {
    enum class Use : uint8_t {
      kReturned,  // without memory
      kFree,      // without copies
      kCut,       // into cells
    };
    Use use = Use::kReturned;
    bool young = false;  // it got a copy since the hand was here
    uint8_t size_class = 0;
    uint16_t used = 0;  // cells (bits)
    // In the list of free ones, of returned ones, or of those of its class with a free cell.
    uint32_t next = kNoPoolPage;
    uint32_t previous = kNoPoolPage;

    uint32_t cells() const { return kCellsOfClass[size_class]; }
    bool is_full() const { return std::popcount(used) == static_cast<int>(cells()); }
  };

  // What the pool pages' neighbours in a list are.
  struct List {
    uint32_t first = kNoPoolPage;
    uint32_t count = 0;
  };

  struct Chunk {
    Mapping memory;
    std::array<PoolPage, kPagesOfChunk> pages{};
  };

  std::vector<std::unique_ptr<Chunk>> chunks;
  std::array<List, kClasses> with_room;
  List free;
  List returned;
  uint32_t hand = 0;

  uint32_t count() const { return static_cast<uint32_t>(chunks.size() * kPagesOfChunk); }
  PoolPage& at(uint32_t page) { return chunks[page / kPagesOfChunk]->pages[page % kPagesOfChunk]; }
  std::byte* memory_of(uint32_t page) const {
    return chunks[page / kPagesOfChunk]->memory.data() + page % kPagesOfChunk * kPageBytes;
  }
  std::byte* cell_at(uint32_t page, uint32_t cell) {
    return memory_of(page) + cell * cell_bytes(at(page).size_class);
  }
  static CellHeader header_at(const std::byte* cell) {
    CellHeader header{};
    std::memcpy(&header, cell, sizeof header);
    return header;
  }

  void push(List& list, uint32_t page) {
    PoolPage& pushed = at(page);
    pushed.previous = kNoPoolPage;
    pushed.next = list.first;
    if (list.first != kNoPoolPage) at(list.first).previous = page;
    list.first = page;
    ++list.count;
  }
  void remove(List& list, uint32_t page) {
    const PoolPage& removed = at(page);
    (removed.previous == kNoPoolPage ? list.first : at(removed.previous).next) = removed.next;
    if (removed.next != kNoPoolPage) at(removed.next).previous = removed.previous;
    --list.count;
  }
  uint32_t pop(List& list) {
    const uint32_t page = list.first;
    if (page != kNoPoolPage) remove(list, page);
    return page;
  }
  // More pool pages; none if this process may not have more memory.
  void grow() {
    if (count() + kPagesOfChunk > kMostPoolPages) return;
    Result<Mapping> memory = Mapping::anonymous(kPagesOfChunk * kPageBytes);
    if (!memory) return;
    // A huge page would be memory that nobody counts.
    (void)::madvise(memory->data(), memory->size(), MADV_NOHUGEPAGE);
    chunks.push_back(std::make_unique<Chunk>());
    chunks.back()->memory = std::move(*memory);
    for (uint32_t i = kPagesOfChunk; i-- > 0;) push(returned, count() - kPagesOfChunk + i);
  }
};

CompressedPages::CompressedPages() : pool_(std::make_unique<Pool>()) {}
CompressedPages::~CompressedPages() = default;
CompressedPages::CompressedPages(CompressedPages&& other) noexcept
    : index_memory_(std::move(other.index_memory_)), pool_(std::move(other.pool_)) {}

Result<CompressedPages> CompressedPages::create(uint64_t pages) {
  CompressedPages made;
  if (pages == 0) return made;
  FARPAGE_TRY(index, Mapping::anonymous(pages * sizeof(uint32_t)));
  made.index_memory_ = std::move(index);
  return made;
}

bool CompressedPages::insert(PageIndex page, std::span<const std::byte> copy, uint64_t most_pages,
                             uint32_t moment) {
  FARPAGE_CHECK(enabled() && !copy.empty() && copy.size() <= kMaxBytes, "a copy of %zu bytes",
                copy.size());
  const MutexLock lock(mutex_);
  drop_copy(page);
  const size_t size_class = class_for(copy.size());
  const uint32_t in = find_room(size_class, most_pages);
  if (in == kNoPoolPage) return false;
  Pool::PoolPage& pool_page = pool_->at(in);
  const auto cell = static_cast<uint32_t>(std::countr_one(pool_page.used));
  pool_page.used = static_cast<uint16_t>(pool_page.used | 1U << cell);
  pool_page.young = true;
  if (pool_page.is_full()) pool_->remove(pool_->with_room[size_class], in);
  const CellHeader header{.page = static_cast<uint32_t>(page.value),
                          .moment = moment,
                          .bytes = static_cast<uint16_t>(copy.size()),
                          .unused = 0};
  std::byte* const at = pool_->cell_at(in, cell);
  std::memcpy(at, &header, sizeof header);
  std::memcpy(at + sizeof header, copy.data(), copy.size());
  index()[page.value].store(((in << kCellBits) | cell) + 1, std::memory_order_relaxed);
  copies_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(copy.size(), std::memory_order_relaxed);
  return true;
}

// A pool page of the class with a free cell, in the list of its class; kNoPoolPage: there is none.
uint32_t CompressedPages::find_room(size_t size_class, uint64_t most_pages) {
  Pool::List& with_room = pool_->with_room[size_class];
  if (with_room.first != kNoPoolPage) return with_room.first;
  if (pool_->free.count == 0 && pool_pages() < most_pages) {
    if (pool_->returned.count == 0) pool_->grow();
    const uint32_t page = pool_->pop(pool_->returned);
    if (page != kNoPoolPage) {
      pool_->at(page).use = Pool::PoolPage::Use::kFree;
      pool_->push(pool_->free, page);
      pool_pages_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (pool_->free.count == 0 && !empty_oldest()) return kNoPoolPage;
  const uint32_t page = pool_->pop(pool_->free);
  Pool::PoolPage& taken = pool_->at(page);
  taken.use = Pool::PoolPage::Use::kCut;
  taken.size_class = static_cast<uint8_t>(size_class);
  pool_->push(with_room, page);
  return page;
}

// False: no pool page has copies.
bool CompressedPages::empty_oldest() {
  uint32_t looks = 0;
  for (uint32_t i = 0; i < 2 * pool_->count(); ++i) {
    const uint32_t page = pool_->hand;
    pool_->hand = (pool_->hand + 1) % pool_->count();
    Pool::PoolPage& pool_page = pool_->at(page);
    if (pool_page.use != Pool::PoolPage::Use::kCut) continue;
    if (std::exchange(pool_page.young, false) && ++looks < kMostLooks) continue;
    for (uint32_t cell = 0; pool_page.use == Pool::PoolPage::Use::kCut; ++cell)
      if ((pool_page.used >> cell & 1U) != 0) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        release((page << kCellBits) | cell);
      }
    return true;
  }
  return false;
}

// The cell is free afterwards, and its page has no copy.
void CompressedPages::release(uint32_t location) {
  const uint32_t page = location >> kCellBits;
  const uint32_t cell = location & ((1U << kCellBits) - 1);
  Pool::PoolPage& pool_page = pool_->at(page);
  const CellHeader header = Pool::header_at(pool_->cell_at(page, cell));
  index()[header.page].store(0, std::memory_order_relaxed);
  copies_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(header.bytes, std::memory_order_relaxed);
  Pool::List& with_room = pool_->with_room[pool_page.size_class];
  const bool was_full = pool_page.is_full();
  pool_page.used = static_cast<uint16_t>(pool_page.used & ~(1U << cell));
  if (pool_page.used != 0) {
    if (was_full) pool_->push(with_room, page);
    return;
  }
  if (!was_full) pool_->remove(with_room, page);
  pool_page.use = Pool::PoolPage::Use::kFree;
  pool_page.young = false;
  pool_->push(pool_->free, page);
}

void CompressedPages::drop_copy(PageIndex page) {
  const uint32_t entry = index()[page.value].load(std::memory_order_relaxed);
  if (entry == 0) return;
  dropped_.fetch_add(1, std::memory_order_relaxed);
  release(entry - 1);
}

std::optional<CompressedPages::Copy> CompressedPages::take(PageIndex page,
                                                           std::span<std::byte> out) {
  if (!has(page)) return std::nullopt;
  const MutexLock lock(mutex_);
  const uint32_t entry = index()[page.value].load(std::memory_order_relaxed);
  if (entry == 0) return std::nullopt;
  const std::byte* const cell =
      pool_->cell_at((entry - 1) >> kCellBits, (entry - 1) & ((1U << kCellBits) - 1));
  const CellHeader header = Pool::header_at(cell);
  FARPAGE_CHECK(header.page == page.value && header.bytes <= out.size(),
                "the copy of page %llu is of page %u, with %u bytes",
                static_cast<unsigned long long>(page.value), header.page, header.bytes);
  std::memcpy(out.data(), cell + sizeof header, header.bytes);
  release(entry - 1);
  return Copy{.bytes = header.bytes, .moment = header.moment};
}

void CompressedPages::forget(PageIndex page) {
  if (!has(page)) return;
  const MutexLock lock(mutex_);
  drop_copy(page);
}

void CompressedPages::trim(uint64_t most_pages) {
  for (uint32_t i = 0; i < kMaxTrim; ++i) {
    const MutexLock lock(mutex_);
    const uint64_t most_free = std::max<uint64_t>(kMaxFree, pool_pages() / kFreePart);
    const bool too_many = pool_pages() > most_pages;
    if (!too_many && pool_->free.count <= most_free) return;
    if (pool_->free.count == 0 && !empty_oldest()) return;
    const uint32_t page = pool_->pop(pool_->free);
    (void)::madvise(pool_->memory_of(page), kPageBytes, MADV_DONTNEED);
    pool_->at(page).use = Pool::PoolPage::Use::kReturned;
    pool_->push(pool_->returned, page);
    pool_pages_.fetch_sub(1, std::memory_order_relaxed);
  }
}

Status CompressedPages::check_invariants() const {
  const MutexLock lock(mutex_);
  const auto broken = [](const std::string& what, uint64_t page) {
    return fail(ErrorCode::kConflict, "pool page " + std::to_string(page) + " " + what);
  };
  uint64_t used = 0;
  uint64_t copies = 0;
  uint64_t bytes = 0;
  std::array<uint32_t, kClasses> with_room{};
  for (uint32_t page = 0; page < pool_->count(); ++page) {
    const Pool::PoolPage& pool_page = pool_->at(page);
    if (pool_page.use != Pool::PoolPage::Use::kReturned) ++used;
    if (pool_page.use != Pool::PoolPage::Use::kCut) {
      if (pool_page.used != 0) return broken("has copies, and is not in use", page);
      continue;
    }
    if (pool_page.used == 0) return broken("has no copy", page);
    if (!pool_page.is_full()) ++with_room.at(pool_page.size_class);
    for (uint32_t cell = 0; cell < pool_page.cells(); ++cell) {
      if ((pool_page.used >> cell & 1U) == 0) continue;
      const CellHeader header = Pool::header_at(pool_->cell_at(page, cell));
      if (index()[header.page].load(std::memory_order_relaxed) != ((page << kCellBits) | cell) + 1)
        return broken("has a copy that its page does not know", page);
      ++copies;
      bytes += header.bytes;
    }
  }
  for (size_t i = 0; i < kClasses; ++i)
    if (pool_->with_room.at(i).count != with_room.at(i)) return broken("list of class", i);
  if (used != pool_pages() || copies != this->copies() || bytes != this->bytes())
    return broken("counts are wrong", used);
  return {};
}

}  // namespace farpage::pager

// KernelRules: what the kernel does with the pages of an address space that is registered with
// userfaultfd: the rule book of the address spaces without a kernel. Source of the rules:
// ioctl_userfaultfd(2), mm/userfaultfd.c of Linux 6.6, and tests/kernel, which checks them against
// the real kernel.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "uffd/address_space.h"

namespace farpage {

// Rules:
//  1. A touch of an absent page, or a write to a protected one, is a fault. One of a poisoned page,
//     or where nothing is mapped, is SIGBUS.
//  2. install, zero and poison never replace a present page.
//  3. protect and unprotect act on present pages only.
//  4. madvise(MADV_DONTNEED) also removes the mark of a poisoned page.
//
// What a page contains, who waits for it and when an event refuses a call is for the address space
// that has the rules. One extent. Threads: one at a time.
class KernelRules {
 public:
  struct Page {
    bool mapped = true;
    bool present = false;
    bool is_protected = false;  // of a present page
    bool poisoned = false;      // of an absent one
  };

  KernelRules(uint64_t begin, uint64_t pages) : begin_(begin), pages_(pages) {}

  uint64_t pages() const { return pages_.size(); }
  uint64_t address_of(PageIndex page) const { return begin_ + (page.value << kPageShift); }
  std::vector<uffd::PageRun> runs_in(uint64_t begin, uint64_t end) const {
    const uint64_t low = std::max(begin, begin_);
    const uint64_t high = std::min(end, address_of(PageIndex{pages()}));
    if (low >= high) return {};
    return {{PageIndex{(low - begin_) >> kPageShift},
             static_cast<uint32_t>((high - low) >> kPageShift)}};
  }
  // Its address tells threads what to wait for.
  const Page& operator[](PageIndex page) const { return pages_.at(page.value); }

  // nullopt: the touch succeeds, or is SIGBUS.
  std::optional<uffd::FaultKind> fault_of(PageIndex page, bool write) const {
    const Page& touched = (*this)[page];
    if (is_bus_error(page)) return std::nullopt;
    if (touched.present && !(write && touched.is_protected)) return std::nullopt;
    if (touched.present) return uffd::FaultKind::kWriteProtected;
    return write ? uffd::FaultKind::kMissingWrite : uffd::FaultKind::kMissingRead;
  }
  bool is_bus_error(PageIndex page) const {
    return (*this)[page].poisoned || !(*this)[page].mapped;
  }
  // install and zero place a page there.
  bool is_free(PageIndex page) const {
    const Page& here = (*this)[page];
    return here.mapped && !here.present && !here.poisoned;
  }
  bool crosses_mappings(uffd::PageRun run) const {
    for (uint32_t i = 0; i < run.pages; ++i)
      if (!pages_.at(run.first.value + i).mapped) return true;
    return false;
  }

  void place(PageIndex page, uffd::Protection protection) {
    at(page) = {.present = true, .is_protected = protection == uffd::Protection::kWriteProtected};
  }
  // False: the page is absent.
  bool protect(PageIndex page) { return at(page).is_protected = at(page).present; }
  void unprotect(PageIndex page) { at(page).is_protected = false; }
  void poison(PageIndex page) { at(page).poisoned = at(page).mapped && !at(page).present; }
  void drop(PageIndex page) { at(page) = {.mapped = at(page).mapped}; }
  void unmap(PageIndex page) { at(page) = {.mapped = false}; }
  // A child of fork gets the page with its protection.
  void inherit(PageIndex page, const KernelRules& parent) { at(page) = parent[page]; }

 private:
  Page& at(PageIndex page) { return pages_.at(page.value); }

  const uint64_t begin_;
  std::vector<Page> pages_;
};

// An address space of one extent that has them.
class RuledSpace : public uffd::AddressSpace {
 public:
  uint64_t pages() const final { return rules_.pages(); }
  uint64_t address_of(PageIndex page) const final { return rules_.address_of(page); }
  std::vector<uffd::PageRun> runs_in(uint64_t begin, uint64_t end) const final {
    return rules_.runs_in(begin, end);
  }
  Status add_extent(uint64_t, uint64_t) final {
    return fail(ErrorCode::kUnsupported, "this address space has one extent");
  }
  void remove_extent(uint64_t, uint64_t) final {}

 protected:
  RuledSpace(uint64_t begin, uint64_t pages) : rules_(begin, pages) {}

  KernelRules rules_;
};

}  // namespace farpage

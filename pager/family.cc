#include "pager/family.h"

#include <algorithm>

#include "base/check.h"
#include "pager/layer.h"

namespace farpage::pager {

Result<LayerId> Family::add_layer(LeaseMap& leases) {
  const std::lock_guard lock(mutex_);
  for (uint16_t i = 0; i < kMaxLayers; ++i) {
    if (layers_[i].load(std::memory_order_relaxed) != nullptr) continue;
    layers_[i].store(&leases, std::memory_order_release);
    return LayerId{i};
  }
  return fail(ErrorCode::kExhausted,
              "the processes of one family have " + std::to_string(kMaxLayers) + " layers already");
}

void Family::remove_layer(LayerId layer) {
  const std::lock_guard lock(mutex_);
  layers_[layer.value].store(nullptr, std::memory_order_release);
}

bool Family::refers_elsewhere(const Member& self, LayerId layer, PageIndex page) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member* member) {
    if (member == &self) return false;
    const PageWord word = member->table().load(page);
    return word.layer() == layer && refers_to_slot(word);
  });
}

void Family::add(const Member& member) {
  members_.push_back(&member);
  processes_.store(members_.size(), std::memory_order_relaxed);
}

void Family::remove(const Member& member) {
  std::erase(members_, &member);
  processes_.store(members_.size(), std::memory_order_relaxed);
}

Result<std::unique_ptr<Member>> Member::create(uint64_t pages) {
  FARPAGE_TRY(table, PageTable::create(pages));
  std::unique_ptr<Member> member(new Member(std::make_shared<Family>(), std::move(table)));
  const std::lock_guard lock(member->family_->mutex_);
  member->family_->add(*member);
  return member;
}

Result<std::unique_ptr<Member>> Member::copy_of(
    const Member& parent, const std::function<PageWord(PageIndex, PageWord)>& word_of) {
  FARPAGE_TRY(table, PageTable::create(parent.table_.pages()));
  std::unique_ptr<Member> member(new Member(parent.family_, std::move(table)));
  member->layers_ = parent.layers_;
  const std::lock_guard lock(member->family_->mutex_);
  // Pages that are Empty now and used later have no slot to refer to.
  const uint64_t used = parent.table_.used_pages();
  for (uint64_t i = 0; i < used; ++i) {
    const PageWord word = word_of(PageIndex{i}, parent.table_.load(PageIndex{i}));
    if (word.state() != PageState::kEmpty) member->table_.place(PageIndex{i}, word);
  }
  member->family_->add(*member);
  return member;
}

Member::~Member() {
  const std::lock_guard lock(family_->mutex_);
  family_->remove(*this);
}

}  // namespace farpage::pager

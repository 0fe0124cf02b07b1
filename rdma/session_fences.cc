#include "rdma/session_fences.h"

namespace farpage::rdma {

SessionFences::Pass::Pass(Pass&& other) noexcept
    : fences_(other.fences_),
      key_(std::move(other.key_)),
      gate_(std::exchange(other.gate_, nullptr)) {}

SessionFences::Pass& SessionFences::Pass::operator=(Pass&& other) noexcept {
  if (this != &other) {
    leave();
    fences_ = other.fences_;
    key_ = std::move(other.key_);
    gate_ = std::exchange(other.gate_, nullptr);
  }
  return *this;
}

void SessionFences::Pass::leave() {
  if (gate_ == nullptr) return;
  // Whoever takes over holds this lock while it calls when_fenced.
  const std::lock_guard lock(fences_->mutex_);
  const auto entry = fences_->open_.find(key_);
  if (entry != fences_->open_.end() && entry->second == gate_) fences_->open_.erase(entry);
  gate_.reset();
}

SessionFences::Pass SessionFences::enter(uint64_t session, uint64_t host,
                                         std::function<void()> when_fenced) {
  if (session == 0) return {};
  auto gate = std::make_shared<Gate>();
  gate->when_fenced = std::move(when_fenced);
  const Key key{host, session};
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Gate>& open = open_[key];
  if (open != nullptr) {
    const std::lock_guard former(open->mutex);
    open->fenced = true;
    if (open->when_fenced) open->when_fenced();
  }
  open = gate;
  return Pass(this, key, std::move(gate));
}

size_t SessionFences::size() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

}  // namespace farpage::rdma

#include "rdma/session_fences.h"

#include <algorithm>

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

void SessionFences::Pass::leave(SessionEnd end) {
  if (gate_ == nullptr) return;
  {
    const MutexLock lock(fences_->mutex_);
    const auto entry = fences_->open_.find(key_);
    if (entry != fences_->open_.end() && entry->second == gate_) {
      fences_->open_.erase(entry);
      const SessionGroup group = session_group_of(key_.second);
      if (end == SessionEnd::kUncertain && group != 0)
        fences_->uncertain_[group] = SteadyClock::read() + fences_->grace_;
    }
  }
  {
    // enter() holds this lock while it calls when_fenced.
    const MutexLock lock(gate_->mutex);
    gate_->when_fenced = nullptr;
  }
  gate_.reset();
}

SessionFences::Pass SessionFences::enter(uint64_t session, uint64_t host,
                                         std::function<void()> when_fenced) {
  if (session == 0) return {};
  auto gate = std::make_shared<Gate>();
  const Key key{host, session};
  // Held until the former one is fenced: whoever takes over from this one waits for that one, too.
  const MutexLock own(gate->mutex);
  gate->when_fenced = std::move(when_fenced);
  std::shared_ptr<Gate> former = gate;
  {
    const MutexLock lock(mutex_);
    std::swap(open_[key], former);
  }
  if (former != nullptr) {
    const MutexLock lock(former->mutex);
    former->fenced = true;
    if (former->when_fenced) former->when_fenced();
  }
  return Pass(this, key, gate);
}

std::vector<SessionGroup> SessionFences::groups(Instant now) {
  const MutexLock lock(mutex_);
  std::erase_if(uncertain_, [now](const auto& entry) { return entry.second <= now; });
  std::vector<SessionGroup> groups;
  for (const auto& [key, gate] : open_) groups.push_back(session_group_of(key.second));
  for (const auto& [group, until] : uncertain_) groups.push_back(group);
  std::ranges::sort(groups);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::erase(groups, SessionGroup{0});
  if (groups.size() > kMaxGroups) groups.resize(kMaxGroups);
  return groups;
}

size_t SessionFences::size() const {
  const MutexLock lock(mutex_);
  return open_.size();
}

}  // namespace farpage::rdma

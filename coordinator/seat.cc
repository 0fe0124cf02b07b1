#include "coordinator/seat.h"

namespace farpage::coordinator {

void Seat::take(std::shared_ptr<Cluster> cluster, std::shared_ptr<const Term> term,
                std::string url) {
  auto watchers = std::make_shared<EventWatchers>(cluster, max_watchers_);
  const MutexLock lock(mutex_);
  cluster_ = std::move(cluster);
  watchers_ = std::move(watchers);
  term_ = std::move(term);
  leader_ = std::move(url);
}

void Seat::leave_to(std::string leader) {
  std::shared_ptr<Cluster> former;  // may be destroyed, without the lock
  std::shared_ptr<EventWatchers> watchers;
  std::shared_ptr<const Term> term;
  {
    const MutexLock lock(mutex_);
    former.swap(cluster_);
    watchers.swap(watchers_);
    term.swap(term_);
    leader_ = std::move(leader);
  }
  if (watchers) watchers->stop();
}

void Seat::set_url(std::string url) {
  const MutexLock lock(mutex_);
  leader_ = std::move(url);
}

bool Seat::is_held() const {
  return cluster_ != nullptr && (term_ == nullptr || term_->is_held());
}

std::shared_ptr<Cluster> Seat::cluster() const {
  const MutexLock lock(mutex_);
  return is_held() ? cluster_ : nullptr;
}

std::shared_ptr<EventWatchers> Seat::watchers() const {
  const MutexLock lock(mutex_);
  return is_held() ? watchers_ : nullptr;
}

std::string Seat::leader() const {
  const MutexLock lock(mutex_);
  return cluster_ == nullptr || is_held() ? leader_ : std::string();
}

}  // namespace farpage::coordinator

#include "descriptors.h"

#include <algorithm>
#include <utility>

namespace farpage::simulation {

int Descriptors::add(Entry entry) {
  entries_.push_back(std::move(entry));
  return kFirst + static_cast<int>(entries_.size()) - 1;
}

int Descriptors::make_event(uint64_t count) {
  Entry entry;
  entry.count = count;
  return add(std::move(entry));
}

int Descriptors::make_set() {
  return add({});
}

std::optional<uint64_t> Descriptors::read(int descriptor) {
  const uint64_t count = std::exchange(at(descriptor).count, 0);
  if (count == 0) return std::nullopt;
  return count;
}

void Descriptors::write(int descriptor, uint64_t count) {
  at(descriptor).count += count;
  ++changes_;
}

void Descriptors::control(int set, int operation, int member, const epoll_event* event) {
  std::vector<Member>& members = at(set).members;
  std::erase_if(members, [&](const Member& other) { return other.descriptor == member; });
  if (operation != EPOLL_CTL_DEL) members.push_back({member, *event});
  ++changes_;
}

int Descriptors::ready_members(int set, epoll_event* events, int most) const {
  int count = 0;
  for (const Member& member : at(set).members) {
    if (count == most) break;
    if (!is_ready(member.descriptor)) continue;
    events[count] = member.event;
    events[count++].events = EPOLLIN;
  }
  return count;
}

bool Descriptors::is_ready(int descriptor) const {
  const Entry& entry = at(descriptor);
  if (!entry.open) return false;
  return entry.count > 0 || std::ranges::any_of(entry.members, [this](const Member& member) {
           return is_ready(member.descriptor);
         });
}

int Descriptors::poll(std::span<pollfd> polls) const {
  int ready = 0;
  for (pollfd& poll : polls) {
    poll.revents = is_ready(poll.fd) ? POLLIN : 0;
    if (poll.revents != 0) ++ready;
  }
  return ready;
}

}  // namespace farpage::simulation

// Inheritance: what a child of fork starts with. Its pager, if it ever needs one, is made of it.
#pragma once

#include <functional>
#include <memory>

#include "pager/family.h"
#include "uffd/address_space.h"

namespace farpage::pager {

struct Inheritance {
  std::unique_ptr<uffd::AddressSpace> space;
  std::unique_ptr<Member> member;
  uint64_t age_clock = 0;  // of the parent (core.h): the ages of pages go on from there
};

// Takes each child. Called by a fault worker of the parent: it must not wait for anything.
using OnChild = std::function<void(Inheritance)>;

}  // namespace farpage::pager

// Inheritance: the initial state of a forked child. Its pager, if it ever needs one, starts from
// it.
#pragma once

#include <functional>
#include <memory>

#include "pager/fork/fork_group.h"
#include "uffd/address_space.h"

namespace farpage::pager {

struct Inheritance {
  std::unique_ptr<uffd::AddressSpace> space;
  std::unique_ptr<ProcessImage> image;
  uint64_t age_clock = 0;  // of the parent (target.h): the ages of pages continue from there
};

// Called with each child, by the thread that calls Pager::end_fork() or adopt_children(), or that
// destroys the pager.
using OnChild = std::function<void(Inheritance)>;

}  // namespace farpage::pager

// What a program has done to its mappings, as the events of its address space tell it.
#pragma once

#include <span>

#include "pager/target.h"

namespace farpage::pager {

// Applies the events that are no faults: pages that were unmapped become Empty, and so on. Where
// the target has an event order, in the section that has read them.
void apply_changes(Target& target, std::span<uffd::Event> events);

// In a section that reads, for who is no fault worker: applies what was taken from the kernel
// before. A thread that waits for a page is sent to fault once more. Ends the section.
void apply_messages(Target& target);

}  // namespace farpage::pager

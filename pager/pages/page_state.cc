#include "pager/pages/page_state.h"

#include <initializer_list>

namespace farpage::pager {

std::string_view to_string(PageState state) {
  switch (state) {
    case PageState::kEmpty:
      return "Empty";
    case PageState::kFetching:
      return "Fetching";
    case PageState::kClean:
      return "Clean";
    case PageState::kDirty:
      return "Dirty";
    case PageState::kUnprotecting:
      return "Unprotecting";
    case PageState::kEvicting:
      return "Evicting";
    case PageState::kDropping:
      return "Dropping";
    case PageState::kRemote:
      return "Remote";
    case PageState::kLost:
      return "Lost";
  }
  return "unknown";
}

bool is_legal_transition(PageState from, PageState to) {
  using enum PageState;
  const auto one_of = [to](std::initializer_list<PageState> states) {
    for (const PageState state : states)
      if (state == to) return true;
    return false;
  };
  switch (from) {
    case kEmpty:
      return one_of({kFetching});
    // Empty: the target unmapped it meanwhile. Remote: a prefetch that failed.
    case kFetching:
      return one_of({kClean, kDirty, kRemote, kLost, kEmpty});
    // Fetching: absent after all, because the target dropped it past the shim.
    case kClean:
    case kDirty:
      return one_of({kUnprotecting, kEvicting, kEmpty, kFetching});
    case kUnprotecting:
      return one_of({kDirty, kEmpty});
    // Clean, Dirty: the write-back failed, the page stays.
    case kEvicting:
      return one_of({kUnprotecting, kDropping, kEmpty, kClean, kDirty, kFetching});
    // Clean, Dirty: the target refused the drop (a page locked in memory), the page stays.
    case kDropping:
      return one_of({kRemote, kEmpty, kClean, kDirty});
    case kRemote:
      return one_of({kFetching, kEmpty});
    case kLost:
      return one_of({kEmpty});
  }
  return false;
}

}  // namespace farpage::pager

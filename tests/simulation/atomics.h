// What the simulation sees of the pager's atomic operations (atomics.cc).
#pragma once

#include <cstdint>

namespace farpage::simulation {

// The address that the pager has last read as an atomic 32-bit word.
const void* last_loaded_word();

class WordObserver {
 public:
  virtual ~WordObserver() = default;
  // The pager has changed a 32-bit word by compare-exchange. Never waits.
  virtual void changed(const uint32_t* word, uint32_t from, uint32_t to) = 0;
};
// nullptr: nobody.
void observe_words(WordObserver* by);

}  // namespace farpage::simulation

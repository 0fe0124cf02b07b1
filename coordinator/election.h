// Election: which of several coordinators leads, that is, has the state and answers requests.
//
// A Term is the time in which this one does. It is held by a lease that ends by itself: is_held()
// is true only while no other coordinator can have been elected. A write that is on its way when
// that ends is refused by the store of the next term (its fence).
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/store.h"

namespace farpage::coordinator {

// Threads: any.
class Term {
 public:
  virtual ~Term() = default;  // as resign()
  // False: requests must not be answered now; it may become true again.
  virtual bool is_held() const = 0;
  // For good: another coordinator leads, or may be elected.
  virtual bool has_ended() const = 0;
  // Lets another coordinator be elected at once.
  virtual void resign() = 0;
};

struct Campaign {
  std::shared_ptr<Term> term;    // null: another coordinator leads
  std::unique_ptr<Store> store;  // of the term; it refuses every write when the term has ended
  std::string leader;            // the URL of the one that leads; empty: not known
};

// Threads: one at a time.
class Election {
 public:
  virtual ~Election() = default;
  // Tries once to be elected. `url`: where others reach this coordinator. kUnavailable: the servers
  // that hold the election do not answer.
  virtual Result<Campaign> campaign(const std::string& url) = 0;
  // How long to wait after a campaign that was lost.
  virtual Milliseconds pause() const = 0;
};

}  // namespace farpage::coordinator

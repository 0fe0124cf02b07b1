// TendedAttachment: has an attachment (inject/attachment.h) follow its program on the control
// thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/result.h"
#include "inject/attachment.h"
#include "serve/watch.h"

namespace farpage::cli {

// How a program leaves the memory that was taken over.
enum class Parting : uint8_t { kEnded, kExecuted };

// nullopt: it has not left.
std::optional<Parting> parting_of(const inject::Attachment& attachment);

// Threads: the control thread. The attachment outlives it.
class TendedAttachment {
 public:
  // Called once, in a handler of the control thread. An error: the pager has ended, and the program
  // with it. It must not end this object.
  using OnParted = std::function<void(Result<Parting>)>;

  TendedAttachment(boost::asio::io_context& control, inject::Attachment& attachment,
                   OnParted on_parted);

  // After Attachment::note_change(): not in its own time.
  void tend();

 private:
  void tend_after(Nanoseconds pause);
  void part(Result<Parting> parted);
  // The handler is not called after the end of this object, also if it is due already.
  template <typename Handler>
  auto while_here(Handler handler) const {
    return [handler = std::move(handler), here = std::weak_ptr(here_)](auto... arguments) {
      if (!here.expired()) handler(arguments...);
    };
  }

  inject::Attachment& attachment_;
  OnParted on_parted_;  // empty after its call
  boost::asio::steady_timer timer_;
  serve::Watch agent_;
  std::shared_ptr<const bool> here_ = std::make_shared<const bool>(true);
};

}  // namespace farpage::cli

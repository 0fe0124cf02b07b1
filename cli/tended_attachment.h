// TendedAttachment: has an attachment (inject/attachment.h) follow its program on the control
// thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/result.h"
#include "inject/attachment.h"
#include "serve/watch.h"

namespace farpage::cli {

// How a program leaves the memory that was taken over.
enum class Parting : uint8_t { kEnded, kExecuted };

// Threads: the control thread. The attachment outlives it.
class TendedAttachment {
 public:
  // Called once. An error: the pager has ended, and the program with it.
  using OnParted = std::function<void(Result<Parting>)>;

  TendedAttachment(boost::asio::io_context& control, inject::Attachment& attachment,
                   OnParted on_parted);

  // nullopt: the program has not left.
  std::optional<Parting> parting() const;

 private:
  void tend();
  void tend_after(Nanoseconds pause);
  void watch_changes();
  void part(Result<Parting> parted);

  inject::Attachment& attachment_;
  OnParted on_parted_;  // empty after its call
  boost::asio::steady_timer timer_;
  std::optional<serve::Watch> changes_;
  serve::Watch agent_;
};

}  // namespace farpage::cli

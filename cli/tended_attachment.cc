#include "cli/tended_attachment.h"

#include <poll.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "uffd/handover_server.h"

namespace farpage::cli {
namespace {

constexpr int kEndsSoonMs = 1000;
constexpr std::chrono::seconds kRetry{1};

bool ends_within(const Fd& pidfd, int milliseconds) {
  pollfd end{pidfd.get(), POLLIN, 0};
  return ::poll(&end, 1, milliseconds) > 0;
}

}  // namespace

TendedAttachment::TendedAttachment(boost::asio::io_context& control, inject::Attachment& attachment,
                                   OnParted on_parted)
    : attachment_(attachment),
      on_parted_(std::move(on_parted)),
      timer_(control),
      agent_(control, attachment.agent().get()) {
  agent_.wait([this] { part(*parting()); });
  if (attachment.changes() >= 0) {
    changes_.emplace(control, attachment.changes());
    watch_changes();
  }
  timer_.expires_after(std::chrono::seconds(0));
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) tend();
  });
}

// The threads of a program that ends do so one after the other.
std::optional<Parting> TendedAttachment::parting() const {
  if (uffd::process_alive(attachment_.agent())) return std::nullopt;
  return ends_within(attachment_.process(), kEndsSoonMs) ? Parting::kEnded : Parting::kExecuted;
}

void TendedAttachment::tend() {
  if (!on_parted_) return;
  Result<Nanoseconds> next = attachment_.tend();
  if (!next) {
    (void)ends_within(attachment_.agent(),
                      kEndsSoonMs);  // a program that ends closes its memory first
    if (const std::optional<Parting> parted = parting()) {
      part(*parted);
      return;
    }
    if (next.error().code == ErrorCode::kUnavailable) {
      part(tl::unexpected(std::move(next.error())));
      return;
    }
    log::error("attach: not_taken_in reason=\"{}\"", next.error().message());
    next = Nanoseconds(kRetry);
  }
  timer_.expires_after(*next);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) tend();
  });
}

void TendedAttachment::watch_changes() {
  changes_->wait([this] {
    tend();
    if (on_parted_) watch_changes();
  });
}

void TendedAttachment::part(Result<Parting> parted) {
  timer_.cancel();
  if (changes_) changes_->end();
  agent_.end();
  if (const OnParted on_parted = std::exchange(on_parted_, nullptr)) on_parted(std::move(parted));
}

}  // namespace farpage::cli

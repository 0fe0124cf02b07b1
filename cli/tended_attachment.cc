#include "cli/tended_attachment.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/pidfd.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kEndsSoon{1000};
constexpr std::chrono::seconds kRetry{1};

}  // namespace

// The threads of a program that ends do so one after the other.
std::optional<Parting> parting_of(const inject::Attachment& attachment) {
  if (!has_ended(attachment.agent().get())) return std::nullopt;
  return has_ended(attachment.process().get(), kEndsSoon) ? Parting::kEnded : Parting::kExecuted;
}

TendedAttachment::TendedAttachment(boost::asio::io_context& control, inject::Attachment& attachment,
                                   OnParted on_parted)
    : attachment_(attachment),
      on_parted_(std::move(on_parted)),
      timer_(control),
      agent_(control, attachment.agent().get()) {
  agent_.wait(while_here([this] { part(*parting_of(attachment_)); }));
  tend_after(Nanoseconds(0));
}

void TendedAttachment::tend_after(Nanoseconds pause) {
  timer_.expires_after(pause);
  timer_.async_wait(while_here([this](boost::system::error_code error) {
    if (!error) tend();
  }));
}

void TendedAttachment::tend() {
  if (!on_parted_) return;
  Result<Nanoseconds> next = attachment_.tend();
  if (!next) {
    // A program that ends closes its memory first.
    (void)has_ended(attachment_.agent().get(), kEndsSoon);
    if (const std::optional<Parting> parted = parting_of(attachment_)) {
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
  tend_after(*next);
}

void TendedAttachment::part(Result<Parting> parted) {
  timer_.cancel();
  agent_.end();
  if (const OnParted on_parted = std::exchange(on_parted_, nullptr)) on_parted(std::move(parted));
}

}  // namespace farpage::cli

#include "rdma/verbs/async_events.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "base/log.h"

namespace farpage::rdma::verbs {
namespace {

enum class Subject : uint8_t { kDevice, kPort, kQueuePair, kOther };

Subject subject_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return Subject::kQueuePair;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return Subject::kPort;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
      return Subject::kDevice;
    default:
      return Subject::kOther;
  }
}

int milliseconds_until(Instant then) {
  const auto left = std::chrono::ceil<Milliseconds>(then - SteadyClock::read());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

}  // namespace

Result<std::unique_ptr<AsyncEvents>> AsyncEvents::start(std::shared_ptr<const Device> device,
                                                        AsyncEventHandlers handlers) {
  FARPAGE_TRY_VOID(set_nonblocking(device->context()->async_fd, "device event descriptor"));
  FARPAGE_TRY(stop, Fd::from_call(eventfd(0, EFD_CLOEXEC), "eventfd"));
  std::unique_ptr<AsyncEvents> events(
      new AsyncEvents(std::move(device), std::move(handlers), std::move(stop)));
  try {
    events->thread_ = std::thread([&self = *events] { self.run(); });
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kExhausted, std::string("thread for device events: ") + error.what());
  }
  return events;
}

AsyncEvents::~AsyncEvents() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void AsyncEvents::run() {
  pthread_setname_np(pthread_self(), "verbs-events");
  Instant next_interval = SteadyClock::read() + handlers_.interval;
  while (true) {
    std::array<pollfd, 2> wanted = {
        {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
         {.fd = device_->context()->async_fd, .events = POLLIN, .revents = 0}}};
    poll(wanted.data(), wanted.size(), milliseconds_until(next_interval));
    if (wanted[0].revents != 0) return;
    if (wanted[1].revents != 0) drain();
    if (SteadyClock::read() < next_interval) continue;
    if (handlers_.on_interval) handlers_.on_interval();
    next_interval = SteadyClock::read() + handlers_.interval;
  }
}

void AsyncEvents::drain() {
  const VerbsLibrary& library = device_->library();
  ibv_async_event event{};
  while (library.get_async_event(device_->context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    const Subject subject = subject_of(type);
    const char* text = library.event_type_str(type);
    const uint32_t qpn = subject == Subject::kQueuePair ? event.element.qp->qp_num : 0;
    const int port = subject == Subject::kPort ? event.element.port_num : 0;
    // Acknowledge first: destroying a queue pair waits until its events are acknowledged.
    library.ack_async_event(&event);
    switch (subject) {
      case Subject::kQueuePair:
        log::warn("verbs: queue pair event device={} qpn={} event=\"{}\"", device_->name(), qpn,
                  text);
        if (handlers_.on_queue_pair_error) handlers_.on_queue_pair_error(qpn, type);
        break;
      case Subject::kPort:
        log::warn("verbs: port event device={} port={} event=\"{}\"", device_->name(), port, text);
        break;
      case Subject::kDevice:
        log::error("verbs: device event device={} event=\"{}\"", device_->name(), text);
        break;
      case Subject::kOther:
        log::debug("verbs: event device={} event=\"{}\"", device_->name(), text);
        break;
    }
  }
}

}  // namespace farpage::rdma::verbs

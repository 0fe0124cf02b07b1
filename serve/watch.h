// Watch: waits on the control thread until a descriptor is readable.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <utility>

namespace farpage::serve {

// Threads: the control thread. The descriptor stays its owner's, and outlives the watch.
class Watch {
 public:
  Watch(boost::asio::io_context& control, int descriptor) : descriptor_(control, descriptor) {}
  ~Watch() { end(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Calls `ready` once, unless the watch ends first.
  template <typename Ready>
  void wait(Ready&& ready) {
    descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [ready = std::forward<Ready>(ready),
                            here = std::weak_ptr(here_)](boost::system::error_code error) {
                             if (!error && !here.expired()) ready();
                           });
  }
  // The handler is not called any more, also if it is due already.
  void end() {
    here_.reset();
    if (descriptor_.is_open()) (void)descriptor_.release();
  }

 private:
  std::shared_ptr<const bool> here_ = std::make_shared<const bool>(true);
  boost::asio::posix::stream_descriptor descriptor_;
};

}  // namespace farpage::serve

// SPDX-License-Identifier: Apache-2.0
#include "runners/runner_link.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include "runners/runners.h"

namespace gpumux::runners {

// Lives as long as a wait that was begun, which may be longer than the link.
struct RunnerLink::State : std::enable_shared_from_this<RunnerLink::State> {
  State(boost::asio::io_context& io, os::FileDescriptor connection, OnMessage message, OnClosed closed)
      : descriptor(io, connection.release()), on_message(std::move(message)), on_closed(std::move(closed)) {}

  void wait() {
    descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const boost::system::error_code& error) {
                            if (!error && self->open) self->read();
                          });
  }

  // One message at a time: handling it may close the link.
  void read() {
    const auto message = receive_from_runner(descriptor.native_handle());
    if (!message && message.error().system_errno == EAGAIN) return wait();
    if (!message) {
      close();
      return std::exchange(on_closed, nullptr)();
    }
    const auto callback = on_message;  // it may be gone in a moment
    callback(*message);
    if (open) wait();
  }

  void close() {
    open = false;
    boost::system::error_code ignored;
    descriptor.close(ignored);
  }

  boost::asio::posix::stream_descriptor descriptor;
  OnMessage on_message;
  OnClosed on_closed;
  bool open = true;
};

RunnerLink::RunnerLink(boost::asio::io_context& io, os::FileDescriptor connection, OnMessage on_message,
                       OnClosed on_closed)
    : state_(std::make_shared<State>(io, std::move(connection), std::move(on_message), std::move(on_closed))) {
  state_->wait();
}

RunnerLink::~RunnerLink() {
  if (state_->open) state_->close();
}

template <class Message>
bool RunnerLink::send(const Message& message) {
  return state_->open && send_to_runner(state_->descriptor.native_handle(), message).has_value();
}

bool RunnerLink::terminate(wire::EndReason reason, std::chrono::nanoseconds grace) {
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(grace).count();
  return send(wire::Terminate{.reason = reason, .grace_ms = static_cast<std::uint64_t>(milliseconds)});
}

bool RunnerLink::suspend(std::uint64_t sequence) { return send(wire::Suspend{sequence}); }
bool RunnerLink::resume(std::uint64_t sequence) { return send(wire::Resume{sequence}); }
bool RunnerLink::signal(int number) { return send(wire::Signal{.number = static_cast<std::uint32_t>(number)}); }
bool RunnerLink::note_end() { return send(wire::Noted()); }

}  // namespace gpumux::runners

// SPDX-License-Identifier: Apache-2.0
// A connection to one job's runner, on the loop.
//
// Owned by the loop's thread. Callbacks come from the loop, never from within a call; after the destructor none comes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>

#include "base/result.h"
#include "os/file_descriptor.h"
#include "wire/runner_messages.h"

namespace gpumux::runners {

class RunnerLink {
 public:
  using OnMessage = std::function<void(const wire::FromRunner&)>;
  // It has closed, or has sent a senseless message; nothing comes any more.
  using OnClosed = std::function<void()>;

  // `connection`: as start_runner() and connect_runner() give it. Either callback may destroy this object.
  RunnerLink(boost::asio::io_context& io, os::FileDescriptor connection, OnMessage on_message, OnClosed on_closed);
  ~RunnerLink();
  RunnerLink(const RunnerLink&) = delete;
  RunnerLink& operator=(const RunnerLink&) = delete;

  // False: it cannot be told; OnClosed comes, or has come.
  bool terminate(wire::EndReason reason, std::chrono::nanoseconds grace);
  bool suspend(std::uint64_t sequence);
  bool resume(std::uint64_t sequence);
  bool signal(int number);
  // The end that it told is stored.
  bool note_end();

 private:
  template <class Message>
  bool send(const Message& message);

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gpumux::runners

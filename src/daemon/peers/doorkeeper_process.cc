// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/doorkeeper_process.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "os/unix_socket.h"

namespace gpumux::daemon {
namespace {

constexpr std::chrono::seconds kCheckPatience{5};  // as kLookPatience

}  // namespace

void keep_door(int channel) {
  const os::FileDescriptor memory(::memfd_create("gpumux-door", MFD_CLOEXEC));
  alignas(Answer) std::array<std::byte, kAnswerBytes> reply{};
  std::array<int, os::kMaxDescriptors> fds{};
  for (;;) {
    pollfd poller{channel, POLLIN, 0};
    ::poll(&poller, 1, -1);
    std::byte nothing;
    auto request = os::receive_message(channel, {&nothing, 1});
    if (!request || request->bytes == 0 || !request->fd) ::_exit(EXIT_SUCCESS);
    const auto arrived = os::receive_all(request->fd.get(), std::span(reply).subspan(sizeof(Answer)), fds);
    // The daemon has the connection, too: this drops nothing that lies in it.
    request->fd.reset();
    // Without a message: as if the connection had ended.
    const os::Arrived got = arrived.value_or(os::Arrived());
    const bool is_welcome =
        got.descriptors == 0 || (got.descriptors == 1 && doorkeepers::is_harmless(fds[0], memory.get()));
    const Answer answer{is_welcome ? Answer::Outcome::kReceived : Answer::Outcome::kRefused, got.was_cut};
    std::memcpy(reply.data(), &answer, sizeof answer);
    const std::size_t bytes = sizeof answer + (is_welcome ? got.bytes : 0);
    const int passed = is_welcome && got.descriptors == 1 ? fds[0] : -1;
    if (!os::send_message(channel, std::span(reply).first(bytes), passed) || !is_welcome) ::_exit(EXIT_SUCCESS);
    if (passed >= 0) ::close(passed);
  }
}

base::Status check(const doorkeepers::Starter& starter) {
  const os::FileDescriptor memory(::memfd_create("gpumux-check", MFD_CLOEXEC));
  if (!memory) return base::fail_errno(errno, "cannot make a memory file");
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a pair of sockets");
  const os::FileDescriptor near(ends[0]);
  const os::FileDescriptor far(ends[1]);
  auto channel = starter.add();
  if (!channel) return tl::unexpected(channel.error());
  const std::byte nothing{};
  GPUMUX_TRY(os::send_message(near.get(), {&nothing, 1}, memory.get()));
  GPUMUX_TRY(os::send_message(channel->get(), {&nothing, 1}, far.get()));
  pollfd answers{channel->get(), POLLIN, 0};
  // A machine that is as slow as that refuses nothing.
  if (::poll(&answers, 1, static_cast<int>(std::chrono::milliseconds(kCheckPatience).count())) == 0) return {};
  std::array<std::byte, kAnswerBytes> buffer;
  const auto received = os::receive_message(channel->get(), buffer);
  if (received && received->bytes > sizeof(Answer) && received->fd) return {};
  return base::fail(base::Code::kUnsupported,
                    std::string("the process ") + doorkeepers::kName +
                        " cannot receive a memory file: no process can be started, or a sandbox forbids a system "
                        "call (dup3, memfd_create, prctl, statx)");
}

}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpu_lock.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "daemon/process_info.h"
#include "os/unix_socket.h"

namespace gpumux::daemon {
namespace {

// The owner answers from its loop. One that is stuck costs its visitors this long, and only the path is then missing.
constexpr int kAnswerTimeoutMs = 300;

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&socket); }
};

Address address_of(const std::string& uuid_text) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::string name = "gpumux-gpu-" + uuid_text;
  const std::size_t length = std::min(name.size(), sizeof address.socket.sun_path - 1);
  // The first byte stays zero: an abstract name.
  std::memcpy(address.socket.sun_path + 1, name.data(), length);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

os::FileDescriptor make_socket() {
  return os::FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::optional<LockOwner> ask_owner(const Address& address) {
  const os::FileDescriptor socket = make_socket();
  if (!socket || ::connect(socket.get(), address.generic(), address.length) != 0) return std::nullopt;
  const auto credentials = os::peer_credentials(socket.get());
  if (!credentials) return std::nullopt;
  LockOwner owner{credentials->pid, credentials->uid, {}};
  pollfd poller{socket.get(), POLLIN, 0};
  std::array<std::byte, 512> buffer;
  if (::poll(&poller, 1, kAnswerTimeoutMs) == 1) {
    const auto received = os::receive_message(socket.get(), buffer);
    if (received) owner.runtime_dir.assign(reinterpret_cast<const char*>(buffer.data()), received->bytes);
  }
  // Another user's words go to a terminal.
  std::replace_if(
      owner.runtime_dir.begin(), owner.runtime_dir.end(), [](char c) { return c < 0x20 || c == 0x7f; }, '?');
  return owner;
}

}  // namespace

base::Result<GpuLock> GpuLock::take_only(const std::string& uuid_text) {
  const Address address = address_of(uuid_text);
  os::FileDescriptor socket = make_socket();
  if (!socket) return base::fail_errno(errno, "cannot create the lock of " + uuid_text);
  if (::bind(socket.get(), address.generic(), address.length) != 0) {
    return base::fail_errno(errno, "cannot take the lock of " + uuid_text);
  }
  // The kernel keeps our credentials for visitors from here on.
  if (::listen(socket.get(), 8) != 0) return base::fail_errno(errno, "cannot listen on the lock of " + uuid_text);
  return GpuLock(std::move(socket));
}

base::Result<GpuLock> GpuLock::take(const std::string& uuid_text, std::optional<LockOwner>& owner) {
  auto lock = take_only(uuid_text);
  if (!lock && lock.error().system_errno == EADDRINUSE) owner = ask_owner(address_of(uuid_text));
  return lock;
}

void GpuLock::answer(const std::string& runtime_dir) const {
  for (;;) {
    const os::FileDescriptor visitor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!visitor) return;
    static_cast<void>(os::send_message(visitor.get(), std::as_bytes(std::span(runtime_dir))));
  }
}

std::string describe(const LockOwner& owner) {
  std::string text = "pid " + std::to_string(owner.pid) + " of user " + user_name(owner.uid);
  if (!owner.runtime_dir.empty()) text += " (" + owner.runtime_dir + ")";
  return text;
}

}  // namespace gpumux::daemon

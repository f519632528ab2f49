// SPDX-License-Identifier: Apache-2.0
#include "daemon/service_manager.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "base/units.h"
#include "os/file_descriptor.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"

namespace gpumux::daemon {

ServiceManager::ServiceManager(int notify_fd) : notify_fd_(notify_fd) {
  if (const char* path = std::getenv("NOTIFY_SOCKET"); path != nullptr) socket_ = path;
  const char* interval = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  const bool for_us = pid == nullptr || pid == std::to_string(::getpid());
  if (interval != nullptr && for_us) {
    // Twice as often as asked for, as systemd recommends.
    if (const auto us = base::parse_integer(interval, 1000, 86'400'000'000)) {
      watchdog_interval_ = std::chrono::microseconds(static_cast<std::int64_t>(*us / 2));
    }
  }
}

void ServiceManager::ready() {
  send("READY=1\nSTATUS=Serving");
  if (notify_fd_ < 0) return;
  static constexpr char kReady[] = "READY=1\n";
  // There is no reader if the process that started us does not listen.
  [[maybe_unused]] const ssize_t written = ::write(notify_fd_, kReady, sizeof kReady - 1);
  ::close(notify_fd_);
  notify_fd_ = -1;
}

void ServiceManager::reloading() {
  const auto now = os::now().time_since_epoch();
  send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now.count() / 1000));
}

void ServiceManager::stopping() { send("STOPPING=1\nSTATUS=Stopping; tenants go on"); }

void ServiceManager::alive() { send("WATCHDOG=1"); }

void ServiceManager::send(const std::string& message) const {
  if (socket_.size() < 2 || (socket_[0] != '/' && socket_[0] != '@')) return;
  const auto address = os::unix_address(socket_);
  const os::FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!address || !fd) return;
  ::sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL, address->generic(), address->length);
}

}  // namespace gpumux::daemon

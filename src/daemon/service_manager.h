// SPDX-License-Identifier: Apache-2.0
// Tells systemd (NOTIFY_SOCKET), or the process that started us (--notify-fd), that we are ready, reloading, stopping,
// alive.
//
// Written here rather than taken from libsystemd: that library comes only as a shared one, and gpumuxd has to run where
// it is not installed. The protocol is one datagram of "KEY=value" lines.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"

namespace gpumux::daemon {

class ServiceManager {
 public:
  // `notify_fd`: a descriptor on which "READY=1\n" is written once; negative: none. It is closed afterwards.
  explicit ServiceManager(int notify_fd);

  void ready();
  void reloading();
  void stopping();
  void alive();

  // How often alive() is wanted; none: not at all.
  std::optional<base::Duration> watchdog_interval() const { return watchdog_interval_; }

 private:
  void send(const std::string& message) const;

  int notify_fd_;
  std::string socket_;  // empty: none
  std::optional<base::Duration> watchdog_interval_;
};

}  // namespace gpumux::daemon

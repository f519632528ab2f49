// SPDX-License-Identifier: Apache-2.0
// The driver as the kubelet sees it: a socket that it finds in its folder plugins_registry, and one that it calls.
//
// The rule: the driver serves while both sockets are the files that it made. Otherwise it makes them anew. A kubelet
// that starts looks through the folder itself, so its restarts need nothing.
//
// Threads: run() has its caller's. The kubelet's calls come on threads of gRPC. The other functions may be called from
// any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/dra/claims.h"

namespace gpumux::kubernetes {

struct DriverSettings {
  std::string kubelet = "/var/lib/kubelet";  // its folder
  std::string pool;

  std::string registration_socket() const;
  std::string service_socket() const;
  std::string claims_folder() const;
};

struct DeviceState {
  std::string device;
  std::string sick;  // why; empty: it is healthy

  friend bool operator==(const DeviceState&, const DeviceState&) = default;
};

class Driver {
 public:
  using Report = std::function<void(const std::string& sentence)>;

  // `claims` outlives it.
  Driver(DriverSettings settings, Claims& claims, Report report);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Serves until stop(). A failed look is reported, once as long as its error stays the same, and tried again.
  base::Status run();
  void stop();

  // Whether the kubelet has registered it: since then the kubelet calls it for pods.
  bool is_registered() const;

  // The kubelet gets the new list at once.
  void set_health(std::vector<DeviceState> devices);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Whether a driver with these settings answers calls. kUnavailable: it does not.
base::Status ask_driver(const DriverSettings& settings);

}  // namespace gpumux::kubernetes

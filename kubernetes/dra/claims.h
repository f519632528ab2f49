// SPDX-License-Identifier: Apache-2.0
// The claims that are prepared on this node. Each has a record and a CDI specification:
//
//   prepare      record, then specification, then the answer
//   unprepare    specification, then record, then the answer
//
// So a specification has a record, whenever the plugin is killed. Both calls may be repeated, come late or for claims
// that were never here. A prepared claim is prepared again from its record, without the API server: the specification
// does not outlast the machine's start, and the record does.
//
// A record that cannot be read is put aside under another name. Nothing is lost by that: the kubelet prepares the claim
// again before a container of it starts, and the API server still has the allocation.
//
// Any thread. Fetch and Give are called without a lock, by several threads at once.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/cdi/injection.h"
#include "kubernetes/cdi/specification.h"
#include "kubernetes/dra/grant.h"
#include "os/file_descriptor.h"

namespace gpumux::kubernetes {

struct ClaimName {
  std::string name_space;
  std::string name;
  std::string uid;
};

// A device as the kubelet gets it.
struct PreparedDevice {
  std::string request;  // of the pod: of one of several alternatives "main/big" it is "main"
  std::string pool;
  std::string device;
  std::vector<std::string> cdi_devices;
  std::string share_id{};  // empty: none

  friend bool operator==(const PreparedDevice&, const PreparedDevice&) = default;
};

struct ClaimsSettings {
  std::string folder;  // of the records; is made
  std::string cdi_folder = kSpecificationFolder;
  std::string hook;
  std::string pool;
};

class Claims {
 public:
  // The ResourceClaim as the API server has it; kNotFound: there is none.
  using Fetch = std::function<base::Result<std::string>(const ClaimName& claim)>;
  // Containers with the grant get our injection, and further CDI devices for each share, in their order. An error is
  // for the pod's author.
  struct Given {
    Injection injection;
    std::vector<std::vector<std::string>> cdi_devices;
  };
  using Give = std::function<base::Result<Given>(const Grant& grant)>;
  using Report = std::function<void(const std::string& sentence)>;

  // Reads the records.
  static base::Result<std::unique_ptr<Claims>> open(ClaimsSettings settings, Fetch fetch, Give give, Report report);

  base::Result<std::vector<PreparedDevice>> prepare(const ClaimName& claim);
  base::Status unprepare(const ClaimName& claim);

  // Unprepares the claims that the API server does not have any more, or has under another uid. All others stay, also
  // while it does not answer. For the start: the kubelet unprepares all others itself.
  void remove_gone();

  // The uids of the prepared claims.
  std::vector<std::string> uids() const;

 private:
  Claims(ClaimsSettings settings, Fetch fetch, Give give, Report report, os::FileDescriptor folder,
         SpecificationFolder specifications);
  base::Status read_records();
  std::optional<Grant> known(const std::string& uid) const;

  const ClaimsSettings settings_;
  const Fetch fetch_;
  const Give give_;
  const Report report_;
  const os::FileDescriptor folder_;
  mutable std::mutex mutex_;
  // From here on guarded by mutex_, and with them the files.
  SpecificationFolder specifications_;
  std::map<std::string, Grant> grants_;  // by uid
};

// The uids of the records in a claims' folder. None, too, if there is no folder.
base::Result<std::vector<std::string>> recorded_claims(const std::string& folder);

// For a folder without records whose plugin has ended. Removes the folder, with the records that were put aside and
// what a killed plugin has left. A folder with any other file stays.
base::Status remove_claims_folder(const std::string& folder);

}  // namespace gpumux::kubernetes

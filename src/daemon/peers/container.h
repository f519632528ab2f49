// SPDX-License-Identifier: Apache-2.0
// The container of a process. The kernel names the control group; the container's record names its owner and the bounds
// of its claim (containers/record.h). Nothing comes from the process itself.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "containers/record.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// The loop's thread.
class ContainerRecords {
 public:
  // No records: containers have ids, and no names and claims.
  ContainerRecords() = default;
  // Makes the folder if it is missing. Removes records of containers in which no process is left: the machine or the
  // runtime went down without reporting their ends. Files of hooks that were killed while they wrote go, too.
  static base::Result<ContainerRecords> open(const std::string& path);

  // Null: in no container. Without a record of it, and if that cannot be read (which is logged), it has its id and its
  // control group only. Reads /proc and a small file, for microseconds. The answer is of `pid` only if that has not
  // ended by then.
  std::shared_ptr<const containers::Record> container_of(pid_t pid) const;

 private:
  explicit ContainerRecords(os::FileDescriptor folder) : folder_(std::move(folder)) {}
  base::Status remove_left_over() const;

  os::FileDescriptor folder_;
};

}  // namespace gpumux::daemon

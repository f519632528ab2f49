// SPDX-License-Identifier: Apache-2.0
// Names in the file system of host memory (host_files.h), by which the next daemon finds what its mover has: files, and
// short texts. A text is a symbolic link's target. Such a link is made at once, and takes no huge page.
//
// The file system is attached at a folder of the daemon's (setting keep_host_memory), so it outlives the daemon.
// Without such a folder nothing has a name, and every call is without effect.
//
// Any thread, but not two at once. Errors are logged: the names are for the next daemon, and this one goes on.
#pragma once

#include <string>
#include <vector>

#include "os/file_descriptor.h"

namespace gpumux::daemon {

class HostNames {
 public:
  HostNames() = default;
  // `folder`: where the file system is attached, open.
  explicit HostNames(os::FileDescriptor folder) : folder_(std::move(folder)) {}

  bool are_kept() const { return static_cast<bool>(folder_); }
  // To a file of this file system that has had no name yet. Another file that has it loses it.
  void give(const std::string& name, int file);
  // Replaces the text of that name.
  void write(const std::string& name, const std::string& text);
  // Nothing happens if there is no such name.
  void remove(const std::string& name);
  void remove_all();

  std::vector<std::string> all() const;
  // None: there is no such file.
  os::FileDescriptor open(const std::string& name) const;
  // Empty: there is no such text.
  std::string read(const std::string& name) const;

 private:
  os::FileDescriptor folder_;
};

}  // namespace gpumux::daemon

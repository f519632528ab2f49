// SPDX-License-Identifier: Apache-2.0
// Small files that must be whole and lasting, or not there at all; and files that exactly one process can make.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::os {

base::Result<FileDescriptor> open_directory(const std::string& path);

// The names in it, but for "." and "..", in no particular order.
base::Result<std::vector<std::string>> list_directory(const std::string& path);
// The same of `path` in an open folder.
base::Result<std::vector<std::string>> list_directory_at(int directory, const std::string& path);

// All of the file, which must be at most `most` bytes long and a regular file (kInvalid).
base::Result<std::string> read_file_at(int directory, const char* name, std::size_t most);

// A file that does not say how long it is, in /proc or of a control group: its content, up to `most` bytes.
base::Result<std::string> read_unsized_at(int directory, const char* name, std::size_t most = SIZE_MAX);

// All of it, however often the kernel takes a part. `name`: the file's, for the error.
base::Status write_all(int fd, std::string_view content, const std::string& name);
// A new file with this content; kExists if there is one. Not synced.
base::Status write_new_file_at(int directory, const char* name, std::string_view content, mode_t mode);

// Makes `name` with this content for the first caller. The file has all of its content and an exclusive flock by the
// caller from the first moment. Both are durable once this returns. kExists: another process was first. The lock is the
// caller's for as long as the descriptor (or a copy of it in another process) is open.
base::Result<FileDescriptor> claim_file_at(int directory, const char* name, std::string_view content);

// Whether a process holds the lock of such a file.
base::Result<bool> is_claim_locked(int directory, const char* name);

// Gives `name` this content and mode, durably, in place of an old file of that name: a reader sees one or the other. An
// error leaves the old file, and no other. Several processes may do so at once, in different pid namespaces, too. The
// file system must know unnamed files (O_TMPFILE).
base::Status replace_file_at(int directory, const char* name, std::string_view content, mode_t mode);

// Removes the file that a process that was killed in replace_file_at() may have left under this name, and nothing else.
void remove_abandoned_at(int directory, std::string_view name);

// The name that such a file was to get; empty: this is no name of such a file.
std::string_view name_of_abandoned(std::string_view name);

// A file whose room on disk is taken ahead, so that its content can be written even if the disk becomes full.
class ReservedFile {
 public:
  // Takes room for `bytes` under a name of its own. An error leaves it unreserved; publish() works all the same.
  base::Status reserve(int directory, const char* name, std::size_t bytes);
  // Writes the content, makes it durable, and only then gives it its name. Replaces the file of that name. May be tried
  // again after an error.
  base::Status publish(std::string_view content);

 private:
  base::Status open();

  int directory_ = -1;
  std::string name_;
  std::string temporary_;  // of file_
  FileDescriptor file_;
};

// /proc/sys/kernel/random/boot_id: another one after each start of the machine. Empty where it cannot be read.
std::string boot_id();

}  // namespace gpumux::os

// SPDX-License-Identifier: Apache-2.0
// The CDI specification files by which container runtimes learn what to do for a container.
//
// One file for each owner: a claim, or the node, whose file all containers of the device plugin share. It has one
// device, with all edits of all the owner's GPUs. Runtimes merge the edits of several devices silently, and the last
// value of a variable wins. A claim's file goes with the claim. The node's file stays.
//
// A file is there as a whole or not at all (os::replace_file_at). Writing it again replaces it, removing it again does
// nothing, and both last over a crash. So the kubelet may repeat its calls. Every user may read the files.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/cdi/injection.h"
#include "os/file_descriptor.h"

namespace gpumux::kubernetes {

// Where runtimes look for specifications that do not outlast the machine's start.
inline constexpr char kSpecificationFolder[] = "/var/run/cdi";

struct Owner {
  enum class Kind { kClaim, kContainer };
  Kind kind = Kind::kClaim;
  std::string id;  // a claim's uid: letters, digits, - _ . and at most kMaxIdBytes

  friend bool operator==(const Owner&, const Owner&) = default;
};

// File names have 255 bytes at most, and the vendor and the kind are in them.
inline constexpr std::size_t kMaxIdBytes = 128;

// "gpumux.io/claim=id-UID": what a plugin gives to the kubelet, and the kubelet to the runtime.
std::string device_name(const Owner& owner);

// The text of a file. `hook`: gpumux-cdi-hook on the host. kInvalid: check() of the injection, an owner's id or the
// hook's path that cannot be used.
base::Result<std::string> specification(const Owner& owner, const Injection& injection, const std::string& hook);

// One folder. Several processes may write at once, for example two plugins during an upgrade: of two files for one
// owner the later one stays. An object is not safe for use by two threads at once.
class SpecificationFolder {
 public:
  // Makes the folder if it is missing, and removes what killed writers of ours have left unfinished.
  static base::Result<SpecificationFolder> open(const std::string& path = kSpecificationFolder);

  // The device's name. An error leaves the owner's old file as it was.
  base::Result<std::string> write(const Owner& owner, const Injection& injection, const std::string& hook);
  // No error if there is none.
  base::Status remove(const Owner& owner);
  // The owners of all files of ours, sorted: a plugin that starts removes those that it does not know.
  base::Result<std::vector<Owner>> owners() const;

 private:
  SpecificationFolder(std::string path, os::FileDescriptor folder);
  base::Result<std::vector<std::string>> names() const;

  std::string path_;
  os::FileDescriptor folder_;
};

}  // namespace gpumux::kubernetes

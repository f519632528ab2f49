// SPDX-License-Identifier: Apache-2.0
#include "pager/adapters.h"

#include <dirent.h>
#include <unistd.h>

#include <string_view>

namespace gpumux::pager {
namespace {

constexpr std::string_view kAdapters = "/dev/infiniband/uverbs";

}  // namespace

bool adapters_may_use_memory(const std::string& modules, const std::string& descriptors) {
  // nv_peer_mem: what it was called when it came from Mellanox.
  if (::access((modules + "/nvidia_peermem").c_str(), F_OK) != 0 &&
      ::access((modules + "/nv_peer_mem").c_str(), F_OK) != 0)
    return false;
  DIR* const folder = ::opendir(descriptors.c_str());
  if (folder == nullptr) return true;  // not known
  bool found = false;
  while (const dirent* entry = ::readdir(folder)) {
    char target[64];
    const auto length = ::readlink((descriptors + "/" + entry->d_name).c_str(), target, sizeof target);
    if (length > 0 && std::string_view(target, static_cast<std::size_t>(length)).starts_with(kAdapters)) found = true;
  }
  ::closedir(folder);
  return found;
}

bool adapters_may_use_memory() { return adapters_may_use_memory("/sys/module", "/proc/self/fd"); }

}  // namespace gpumux::pager

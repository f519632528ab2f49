// SPDX-License-Identifier: Apache-2.0
#include "daemon/trust_domain.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>

#include "daemon/files.h"

namespace gpumux::daemon {
namespace {

constexpr std::size_t kMaxLabel = 4096;

}  // namespace

std::string trust_domain(pid_t pid, uid_t uid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::string domain = std::to_string(uid);
  for (const char* name : {"user", "pid", "mnt"}) {
    struct stat space {};
    if (::stat((process + "/ns/" + name).c_str(), &space) != 0) return {};
    domain += "/" + std::to_string(space.st_dev) + ":" + std::to_string(space.st_ino);
  }
  const auto label = read_file(process + "/attr/current", kMaxLabel);
  if (label) return domain + "/" + *label;
  // Where no module labels processes the file is not there, or the kernel refuses to read it with EINVAL.
  const int why = label.error().system_errno;
  return why == ENOENT || why == EINVAL ? domain : std::string();
}

}  // namespace gpumux::daemon

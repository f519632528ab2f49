// SPDX-License-Identifier: Apache-2.0
#include "os/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace gpumux::os {

void fill_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (opened != fd && opened >= 0) ::close(opened);
  }
}

}  // namespace gpumux::os

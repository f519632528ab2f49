// SPDX-License-Identifier: Apache-2.0
#include "os/random.h"

#include <sys/random.h>

#include <cerrno>
#include <vector>

namespace gpumux::os {

base::Result<std::string> random_hex(std::size_t count) {
  std::vector<unsigned char> bytes(count);
  // Whole, up to 256 bytes: the kernel promises that.
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))
    return base::fail_errno(errno, "cannot get random bytes");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace gpumux::os

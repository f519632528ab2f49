// SPDX-License-Identifier: Apache-2.0
#include "cli/run/preload.h"

#include <gnu/libc-version.h>
#include <unistd.h>

#include <cerrno>

#include "cli/run/elf_file.h"

namespace gpumux::cli {
using base::Code;
using base::Result;
using base::Status;

Status check_preloadable(const std::string& library) {
  if (library.find_first_of(" :\t\n") != std::string::npos) {
    return base::fail(
        Code::kInvalid,
        "the library's path '" + library +
            "' has a space or a colon in it, which LD_PRELOAD cannot express: install gpumux elsewhere, or "
            "name another copy in GPUMUX_LIBRARY");
  }
  auto file = read_elf(library);
  if (!file) return tl::unexpected(std::move(file).error());
  const auto self = read_elf("/proc/self/exe");
  if (!file->is_shared_object) return base::fail(Code::kInvalid, library + " is not a shared library");
  if (self && (file->machine != self->machine || file->is_64_bit != self->is_64_bit)) {
    return base::fail(Code::kInvalid, library + " is for " + machine_name(file->machine) +
                                          ", this machine's programs are for " + machine_name(self->machine) +
                                          ": install the package for this machine");
  }
  const std::string here = ::gnu_get_libc_version();
  if (!file->glibc.empty() && is_older_version(here, file->glibc)) {
    return base::fail(Code::kUnsupported,
                      library + " needs glibc " + file->glibc + ", here is " + here +
                          ": the loader would refuse it; install the package built for this system");
  }
  if (::access(library.c_str(), R_OK) != 0) return base::fail_errno(errno, "cannot read " + library);
  return {};
}

}  // namespace gpumux::cli

// SPDX-License-Identifier: Apache-2.0
#include "client/lease_page_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace gpumux::client {

base::Result<LeasePageMemory> LeasePageMemory::make() {
  // The raw call: glibc has a wrapper only since 2.27.
  os::FileDescriptor fd(
      static_cast<int>(::syscall(SYS_memfd_create, "gpumux-lease-page", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd) return base::fail_errno(errno, "cannot create the lease page");
  if (::ftruncate(fd.get(), static_cast<off_t>(wire::kLeasePageBytes)) != 0)
    return base::fail_errno(errno, "cannot size the lease page");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return base::fail_errno(errno, "cannot seal the lease page");
  }
  void* memory = ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return base::fail_errno(errno, "cannot map the lease page");
  return LeasePageMemory(std::move(fd), static_cast<wire::LeasePage*>(memory));
}

LeasePageMemory::LeasePageMemory(LeasePageMemory&& other) noexcept
    : fd_(std::move(other.fd_)), page_(std::exchange(other.page_, nullptr)) {}

LeasePageMemory::~LeasePageMemory() {
  if (page_ != nullptr) ::munmap(page_, wire::kLeasePageBytes);
}

}  // namespace gpumux::client

// SPDX-License-Identifier: Apache-2.0
// The memory behind a tenant's lease page: a sealed memfd that this process maps and the daemon maps too.
#pragma once

#include "base/result.h"
#include "os/file_descriptor.h"
#include "os/kept_descriptor.h"
#include "wire/lease_page.h"

namespace gpumux::client {

class LeasePageMemory {
 public:
  // A zeroed page. kUnsupported or kExhausted where the system refuses memfds or mappings.
  static base::Result<LeasePageMemory> make();

  LeasePageMemory(LeasePageMemory&& other) noexcept;
  LeasePageMemory& operator=(LeasePageMemory&&) = delete;
  ~LeasePageMemory();

  wire::LeasePage& page() const { return *page_; }
  // Negative: the program has closed it, and no further daemon can be given the page.
  int fd() const { return fd_.get(); }

 private:
  LeasePageMemory(os::FileDescriptor fd, wire::LeasePage* page) : fd_(std::move(fd)), page_(page) {}
  os::KeptDescriptor fd_;
  wire::LeasePage* page_ = nullptr;
};

}  // namespace gpumux::client

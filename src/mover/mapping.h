// SPDX-License-Identifier: Apache-2.0
// One chunk's memory, imported and mapped into this process by the descriptor that came with it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "cuda/driver.gen.h"
#include "os/file_descriptor.h"

namespace gpumux::mover {

class Mapping {
 public:
  // REQUIRES: the device's context is current. On failure `*mapping` stays empty and the descriptor is closed.
  // `*is_stuck` is set if ever the driver does not take back what was mapped. It outlives the mapping.
  static cuda::CUresult make(const cuda::Driver& driver, cuda::CUdevice device, os::FileDescriptor memory,
                             std::uint64_t bytes, bool* is_stuck, std::optional<Mapping>* mapping);

  Mapping(Mapping&& other) noexcept : driver_(other.driver_), is_stuck_(other.is_stuck_) { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  ~Mapping() { unmap(); }

  cuda::CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  // Unmaps the memory and releases it. The descriptor is all that this process still has of it then.
  os::FileDescriptor let_go() &&;

 private:
  Mapping(const cuda::Driver& driver, os::FileDescriptor memory, std::uint64_t bytes, bool* is_stuck)
      : driver_(&driver), is_stuck_(is_stuck), memory_(std::move(memory)), bytes_(bytes) {}
  cuda::CUresult map(cuda::CUdevice device);
  void unmap();

  const cuda::Driver* driver_;
  bool* is_stuck_;
  os::FileDescriptor memory_;
  std::uint64_t bytes_ = 0;
  cuda::CUmemGenericAllocationHandle handle_ = 0;
  cuda::CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
};

}  // namespace gpumux::mover

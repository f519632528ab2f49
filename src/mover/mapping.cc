// SPDX-License-Identifier: Apache-2.0
#include "mover/mapping.h"

namespace gpumux::mover {

using cuda::CUresult;

CUresult Mapping::make(const cuda::Driver& driver, cuda::CUdevice device, os::FileDescriptor memory,
                       std::uint64_t bytes, bool* is_stuck, std::optional<Mapping>* mapping) {
  Mapping made(driver, std::move(memory), bytes, is_stuck);
  const CUresult result = made.map(device);
  if (result == cuda::CUDA_SUCCESS) mapping->emplace(std::move(made));
  return result;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  driver_ = other.driver_;
  is_stuck_ = other.is_stuck_;
  memory_ = std::move(other.memory_);
  bytes_ = other.bytes_;
  handle_ = std::exchange(other.handle_, 0);
  address_ = std::exchange(other.address_, 0);
  is_mapped_ = std::exchange(other.is_mapped_, false);
  return *this;
}

CUresult Mapping::map(cuda::CUdevice device) {
  CUresult result = driver_->cuMemImportFromShareableHandle(
      &handle_, reinterpret_cast<void*>(static_cast<std::intptr_t>(memory_.get())),
      cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != cuda::CUDA_SUCCESS) {
    handle_ = 0;
    return result;
  }
  // Memory of another kind or GPU may fault, and with it the context in which all seats' memory moves.
  cuda::CUmemAllocationProp properties{};
  result = driver_->cuMemGetAllocationPropertiesFromHandle(&properties, handle_);
  if (result != cuda::CUDA_SUCCESS) return result;
  if (properties.type != cuda::CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties.location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE || properties.location.id != device)
    return cuda::CUDA_ERROR_INVALID_VALUE;
  result = driver_->cuMemAddressReserve(&address_, bytes_, 0, 0, 0);
  if (result != cuda::CUDA_SUCCESS) return result;
  result = driver_->cuMemMap(address_, bytes_, 0, handle_, 0);
  if (result != cuda::CUDA_SUCCESS) return result;
  is_mapped_ = true;
  const cuda::CUmemAccessDesc own{{cuda::CU_MEM_LOCATION_TYPE_DEVICE, device},
                                  cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return driver_->cuMemSetAccess(address_, bytes_, &own, 1);
}

void Mapping::unmap() {
  const auto expect = [this](CUresult result) { *is_stuck_ = *is_stuck_ || result != cuda::CUDA_SUCCESS; };
  if (std::exchange(is_mapped_, false)) expect(driver_->cuMemUnmap(address_, bytes_));
  if (address_ != 0) expect(driver_->cuMemAddressFree(std::exchange(address_, 0), bytes_));
  if (handle_ != 0) expect(driver_->cuMemRelease(std::exchange(handle_, 0)));
}

os::FileDescriptor Mapping::let_go() && {
  unmap();
  return std::move(memory_);
}

}  // namespace gpumux::mover

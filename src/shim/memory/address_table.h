// SPDX-License-Identifier: Apache-2.0
// The device addresses that the program has reserved, and what it has mapped there: memory of the pager's, or the
// driver's own.
//
// Addresses stay the driver's to give. But the driver knows of no mapping while its memory is evicted. It would give
// the place to another mapping, or take the addresses back. And a mapping made while there is no memory for it must be
// one that the driver accepts later. So this table decides what is reserved and free.
//
// One lock for all of it, held across the driver's call that goes with a change: the two change together.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/lock.h"
#include "cuda/abi.h"

namespace gpumux::shim {

class DeviceMemory;

class AddressTable {
 public:
  struct Mapping {
    cuda::CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
    DeviceMemory* owner = nullptr;                  // null: the driver's own
    cuda::CUmemGenericAllocationHandle handle = 0;  // of the driver's own
  };
  struct Reservation {
    cuda::CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
  };

  class Locked {
   public:
    explicit Locked(AddressTable& table) : locked_(table.mutex_), table_(table) {}
    AddressTable* operator->() const { return &table_; }
    AddressTable& operator*() const { return table_; }

   private:
    const base::Locked locked_;
    AddressTable& table_;
  };

  // With the lock held:
  void reserve(cuda::CUdeviceptr address, std::uint64_t bytes) { reserved_[address] = bytes; }
  void unreserve(cuda::CUdeviceptr address) { reserved_.erase(address); }
  // The reservation that holds the address.
  std::optional<Reservation> reservation_of(cuda::CUdeviceptr address) const;
  // Is all of it reserved? Reservations next to each other are as good as one, as they are for the driver.
  bool is_reserved(cuda::CUdeviceptr address, std::uint64_t bytes) const;

  void add(const Mapping& mapping);
  // The handle whose memory has gone with it; 0: none.
  cuda::CUmemGenericAllocationHandle remove(cuda::CUdeviceptr address);
  // The mappings in any part of the range, in the order of addresses.
  std::vector<Mapping> in(cuda::CUdeviceptr address, std::uint64_t bytes) const;

  // Memory of the driver's own that is counted: it lives as long as its handle or a mapping.
  void created(cuda::CUmemGenericAllocationHandle handle) { counted_[handle] = {1, 0}; }
  void retained(cuda::CUmemGenericAllocationHandle handle);
  // True: its memory has gone with it.
  bool released(cuda::CUmemGenericAllocationHandle handle);

 private:
  struct Counted {
    std::uint32_t references = 0;
    std::uint32_t mappings = 0;
  };
  bool is_gone(cuda::CUmemGenericAllocationHandle handle);

  base::Mutex mutex_;
  std::map<cuda::CUdeviceptr, std::uint64_t> reserved_;
  std::map<cuda::CUdeviceptr, Mapping> mappings_;
  std::map<cuda::CUmemGenericAllocationHandle, Counted> counted_;
};

}  // namespace gpumux::shim

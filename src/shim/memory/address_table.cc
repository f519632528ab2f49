// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/address_table.h"

#include <iterator>

namespace gpumux::shim {

std::optional<AddressTable::Reservation> AddressTable::reservation_of(cuda::CUdeviceptr address) const {
  const auto next = reserved_.upper_bound(address);
  if (next == reserved_.begin()) return std::nullopt;
  const auto& [base, bytes] = *std::prev(next);
  if (address - base >= bytes) return std::nullopt;
  return Reservation{base, bytes};
}

bool AddressTable::is_reserved(cuda::CUdeviceptr address, std::uint64_t bytes) const {
  while (bytes != 0) {
    const auto holding = reservation_of(address);
    if (!holding) return false;
    const std::uint64_t covered = holding->bytes - (address - holding->address);
    if (covered >= bytes) return true;
    address += covered;
    bytes -= covered;
  }
  return true;
}

void AddressTable::add(const Mapping& mapping) {
  mappings_[mapping.address] = mapping;
  if (const auto found = counted_.find(mapping.handle); found != counted_.end()) ++found->second.mappings;
}

cuda::CUmemGenericAllocationHandle AddressTable::remove(cuda::CUdeviceptr address) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end()) return 0;
  const cuda::CUmemGenericAllocationHandle handle = found->second.handle;
  mappings_.erase(found);
  const auto counted = counted_.find(handle);
  if (counted == counted_.end()) return 0;
  --counted->second.mappings;
  return is_gone(handle) ? handle : 0;
}

void AddressTable::retained(cuda::CUmemGenericAllocationHandle handle) {
  if (const auto found = counted_.find(handle); found != counted_.end()) ++found->second.references;
}

bool AddressTable::released(cuda::CUmemGenericAllocationHandle handle) {
  const auto found = counted_.find(handle);
  if (found == counted_.end()) return false;
  if (found->second.references != 0) --found->second.references;
  return is_gone(handle);
}

bool AddressTable::is_gone(cuda::CUmemGenericAllocationHandle handle) {
  const auto found = counted_.find(handle);
  if (found->second.references != 0 || found->second.mappings != 0) return false;
  counted_.erase(found);
  return true;
}

std::vector<AddressTable::Mapping> AddressTable::in(cuda::CUdeviceptr address, std::uint64_t bytes) const {
  std::vector<Mapping> found;
  auto at = mappings_.upper_bound(address);
  if (at != mappings_.begin() && address - std::prev(at)->first < std::prev(at)->second.bytes) --at;
  for (; at != mappings_.end() && (at->first <= address || at->first - address < bytes); ++at)
    found.push_back(at->second);
  return found;
}

}  // namespace gpumux::shim

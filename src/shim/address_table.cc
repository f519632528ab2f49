// SPDX-License-Identifier: Apache-2.0
#include "shim/address_table.h"

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

std::vector<AddressTable::Mapping> AddressTable::in(cuda::CUdeviceptr address, std::uint64_t bytes) const {
  std::vector<Mapping> found;
  auto at = mappings_.upper_bound(address);
  if (at != mappings_.begin() && address - std::prev(at)->first < std::prev(at)->second.bytes) --at;
  for (; at != mappings_.end() && (at->first <= address || at->first - address < bytes); ++at)
    found.push_back(at->second);
  return found;
}

}  // namespace gpumux::shim

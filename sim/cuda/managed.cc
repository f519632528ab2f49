// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/managed.h"

#include "sim/cuda/address_space.h"

namespace gpumux::sim {
namespace {

// Advice and prefetches are of whole pages of the host's.
std::uint64_t first_page(std::uint64_t address) { return address / kHostPage * kHostPage; }
std::uint64_t last_page(std::uint64_t address, std::uint64_t bytes) {
  return (address + bytes + kHostPage - 1) / kHostPage * kHostPage;
}

}  // namespace

void ManagedPlaces::set(Fact fact, std::uint64_t address, std::uint64_t bytes, cuda::CUmemLocation place) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t begin = first_page(address);
  const std::uint64_t end = last_page(address, bytes);
  if (place.type == cuda::CU_MEM_LOCATION_TYPE_INVALID) {
    pieces_of(fact).erase(begin, end);
  } else {
    pieces_of(fact).set(begin, end, place);
  }
}

cuda::CUmemLocation ManagedPlaces::get(Fact fact, std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  constexpr cuda::CUmemLocation kNone{cuda::CU_MEM_LOCATION_TYPE_INVALID, 0};
  const Pieces& pieces = pieces_of(fact);
  std::uint64_t at = first_page(address);
  const auto first = pieces.find(at);
  while (at < last_page(address, bytes)) {
    const auto piece = pieces.find(at);
    if (!piece || piece->value.type != first->value.type || piece->value.id != first->value.id) return kNone;
    at = piece->end;
  }
  return first ? first->value : kNone;
}

void ManagedPlaces::forget(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (Pieces* const pieces : {&preferred_, &prefetched_})
    pieces->erase(first_page(address), last_page(address, bytes));
}

}  // namespace gpumux::sim

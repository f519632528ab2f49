// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/managed.h"

namespace gpumux::sim {
namespace {

// Advice and prefetches are of whole pages of the host's.
constexpr std::uint64_t kHostPage = 4096;

std::uint64_t first_page(std::uint64_t address) { return address / kHostPage * kHostPage; }
std::uint64_t last_page(std::uint64_t address, std::uint64_t bytes) {
  return (address + bytes + kHostPage - 1) / kHostPage * kHostPage;
}

}  // namespace

void ManagedPlaces::cut(Pieces& pieces, std::uint64_t begin, std::uint64_t end) {
  auto piece = pieces.lower_bound(begin);
  if (piece != pieces.begin() && std::prev(piece)->second.end > begin) --piece;
  while (piece != pieces.end() && piece->first < end) {
    const auto [its_begin, its] = *piece;
    piece = pieces.erase(piece);
    if (its_begin < begin) pieces[its_begin] = {begin, its.place};
    if (its.end > end) pieces[end] = {its.end, its.place};
  }
}

void ManagedPlaces::set(Fact fact, std::uint64_t address, std::uint64_t bytes, cuda::CUmemLocation place) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t begin = first_page(address);
  const std::uint64_t end = last_page(address, bytes);
  cut(pieces_of(fact), begin, end);
  if (place.type != cuda::CU_MEM_LOCATION_TYPE_INVALID) pieces_of(fact)[begin] = {end, place};
}

cuda::CUmemLocation ManagedPlaces::get(Fact fact, std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  constexpr cuda::CUmemLocation kNone{cuda::CU_MEM_LOCATION_TYPE_INVALID, 0};
  const Pieces& pieces = pieces_of(fact);
  const std::uint64_t end = last_page(address, bytes);
  auto piece = pieces.upper_bound(address);
  if (piece == pieces.begin()) return kNone;
  --piece;
  const cuda::CUmemLocation place = piece->second.place;
  std::uint64_t at = first_page(address);
  for (; at < end && piece != pieces.end(); ++piece) {
    const bool same = piece->second.place.type == place.type && piece->second.place.id == place.id;
    if (piece->first > at || piece->second.end <= at || !same) return kNone;
    at = piece->second.end;
  }
  return at >= end ? place : kNone;
}

void ManagedPlaces::forget(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (Pieces* const pieces : {&preferred_, &prefetched_}) cut(*pieces, first_page(address), last_page(address, bytes));
}

}  // namespace gpumux::sim

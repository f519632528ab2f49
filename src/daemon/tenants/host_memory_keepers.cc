// SPDX-License-Identifier: Apache-2.0
// The chunks that seats keep mapped without having them on loan, and how seats are told to let go of them.
#include <algorithm>
#include <utility>

#include "daemon/tenants/host_memory.h"
#include "wire/messages.h"

namespace gpumux::daemon {

void HostMemory::unmake(Chunk chunk) {
  if (chunk.keepers.empty()) return remake(std::move(chunk.memory));
  const std::uint64_t id = chunk.id;
  const std::vector<HostSeat> keepers = chunk.keepers;
  shares_.leaves(chunk.account);
  leaving_.emplace(id, std::move(chunk));
  for (const HostSeat& keeper : keepers) let_go(keeper, id);
}

// No process has it mapped any longer.
void HostMemory::has_left(std::unordered_map<std::uint64_t, Chunk>::iterator chunk) {
  shares_.has_left(chunk->second.account);
  remake(std::move(chunk->second.memory));
  leaving_.erase(chunk);
}

void HostMemory::let_go(const HostSeat& seat, std::uint64_t id) {
  if (is_let_go(seat, id)) return;
  borrowers_[seat.tenant].forgetting[seat.slot].to_tell.push_back(id);
  tell_urgent(seat);
}

const HostMemory::Forgetting* HostMemory::forgetting_of(const HostSeat& seat) const {
  const auto borrower = borrowers_.find(seat.tenant);
  if (borrower == borrowers_.end()) return nullptr;
  const auto forgetting = borrower->second.forgetting.find(seat.slot);
  return forgetting == borrower->second.forgetting.end() ? nullptr : &forgetting->second;
}

// It has been told, or will be.
bool HostMemory::is_let_go(const HostSeat& seat, std::uint64_t id) const {
  const Forgetting* const forgetting = forgetting_of(seat);
  if (forgetting == nullptr) return false;
  const auto has = [id](const std::vector<std::uint64_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return has(forgetting->told) || has(forgetting->to_tell);
}

void HostMemory::set_keeps(base::TenantId tenant, bool keeps) {
  borrowers_[tenant].keeps = keeps;
  if (keeps) return;
  const auto take = [&](const Chunk& chunk) {
    for (const HostSeat& keeper : std::vector<HostSeat>(chunk.keepers)) {
      if (keeper.tenant == tenant) let_go(keeper, chunk.id);
    }
  };
  for (const Chunk& chunk : used_) take(chunk);
  for (const auto& [id, borrower] : borrowers_) {
    for (const auto& [number, loan] : borrower.loans) take(loan.chunk);
  }
  // And what it would have been told of by and by.
  std::vector<std::uint32_t> slots;
  for (const auto& [slot, forgetting] : borrowers_[tenant].forgetting) slots.push_back(slot);
  for (const std::uint32_t slot : slots) tell_urgent({tenant, slot});
}

bool HostMemory::is_forgetting(base::TenantId tenant) const {
  const auto borrower = borrowers_.find(tenant);
  if (borrower == borrowers_.end()) return false;
  return std::any_of(borrower->second.forgetting.begin(), borrower->second.forgetting.end(),
                     [](const auto& one) { return !one.second.told.empty() || !one.second.to_tell.empty(); });
}

void HostMemory::tell_urgent(const HostSeat& seat) {
  if (is_urgent(borrowers_[seat.tenant])) tell(seat, wire::kMostForgotten);
}

void HostMemory::tell_all(std::size_t most) {
  for (const auto& [tenant, borrower] : borrowers_) {
    for (const auto& [slot, forgetting] : borrower.forgetting) tell({tenant, slot}, most);
  }
}

void HostMemory::tell(const HostSeat& seat, std::size_t most) {
  Forgetting& forgetting = borrowers_[seat.tenant].forgetting[seat.slot];
  std::vector<std::uint64_t>& next = forgetting.to_tell;
  if (!forgetting.told.empty() || next.empty()) return;
  const auto end = next.begin() + static_cast<std::ptrdiff_t>(std::min(next.size(), most));
  forgetting.told.assign(next.begin(), end);
  next.erase(next.begin(), end);
  on_forget_(seat, forgetting.told);
}

void HostMemory::forgotten(const HostSeat& seat) {
  const auto borrower = borrowers_.find(seat.tenant);
  if (borrower == borrowers_.end()) return;
  const auto forgetting = borrower->second.forgetting.find(seat.slot);
  if (forgetting == borrower->second.forgetting.end()) return;
  for (const std::uint64_t id : std::exchange(forgetting->second.told, {})) {
    const auto chunk = leaving_.find(id);
    if (chunk == leaving_.end()) {
      // Others may go on having it.
      if (Chunk* const stays = find(id)) std::erase(stays->keepers, seat);
      continue;
    }
    std::erase(chunk->second.keepers, seat);
    if (chunk->second.keepers.empty()) has_left(chunk);
  }
  tell_urgent(seat);
  serve();  // another seat can be lent the chunks that it has let go of
}

// One that is free or lent.
HostMemory::Chunk* HostMemory::find(std::uint64_t id) {
  const auto used = std::find_if(used_.begin(), used_.end(), [id](const Chunk& chunk) { return chunk.id == id; });
  if (used != used_.end()) return &*used;
  for (auto& [tenant, borrower] : borrowers_) {
    const auto loan = borrower.loans.find(id);
    if (loan != borrower.loans.end()) return &loan->second.chunk;
  }
  return nullptr;
}

}  // namespace gpumux::daemon

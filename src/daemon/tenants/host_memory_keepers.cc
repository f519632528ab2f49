// SPDX-License-Identifier: Apache-2.0
// The chunks that seats keep mapped without having them on loan, and how seats are told to let go of them.
#include <algorithm>
#include <utility>

#include "daemon/tenants/host_memory.h"
#include "wire/messages.h"

namespace gpumux::daemon {

void HostMemory::unmake(HostChunk& chunk) {
  if (chunk.keepers.empty()) return close(chunk);
  chunks_.move(chunk, State::kLeaving);
  for (const HostSeat& keeper : chunk.keepers) let_go(keeper, chunk.id);
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
  for (const State state : {State::kReturned, State::kLent}) {
    for (const HostChunk* const chunk : chunks_.in(state)) {
      for (const HostSeat& keeper : chunk->keepers) {
        if (keeper.tenant == tenant) let_go(keeper, chunk->id);
      }
    }
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
    HostChunk* const chunk = chunks_.find(id);
    if (chunk == nullptr) continue;
    std::erase(chunk->keepers, seat);  // a chunk that does not leave goes on, and others may have it
    if (chunk->state() == State::kLeaving && chunk->keepers.empty()) close(*chunk);
  }
  tell_urgent(seat);
  serve();  // another seat can be lent the chunks that it has let go of
}

}  // namespace gpumux::daemon

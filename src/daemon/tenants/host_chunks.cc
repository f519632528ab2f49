// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/host_chunks.h"

#include <algorithm>
#include <map>

namespace gpumux::daemon {

bool HostChunks::may_move(State from, State to) {
  switch (from) {
    case State::kMaking: return to == State::kReady;
    case State::kReady: return to == State::kLent || to == State::kUnmaking;
    case State::kLent: return to == State::kReturned || to == State::kLeaving || to == State::kUnmaking;
    case State::kReturned: return to == State::kLent || to == State::kLeaving || to == State::kUnmaking;
    case State::kLeaving: return to == State::kUnmaking;
    case State::kUnmaking: return false;
  }
  return false;
}

HostChunk& HostChunks::add() {
  const std::uint64_t id = next_id_++;
  HostChunk& chunk = chunks_.try_emplace(id, id).first->second;
  chunk.place_ = list(chunk.state_).insert(list(chunk.state_).end(), &chunk);
  return chunk;
}

void HostChunks::move(HostChunk& chunk, State to) {
  if (!may_move(chunk.state_, to) && broken_.empty()) {
    broken_ = "chunk " + std::to_string(chunk.id) + " went from state " +
              std::to_string(static_cast<int>(chunk.state_)) + " to " + std::to_string(static_cast<int>(to));
  }
  if (chunk.state_ == State::kLent) {
    seats_.returned(chunk.borrower);
    shares_.returned(chunk.account);
  }
  if (chunk.state_ == State::kLeaving) shares_.has_left(chunk.account);
  list(to).splice(list(to).end(), list(chunk.state_), chunk.place_);
  chunk.state_ = to;
  if (to == State::kLent) {
    seats_.lent(chunk.borrower);
    shares_.lent(chunk.account);
  }
  if (to == State::kLeaving) shares_.leaves(chunk.account);
}

void HostChunks::remove(HostChunk& chunk) {
  if (chunk.state_ != State::kMaking && chunk.state_ != State::kUnmaking && broken_.empty())
    broken_ = "chunk " + std::to_string(chunk.id) + " was removed while it was there";
  list(chunk.state_).erase(chunk.place_);
  chunks_.erase(chunk.id);
}

HostChunk* HostChunks::find(std::uint64_t id) {
  const auto found = chunks_.find(id);
  return found == chunks_.end() ? nullptr : &found->second;
}

std::string HostChunks::check(const HostChunk& chunk) const {
  const std::string name = "chunk " + std::to_string(chunk.id);
  if (*chunk.place_ != &chunk) return name + " has another one's place";
  const bool is_made = chunk.state_ != State::kMaking && chunk.state_ != State::kUnmaking;
  if (static_cast<bool>(chunk.memory) != is_made) return name + " has a file or none, against its state";
  const bool may_be_kept = is_made && chunk.state_ != State::kReady;
  if (!chunk.keepers.empty() && !may_be_kept) return name + " has keepers, against its state";
  if (chunk.keepers.empty() && chunk.state_ == State::kLeaving) return name + " leaves, and no seat has it";
  return {};
}

std::string HostChunks::check_invariants() const {
  if (!broken_.empty()) return broken_;
  std::size_t listed = 0;
  for (std::size_t i = 0; i < kStates; ++i) {
    listed += lists_[i].size();
    for (const HostChunk* chunk : lists_[i]) {
      if (static_cast<std::size_t>(chunk->state_) != i)
        return "chunk " + std::to_string(chunk->id) + " is listed under another state";
      if (const std::string fault = check(*chunk); !fault.empty()) return fault;
    }
  }
  if (listed != chunks_.size()) return "not every chunk is listed once";
  std::map<Account, std::uint64_t> mapped;
  for (const State state : {State::kLent, State::kLeaving}) {
    for (const HostChunk* chunk : in(state)) ++mapped[chunk->account];
  }
  for (const auto& [account, chunks] : mapped) {
    if (shares_.mapped_by(account) != chunks) return "an account has another number of chunks than it is counted for";
  }
  if (seats_.lent_to([](const HostSeat&) { return true; }) != count(State::kLent))
    return "the seats' loans are miscounted";
  return {};
}

}  // namespace gpumux::daemon

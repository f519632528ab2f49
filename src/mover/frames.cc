// SPDX-License-Identifier: Apache-2.0
#include "mover/frames.h"

#include <algorithm>
#include <utility>

namespace gpumux::mover {

void Frames::offer(SeatNumber giver, std::uint64_t ticket, Domain domain, Mapping memory) {
  frames_.push_back({.state = State::kOffered,
                     .giver = giver,
                     .ticket = ticket,
                     .domain = domain,
                     .memory = std::move(memory),
                     .until = {}});
}

void Frames::answered(SeatNumber giver, std::uint64_t ticket, bool is_released) {
  const auto found = std::find_if(frames_.begin(), frames_.end(), [&](const Frame& frame) {
    return frame.state == State::kOffered && frame.giver == giver && frame.ticket == ticket;
  });
  if (found == frames_.end()) return;
  if (is_released) {
    found->state = State::kKept;
  } else {
    frames_.erase(found);
  }
}

std::optional<Mapping> Frames::take(Domain domain, std::uint64_t bytes) {
  const auto found = std::find_if(frames_.begin(), frames_.end(), [&](const Frame& frame) {
    return frame.state == State::kKept && frame.domain == domain && frame.memory.bytes() == bytes;
  });
  if (domain == 0 || found == frames_.end()) return std::nullopt;
  std::optional<Mapping> taken(std::move(found->memory));
  frames_.erase(found);
  return taken;
}

void Frames::make_way(std::uint64_t bytes) {
  std::uint64_t freed = 0;
  frames_.remove_if([&](const Frame& frame) {
    if (frame.state != State::kKept || freed >= bytes) return false;
    freed += frame.memory.bytes();
    return true;
  });
}

void Frames::gone(SeatNumber giver) {
  frames_.remove_if([giver](const Frame& frame) { return frame.state == State::kOffered && frame.giver == giver; });
}

base::FrameSizes Frames::sizes(Domain domain) const {
  base::FrameSizes sizes = 0;
  for (const Frame& frame : frames_) {
    if (domain != 0 && frame.state == State::kKept && frame.domain == domain)
      sizes |= base::frame_size(frame.memory.bytes());
  }
  return sizes;
}

std::size_t Frames::count(Domain domain, std::uint64_t bytes) const {
  return static_cast<std::size_t>(std::count_if(frames_.begin(), frames_.end(), [&](const Frame& frame) {
    return frame.domain == domain && frame.memory.bytes() == bytes;
  }));
}

void Away::saved(std::uint64_t chunk, std::uint32_t blocks) {
  if (chunks_.size() >= kMost) return;
  if (chunks_.emplace(chunk, blocks).second) ++counts_[blocks];
}

void Away::forgotten(std::uint64_t chunk) {
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return;
  --counts_[found->second];
  chunks_.erase(found);
}

}  // namespace gpumux::mover

// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/frames.h"

#include <sys/resource.h>

#include <iterator>
#include <utility>

namespace gpumux::daemon {

std::size_t most_frames() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 : 0;
}

Frames::Frame* Frames::held(base::SeatId seat, std::uint64_t number) {
  const auto found = frames_.find(number);
  const bool has = found != frames_.end() && found->second.seat == seat && !found->second.is_waiting;
  return has ? &found->second : nullptr;
}

Frames::Table::iterator Frames::erase(Table::iterator frame) {
  if (frame->second.is_waiting) --waiting_;
  return frames_.erase(frame);
}

bool Frames::given(base::SeatId from, const std::string& domain, std::uint64_t number, std::uint64_t bytes,
                   ForeignDescriptor fd) {
  if (number == 0) {
    if (!fd || domain.empty() || base::frame_size(bytes) == 0 || frames_.size() >= most_) return false;
    frames_[++last_] = {
        .gpu = from.gpu, .bytes = bytes, .domain = domain, .fd = std::move(fd), .seat = from, .is_waiting = true};
    ++waiting_;
    return true;
  }
  Frame* const frame = held(from, number);
  if (frame == nullptr || frame->is_shared) {
    freed(from, number);
    return false;
  }
  frame->is_waiting = true;
  ++waiting_;
  return true;
}

void Frames::freed(base::SeatId seat, std::uint64_t number) {
  if (held(seat, number) != nullptr) erase(frames_.find(number));
}

void Frames::gone(base::SeatId seat) {
  // Frames that the seat has given stay: another seat may still have use for them.
  for (auto frame = frames_.begin(); frame != frames_.end();) {
    if (frame->second.seat == seat && !frame->second.is_waiting) {
      frame = erase(frame);
    } else {
      ++frame;
    }
  }
  reported(seat);
}

void Frames::reported(base::SeatId from) {
  if (waiting_ == 0) return;
  for (auto& [number, frame] : frames_) {
    if (frame.is_waiting && frame.seat == from) frame.is_reported = true;
  }
}

void Frames::settled() {
  if (waiting_ == 0) return;
  for (auto frame = frames_.begin(); frame != frames_.end();)
    frame = frame->second.is_reported ? erase(frame) : std::next(frame);
}

int Frames::share(base::SeatId seat, std::uint64_t number) {
  Frame* const frame = held(seat, number);
  if (frame == nullptr) return -1;
  frame->is_shared = true;
  return frame->fd.get();
}

}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
// Physical memory on its way from one seat to another (docs/decisions/0015): its descriptors, and the seat that has
// each frame.
//
//     given --lend--> with a seat --given--> ...
//       \--no seat took it by the time that its giver's report was planned with--> closed, which frees it
//
// A frame is lent only to seats of the giver's trust domain on the same GPU: it holds the giver's data. The daemon
// ignores a message about a frame that its seat does not have: the frame may be a former daemon's.
//
// Owned by the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/frame_sizes.h"
#include "base/ids.h"
#include "daemon/peers/closer.h"

namespace gpumux::daemon {

// Descriptors that this process may keep of frames: a quarter of all that it may have. Tenants may take half.
std::size_t most_frames();

class Frames {
 public:
  explicit Frames(std::size_t most) : most_(most) {}

  // `number` 0: a new one, with its descriptor; else one that the seat has. False: it is not kept, and so freed.
  bool given(base::SeatId from, const std::string& domain, std::uint64_t number, std::uint64_t bytes,
             ForeignDescriptor fd);
  // The seat does not have it any more.
  void freed(base::SeatId seat, std::uint64_t number);
  // The seat is gone, with whatever it has.
  void gone(base::SeatId seat);
  // The seat no longer has the frames that it has given: a frame that is not lent until settled() is freed.
  void reported(base::SeatId from);
  void settled();

  // The descriptor of a frame that the seat has; negative: it has no such frame. The table's. The frame is given to no
  // seat from now on.
  int share(base::SeatId seat, std::uint64_t number);

  // Lends frames of these sizes that were given on that GPU in that domain, no more than `bytes`. Returns the bytes
  // lent. It calls lend(number, bytes, fd) for each; the descriptor stays the table's.
  template <class Lend>
  std::uint64_t lend(base::SeatId to, const std::string& domain, base::FrameSizes sizes, std::uint64_t bytes,
                     Lend lend);

  std::size_t size() const { return frames_.size(); }

 private:
  struct Frame {
    base::GpuIndex gpu;
    std::uint64_t bytes = 0;
    std::string domain;
    ForeignDescriptor fd;
    base::SeatId seat;         // that has it, or had it last
    bool is_waiting = false;   // no seat has it
    bool is_reported = false;  // of one that waits
    bool is_shared = false;    // another process may have it for as long as it likes
  };
  using Table = std::map<std::uint64_t, Frame>;

  Frame* held(base::SeatId seat, std::uint64_t number);
  Table::iterator erase(Table::iterator frame);

  const std::size_t most_;
  Table frames_;
  std::size_t waiting_ = 0;  // given, and with no seat
  std::uint64_t last_ = 0;
};

template <class Lend>
std::uint64_t Frames::lend(base::SeatId to, const std::string& domain, base::FrameSizes sizes, std::uint64_t bytes,
                           Lend lend) {
  std::uint64_t lent = 0;
  if (domain.empty() || waiting_ == 0) return lent;
  for (auto& [number, frame] : frames_) {
    if (frame.bytes > bytes - lent || !frame.is_waiting || frame.gpu != to.gpu || frame.domain != domain) continue;
    if ((base::frame_size(frame.bytes) & sizes) == 0) continue;
    frame.is_waiting = frame.is_reported = false;
    frame.seat = to;
    --waiting_;
    lent += frame.bytes;
    lend(number, frame.bytes, frame.fd.get());
  }
  return lent;
}

}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
// Which letter and colour each program has on each GPU. Pure.
//
// Programs of one GPU have different letters, as long as there are letters. A program keeps its letter while it has a
// seat, and after that while the timeline may show it. It is known by its process, because a daemon that was started
// again gives it another number as a tenant. On other GPUs it has the same letter if that is free there.
#pragma once

#include <cstdint>
#include <map>

#include "api_client/types.h"
#include "base/clock.h"
#include "top/canvas.h"

namespace gpumux::top {

struct Mark {
  char letter = '?';  // of a tenant that is not known
  Hue hue = Hue::kNone;
};

// A program beyond the last letter, on a GPU with more programs than letters.
inline constexpr char kNoLetter = '+';

class Marks {
 public:
  // Every seat of now. A program without a seat keeps its letter until another program needs the letter, or forget().
  void take_snapshot(const api_client::Snapshot& snapshot, base::TimePoint now);
  // So that a program that ended before the first snapshot has a letter, too.
  void take_event(const api_client::TraceEvent& event);
  // Programs that have no seat and were last seen before this time.
  void forget(base::TimePoint before);
  // Another daemon numbers its tenants anew. The programs are the same.
  void forget_tenants() { program_of_.clear(); }

  Mark of(std::uint32_t gpu, std::uint64_t tenant) const;

 private:
  // The process; of a tenant whose process is not known, its own number as a negative one.
  using Program = std::int64_t;
  struct Place {
    std::size_t number = 0;
    base::TimePoint seen{};
    bool has_seat = false;
  };
  using Places = std::map<Program, Place>;

  Program know(std::uint64_t tenant, std::int64_t pid);
  Place& place(std::uint32_t gpu, Program program);
  std::size_t choose(std::uint32_t gpu, Program program) const;

  std::map<std::uint32_t, Places> gpus_;
  std::map<std::uint64_t, Program> program_of_;  // by tenant
};

}  // namespace gpumux::top

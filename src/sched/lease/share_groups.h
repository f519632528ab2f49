// SPDX-License-Identifier: Apache-2.0
// The time that counts: a share belongs to a group of seats, and the queue is ordered by the groups' virtual times.
//
// A group's virtual time grows by what its seats hold, divided by its weight. So two seats of one group have together
// what one seat of that weight has. A seat without a claim is a group by itself. All of a group's units that wait on a
// GPU have one rank there, and ties go by time of request. So within a group the unit that has waited longest is first.
//
// A unit's time on a GPU counts once for each group: a gang with several seats of one group has the GPU once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sched/events.h"

namespace gpumux::sched {

struct Seat;

// Seats of one GPU that have one share of its time together: those of a claim, or one seat by itself.
class ShareGroup {
 public:
  explicit ShareGroup(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }           // empty: one seat's own
  const std::vector<Seat*>& seats() const { return seats_; }  // ascending
  std::uint32_t weight() const { return static_cast<std::uint32_t>(weight_); }
  // REQUIRES: what its seats have held is charged.
  void set_weight(std::uint32_t weight) { weight_ = weight; }

  // ns held / weight. 0: no seat of it has waited or held.
  std::int64_t virtual_time() const { return time_.value_or(0); }
  std::int64_t virtual_time_after(Duration held) const { return virtual_time() + (held.count() + rest_) / weight_; }
  std::int64_t in_virtual_time(Duration duration) const { return duration.count() / weight_; }
  void charge(Duration held) {
    time_ = virtual_time_after(held);
    rest_ = (held.count() + rest_) % weight_;
  }
  // A seat of it waits or holds: a group that did not yet stands here.
  void begin(std::int64_t at) { time_ = time_.value_or(at); }
  void move_to(std::int64_t at) { time_ = at; }

 private:
  friend class ShareGroups;

  std::string name_;
  std::vector<Seat*> seats_;
  std::int64_t weight_ = 1;
  std::optional<std::int64_t> time_;
  std::int64_t rest_ = 0;  // ns held that the division by the weight left over
};

// The groups of one GPU.
class ShareGroups {
 public:
  // Groups without seats of which a GPU remembers what they owe: far more than claims end while others catch up.
  static constexpr std::size_t kMostRemembered = 64;

  // Empty: the seat is a group by itself.
  std::shared_ptr<ShareGroup> join(Seat& seat, const std::string& name);
  // A group's debt is remembered when its last seat has gone: a claim whose programs end and start again has no more
  // than its share. A group that owes nothing stands like a new one, and is forgotten.
  void leave(Seat& seat, ShareGroup& group);

  // Where newcomers start: the least virtual time among the unit that was granted last and the units that waited then.
  // If no unit waits, it is that of the only holder. It never goes back.
  std::int64_t present() const { return present_; }
  void advance(std::int64_t to) { present_ = std::max(present_, to); }
  const std::map<std::string, std::shared_ptr<ShareGroup>>& named() const { return named_; }

 private:
  std::map<std::string, std::shared_ptr<ShareGroup>> named_;
  std::int64_t present_ = 0;
};

}  // namespace gpumux::sched

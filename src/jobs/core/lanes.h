// SPDX-License-Identifier: Apache-2.0
// The order of the waiting jobs. Private to src/jobs/core.
//
//   levels_       by capped priority, highest first
//     Level       the lanes of one priority, by rank: their users' past use (fair), then the order of arrival
//       Lane      the waiting jobs of one user at this priority
//         Class   jobs of a lane with the same wishes and the same priority of their own: a queue, of which only the
//                 first can be next
//
// Order between users goes by the capped priority, order within a lane by the priority as given. So a priority above
// the cap moves a job past jobs of its own user only.
//
// If the first of a class cannot start the others cannot either. So a look at the queue is a look at the first ones of
// classes. A job that its time limit has suspended has a lane of its own. Its rank is behind all that waited then,
// whatever its user has had. Everything is found again by key in ordered maps; jobs never move in memory.
#pragma once

#include <cstdint>
#include <ext/pb_ds/assoc_container.hpp>
#include <ext/pb_ds/tree_policy.hpp>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "jobs/core/job.h"

namespace gpumux::jobs {

struct Job;
struct Lane;
struct User;

// Ordered by JobSpec::order, and it knows how many there are before one: that is a job's place.
template <class Value>
using Ranked = __gnu_pbds::tree<std::uint64_t, Value, std::less<std::uint64_t>, __gnu_pbds::rb_tree_tag,
                                __gnu_pbds::tree_order_statistics_node_update>;

// The request that the jobs of a class have in common: either all of them fit or none.
struct Shape {
  GpuSet gpus;  // these, or any `count`
  std::uint32_t count = 0;
  std::uint64_t memory = 0;
  bool exclusive = false;
  Duration time_limit = kNoLimit;
  auto operator<=>(const Shape&) const = default;
};

struct ClassKey {
  std::int32_t priority = 0;  // as given
  Shape shape;
  JobId array;          // of those that are in an array with a limit: they wait for it together
  bool resume = false;  // suspended ones
  auto operator<=>(const ClassKey&) const = default;
};

// Why the first of a class is not looked at until something else has changed.
enum class Parked : std::uint8_t { kNo, kArray, kGpus };

struct Class {
  ClassKey key;
  Lane* lane = nullptr;
  Ranked<Job*> jobs;
  Parked parked = Parked::kNo;
  std::uint64_t seen = 0;  // the last look in which its first one could not start
};

// A job's place among the jobs of its lane.
struct Turn {
  std::int32_t priority = 0;  // as given
  std::uint64_t order = 0;
  auto operator<=>(const Turn& other) const {
    return std::pair(-std::int64_t{priority}, order) <=> std::pair(-std::int64_t{other.priority}, other.order);
  }
  bool operator==(const Turn&) const = default;
};

// The capped priority, then the one that decides among equals. Higher goes first.
using Standing = std::pair<std::int32_t, std::int32_t>;

struct LaneRank {
  std::uint64_t usage = 0;
  std::uint64_t order = 0;  // of its first job that is not parked
  std::uint32_t uid = 0;
  auto operator<=>(const LaneRank&) const = default;
};

struct Level;
struct Lane {
  User* user = nullptr;
  std::int32_t priority = 0;  // capped
  JobId alone;                // has a rank of its own; kNoJob: the lane is for all others
  bool is_first = false;      // others make way for that job
  Level* level = nullptr;
  std::map<ClassKey, std::unique_ptr<Class>> classes;
  std::map<Turn, Class*> heads;  // of classes that are not parked, by their first jobs
  std::uint64_t jobs = 0;        // of classes that are not parked
  bool ranked = false;           // is in its level's order: has heads
  LaneRank rank;
};

struct Level {
  std::map<LaneRank, Lane*> lanes;
  std::uint64_t members = 0;  // lanes, those without heads included
};

}  // namespace gpumux::jobs

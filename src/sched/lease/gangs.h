// SPDX-License-Identifier: Apache-2.0
// Which seats are one unit: joining, merging, leaving. Every seat that comes or goes changes a unit, gang or not.
// Private to src/sched; gangs.cc says how.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sched/lease/books.h"
#include "sched/lease/grants.h"
#include "sched/lease/part.h"
#include "sched/lease/queues.h"
#include "sched/lease/revocations.h"
#include "sched/lease/roster.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Gangs : Part {
 public:
  Gangs(Common& common, Roster& roster, Books& books, Queues& queues, Grants& grants, Revocations& revocations)
      : Part(common), roster_(roster), books_(books), queues_(queues), grants_(grants), revocations_(revocations) {}

  // Takes the unit out of queues and counts. Its seats keep their phases, but none of them waits.
  void unplace(Unit& unit);
  // Derives an unplaced unit's state from its seats. `tell_all`: its seats may have been told different things about
  // contention.
  void rebuild(Unit& unit, bool tell_all);
  // Takes the seat out of its unit, its GPU and its tenant: it is gone then.
  void remove_seat(Seat& seat);

  // Empty key: the tenant's own seats only. A gang has the largest `world` that a member has said.
  void join(Tenant& tenant, const std::string& key, std::uint32_t world);
  void leave(Tenant& tenant);

 private:
  void destroy_unit(Unit& unit);
  void remove_from_unit(Seat& seat);
  void add_seats(std::vector<Seat*> seats, Unit& gang);
  void add_to_gang(Tenant& tenant, Unit& gang);
  void add_key(Unit& gang, const std::string& key);
  void merge(Unit& into, Unit& from);
  static void absorb(Unit& unit, const Unit& other);

  Roster& roster_;
  Books& books_;
  Queues& queues_;
  Grants& grants_;
  Revocations& revocations_;
  std::map<std::pair<std::uint32_t, std::string>, Unit*> by_key_;  // by user and name
};

}  // namespace gpumux::sched

// SPDX-License-Identifier: Apache-2.0
// The lease core's state. Private to src/sched: all other folders see lease_core.h.
//
// An event puts the GPUs that it changes on the agenda. settle() then brings those to rest: modes, whole gangs, grants,
// revocations, and at the end the contention that tenants are told. Counters replace scans. Each seat has a *place* on
// its GPU (holding, blocking, overlapping), and each GPU counts its places by kind of lease. check_invariants() counts
// again and compares.
//
// README.md says what each class owns, and where a decision is made. The headings below name the files of the
// functions. order.h has the rules of the order; order.h, view.cc and invariants.cc change nothing.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "sched/agenda.h"
#include "sched/events.h"
#include "sched/lease_core.h"
#include "sched/reservations.h"
#include "sched/timers.h"
#include "sched/units.h"

namespace gpumux::sched {

struct LeaseCore::State {
  // ---- one function per event: lease_core.cc, or the file of the event's subject -------------------
  void on(const GpuAdded& e);
  void on(const SettingsChanged& e);
  void on(const GrantsHeld& e);
  void on(const GrantsAllowed& e);
  void on(const TenantConnected& e);
  void on(const TenantGone& e);
  void on(const GangJoined& e);
  void on(const SeatOpened& e);
  void on(const StandingChanged& e);
  void on(const SeatClaimed& e);
  void on(const SeatClosed& e);
  void on(const SeatsSuspended& e);
  void on(const Requested& e);
  void on(const RevokeSeen& e);
  void on(const GateClosed& e);
  void on(const Drained& e);
  void on(const Stepped& e);
  void on(const Idling& e);
  void on(const MemoryNeed& e);
  void on(const MemoryObstructed& e);
  void on(const MemoryExpected& e);
  void on(const TimePassed& e);

  template <class OneCommand>
  void command(OneCommand c) {
    out->emplace_back(std::move(c));
  }

  // ---- lease_core.cc -----------------------------------------------------------------------------
  void fire(Timer& timer);
  void rearm(Gpu& gpu, const GpuSettings& before);

  // ---- roster.cc ---------------------------------------------------------------------------------
  Gpu* gpu_of(GpuIndex index) const;
  Tenant* tenant_of(TenantId id) const;
  Seat* seat_of(SeatId id) const;
  Seat* seat_in(SeatId id, LeaseEpoch epoch) const;  // only if that is its epoch
  Unit& make_unit();
  void attach(Seat& seat, Unit& unit);
  void detach(Seat& seat);
  void set_shape(Unit& unit);

  // ---- ledger.cc ---------------------------------------------------------------------------------
  void set_phase(Seat& seat, SeatPhase phase);
  void set_wants(Seat& seat, bool wants);
  void set_place(Seat& seat, Occupancy place);
  void place(Seat& seat);  // where its state puts it
  void place(Unit& unit);
  void settle_idle(Seat& seat) const;
  LeaseEpoch next_epoch(Gpu& gpu);
  void charge(Seat& seat);
  void charge(Unit& unit);
  void catch_up(Seat& seat);
  void begin_anew(Seat& seat);
  void set_weight(ShareGroup& group, std::uint32_t weight);
  void rerank(const ShareGroup& group, const Unit& but);
  void begin_gap(const Seat& seat) const;
  void set_standing(Seat& seat, std::int32_t priority, std::uint32_t weight, std::uint32_t cap);
  void requeue(Unit& unit);
  void settle_allowance(Seat& seat) const;
  void rekey(Gpu& gpu);
  void insert_in_queue(Unit& unit) const;

  // ---- queues.cc ---------------------------------------------------------------------------------
  void queue(Unit& unit);
  void enqueue(Unit& unit);
  void dequeue(Unit& unit);

  // ---- grants.cc ---------------------------------------------------------------------------------
  void tell_contention(Seat& seat);
  void tell_contention(Unit& unit, bool always);
  void seats_changed(Gpu& gpu);
  void note_in_part(Unit& unit);
  void heads_up(Gpu& gpu);
  void start(Unit& unit);
  void grant_joined(Unit& unit);
  void grant_seat(Seat& seat);
  void announce(Seat& seat);
  void convert(Unit& unit, Gpu& gpu, LeaseKind kind);

  // ---- turns.cc ----------------------------------------------------------------------------------
  void settle();
  void settle_mode(Gpu& gpu);
  void settle_in_part();
  void grant_all(Gpu& gpu);
  Unit* next_on(Gpu& gpu);
  void preempt(Gpu& gpu);
  void revoke_for(Unit& waiter, Unit& holder, const Gpu& gpu);
  void arm_run(Unit& unit);

  // ---- revocations.cc ----------------------------------------------------------------------------
  void release(Seat& seat);
  void revoke(Unit& unit, RevokeReason reason);
  void revoke_unless_spared(Unit& unit, RevokeReason reason);
  void revoke_seat(Seat& seat, RevokeReason reason);
  void ask(Seat& seat, RevokeReason reason);
  void ask_again(Seat& seat);
  void heard(Seat& seat);
  void drained(Seat& seat);
  void send_revoke(Seat& seat, RevokeReason reason);
  bool take_back_steps(Unit& unit);
  bool recall_steps(Unit& unit);
  void progress(Unit& unit);
  void step(Unit& unit);
  void settle_drains(Unit& unit);
  void finish(Unit& unit);
  void stalled(Unit& unit);
  void report_stall(const Unit& unit);
  void take_back(Unit& unit);
  bool can_reopen(Unit& unit);
  void reopen(Unit& unit);
  void stop_returning(Unit& unit);
  void kill_stuck(const Unit& unit);
  void kill(Tenant& tenant, KillReason reason);
  void unanswered(Seat& seat);
  TimePoint probe_at(const Seat& seat) const;
  void count_again(Unit& unit);

  // ---- gangs.cc ----------------------------------------------------------------------------------
  void destroy_unit(Unit& unit);
  void rebuild(Unit& unit, bool tell_all);
  void remove_from_unit(Seat& seat);
  void add_seats(std::vector<Seat*> seats, Unit& gang);
  void add_to_gang(Tenant& tenant, Unit& gang);
  void add_key(Unit& gang, const std::string& key);
  void merge_gangs(Unit& into, Unit& from);
  void leave_gang(Tenant& tenant);
  void remove_seat(Seat& seat);
  void unplace(Unit& unit);
  void absorb(Unit& unit, const Unit& other);

  // ---- reservations.cc ---------------------------------------------------------------------------
  void settle_reservations();
  bool gives_way(const Unit& gang, const Gpu& here);
  void age(Unit& unit);
  void preempt_for(Unit& waiter);

  // ---- loans.cc ----------------------------------------------------------------------------------
  void settle_loan(Gpu& gpu);
  void take_turn_back(Gpu& gpu);
  void end_loan(Unit& unit);

  // ---- paged_turns.cc ----------------------------------------------------------------------------
  void begin_hold(Unit& unit);
  void resume_quantum(Unit& unit);
  void note_return(Unit& waiter, const Unit& holder) const;

  // ---- standing.cc -------------------------------------------------------------------------------
  void lift(Unit& unit);
  void settle_yielded(Unit& unit);
  void settle_yielding(Unit& started);
  void arm_cap(Unit& unit);
  bool freeze(Unit& unit);
  void cap_is_due(Unit& unit);

  // ---- partners.cc -------------------------------------------------------------------------------
  std::vector<Unit*> partners_of(const Unit& stalled) const;

  TimePoint now{};
  std::vector<Command>* out = nullptr;
  Timers timers;  // before all that has timers, which stop when it goes
  std::array<std::unique_ptr<Gpu>, base::kMaxGpus> gpus;
  std::vector<Gpu*> gpu_list;  // ascending
  std::map<TenantId, std::unique_ptr<Tenant>> tenants;
  std::map<std::uint64_t, std::unique_ptr<Unit>> units;
  std::map<std::pair<std::uint32_t, std::string>, Unit*> gang_by_key;  // by user and name
  Shapes shapes;
  Reservations reservations;
  UnitSet in_part;  // see holds_in_part()
  std::uint64_t next_serial = 1;
  Agenda agenda;
  std::vector<QueueEntry> heads;  // of preempt(), kept so that it does not allocate each time
  bool grants_held = false;
  Timer grants_held_timer{TimerKind::kGrantsHeld};
};

}  // namespace gpumux::sched

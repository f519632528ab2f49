// SPDX-License-Identifier: Apache-2.0
// The residency planner among programs that do everything at random. Goal: whatever crosses on its way, no GPU ever
// holds more than its capacity, everybody who holds a lease gets its memory, and everybody who waits for room is
// answered. Method: model tenants, which take bounds and send reports through queues of random length, allocate, free,
// evict, restore, take turns, stop, lie and die; what they really have is summed up after each step. A failing seed is
// printed.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "sched/residency.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

constexpr GpuIndex kGpu{0};
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kCapacity = 8192 * kMiB;
constexpr std::uint64_t kReserve = 256 * kMiB;
constexpr std::uint64_t kForeign = 512 * kMiB;
constexpr std::uint64_t kHost = 16384 * kMiB;
constexpr std::uint64_t kChunk = 64 * kMiB;
constexpr Duration kTick = 1ms;
// A switch of the whole GPU is some 130 chunks, and everybody acts about once in a few ticks.
constexpr int kTicksUntilComplete = 20'000;

struct Tenant {
  SeatId id;
  // What is true.
  std::uint64_t resident = 0, evicted = 0, unpageable = 0;
  RoomBound bound;  // in force
  bool drained = true;
  bool stopped = false;
  bool liar = false;
  std::deque<RoomBound> inbox;
  std::deque<std::pair<MemoryReport, bool>> outbox;
  std::uint32_t ticket = 0;
  bool waits = false;
  TimePoint asked_at{};
  std::uint64_t wants = 0;  // to allocate
  std::uint64_t has() const { return resident + unpageable; }
  std::uint64_t allocated() const { return has() + evicted; }
};

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    planner_.add_gpu(kGpu, kCapacity, kReserve);
    planner_.set_foreign(now_, kGpu, kForeign);
    planner_.set_host_budget(kHost);
  }

  void run(int ticks) {
    for (int i = 0; i < ticks && !::testing::Test::HasFailure(); ++i) tick();
    // And then everybody who waits is answered, whatever the others do.
    const TimePoint end = now_ + kRoomPatience + 1s;
    calm_ = true;
    for (auto& [id, tenant] : tenants_) stop_or_wake(tenant);
    while (now_ < end && !::testing::Test::HasFailure()) tick();
    for (const auto& [id, tenant] : tenants_) EXPECT_FALSE(tenant.waits && !tenant.stopped) << name(tenant);
  }

  int completed = 0;  // leases whose memory came
  int moved = 0;      // chunks
  int answered = 0;
  int refused = 0;

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
  static std::string name(const Tenant& tenant) { return "tenant " + std::to_string(tenant.id.tenant.value); }

  void tick() {
    now_ += kTick;
    if (!calm_ && tenants_.size() < 6 && chance(1)) join();
    if (!calm_ && !tenants_.empty() && below(2000) == 0) die(any());
    take_turns();
    for (auto& [id, tenant] : tenants_) {
      if (below(3000) == 0) stop_or_wake(tenant);
      if (!tenant.stopped || calm_) act(tenant);
    }
    const auto deadline = planner_.next_deadline(kGpu);
    if (deadline && *deadline <= now_) plan();
    check();
  }

  // It has said what it has when it stops, and reads first what it was told meanwhile when it wakes up. (Where a real
  // one is stopped in between, the driver refuses somebody an allocation.)
  void stop_or_wake(Tenant& tenant) {
    tenant.stopped = !tenant.stopped && !calm_;
    if (tenant.stopped) say(tenant);
    while (!tenant.outbox.empty() || (!tenant.stopped && !tenant.inbox.empty())) {
      if (!tenant.stopped && !tenant.inbox.empty()) read(tenant);
      if (!tenant.outbox.empty()) deliver(tenant);
    }
  }

  Tenant& any() {
    auto at = tenants_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(below(tenants_.size())));
    return at->second;
  }

  void join() {
    const SeatId id{TenantId{next_++}, kGpu};
    Tenant& tenant = tenants_[id];
    tenant.id = id;
    tenant.liar = chance(10);
    planner_.opened(now_, id, {}, true);
    order_.push_back(id);
    plan();
  }

  // The driver returns its memory a little later.
  void die(Tenant& tenant) {
    const SeatId id = tenant.id;
    planner_.closed(now_, id);
    returning_ += tenant.has();
    std::erase(order_, id);
    if (holder_ == id) holder_ = {};
    tenants_.erase(id);
    plan();
  }

  // One holder, in rounds; who has lost its lease drains for a while.
  void take_turns() {
    if (returning_ > 0 && chance(2)) {
      returning_ = 0;
      planner_.returned(now_, kGpu, 0);
      plan();
    }
    const auto held = tenants_.find(holder_);
    if (held != tenants_.end()) {
      Tenant& tenant = held->second;
      const bool complete = tenant.evicted == 0;
      if (complete && !was_complete_) {
        ++completed;
        was_complete_ = true;
      }
      // It must come, unless somebody is in the way who says nothing, or has more than the truth, or it cannot fit.
      ++held_for_;
      bool excused = tenant.stopped || tenant.liar;
      std::uint64_t stuck = kReserve + kForeign + returning_;
      for (const auto& [id, other] : tenants_) {
        excused = excused || (id != holder_ && (other.stopped || other.liar));
        stuck += id == holder_ ? 0 : other.unpageable;
      }
      excused = excused || tenant.allocated() + stuck > kCapacity;
      if (excused) held_for_ = 0;
      ASSERT_LT(held_for_, kTicksUntilComplete) << name(tenant) << " holds and its memory does not come";
      if (tenant.stopped || !(complete ? chance(1) : excused && chance(1))) return;
      tenant.drained = false;
      leaving_ = holder_;
      std::erase(order_, holder_);
      order_.push_back(holder_);
      holder_ = {};
    }
    if (order_.empty()) return;
    const auto next = tenants_.find(order_.front());
    if (!next->second.drained) return;
    holder_ = order_.front();
    next->second.drained = false;
    held_for_ = 0;
    was_complete_ = false;
    plan();
  }

  void read(Tenant& tenant) {
    tenant.bound = tenant.inbox.front();
    tenant.inbox.pop_front();
    if (tenant.waits && tenant.bound.ticket == tenant.ticket) {
      tenant.waits = false;
      ++answered;
      refused += tenant.bound.refused() ? 1 : 0;
    }
    say(tenant);
  }

  void deliver(Tenant& tenant) {
    planner_.reported(now_, tenant.id, tenant.outbox.front().first);
    tenant.outbox.pop_front();
    plan();
  }

  void act(Tenant& tenant) {
    if (!tenant.inbox.empty() && chance(50)) read(tenant);
    if (!tenant.outbox.empty() && chance(50)) deliver(tenant);
    const bool holds = tenant.id == holder_;
    if (!holds && !tenant.drained && chance(10)) {
      tenant.drained = true;
      plan();
    }
    if (tenant.has() > tenant.bound.room && tenant.drained && tenant.resident > 0 && chance(80)) {
      const std::uint64_t bytes = std::min(tenant.resident, kChunk);
      tenant.resident -= bytes;
      tenant.evicted += bytes;
      ++moved;
      return say(tenant);
    }
    const std::uint64_t bytes = std::min(tenant.evicted, kChunk);
    if (bytes > 0 && tenant.has() + bytes <= tenant.bound.room && chance(80)) {
      tenant.evicted -= bytes;
      tenant.resident += bytes;
      ++moved;
      return say(tenant);
    }
    if (!tenant.waits && !calm_ && chance(3)) allocate(tenant, holds);
    if (chance(1)) {
      const std::uint64_t freed = below(tenant.resident / 2 + 1) / kMiB * kMiB;
      if (holds || tenant.drained) tenant.resident -= freed;
      if (chance(50)) say(tenant);
    }
  }

  void allocate(Tenant& tenant, bool holds) {
    const std::uint64_t bytes = (1 + below(chance(10) ? 5000 : 300)) * kMiB;
    const bool committed = tenant.allocated() + bytes <= tenant.bound.commitment;
    const bool has_room = tenant.has() + bytes <= tenant.bound.room;
    const bool complete = tenant.evicted == 0;
    if (committed && holds && complete && has_room) {
      (chance(5) ? tenant.unpageable : tenant.resident) += bytes;
    } else if (committed && !holds) {
      tenant.evicted += bytes;  // born evicted
    } else if (!holds || complete) {
      tenant.waits = true;
      tenant.asked_at = now_;
      planner_.wanted(now_, tenant.id, ++tenant.ticket, holds ? tenant.has() + bytes : 0, tenant.allocated() + bytes);
      return plan();
    }
    if (chance(50)) say(tenant);
  }

  void say(Tenant& tenant) {
    MemoryReport report{.sequence = tenant.bound.sequence,
                        .allocated = tenant.allocated(),
                        .resident = tenant.resident,
                        .evicted = tenant.evicted,
                        .unpageable = tenant.unpageable};
    if (tenant.liar && chance(20)) report.resident += below(kCapacity);
    tenant.outbox.emplace_back(report, true);
  }

  void plan() {
    std::vector<Turn> turns;
    if (tenants_.contains(holder_)) turns.push_back({holder_, TurnKind::kHolding, now_ + 100ms});
    bool is_first = true;
    for (const SeatId id : order_) {
      if (id == holder_) continue;
      const bool leaves = !tenants_[id].drained;
      turns.push_back({id,
                       leaves     ? TurnKind::kLeaving
                       : is_first ? TurnKind::kNext
                                  : TurnKind::kWaiting,
                       TimePoint::max()});
      is_first = is_first && leaves;
    }
    ResidencyCommands commands;
    planner_.plan(now_, kGpu, turns, commands);
    for (const RoomBound& bound : commands.bounds) {
      Tenant& tenant = tenants_.at(bound.seat);
      // Stopped ones read nothing: the socket has room for so many.
      ASSERT_LE(tenant.inbox.size(), kMaxBoundsUnderWay + 2) << name(tenant);
      tenant.inbox.push_back(bound);
    }
    ASSERT_EQ(planner_.check_invariants(), "");
  }

  void check() {
    std::uint64_t sum = kForeign + kReserve + returning_;
    std::uint64_t allocated = kForeign + kReserve;
    for (const auto& [id, tenant] : tenants_) {
      sum += tenant.has();
      allocated += tenant.allocated();
    }
    for (const SeatMemoryView& seat : planner_.view(kGpu).seats) {
      const Tenant& tenant = tenants_.at(seat.seat);
      ASSERT_LE(tenant.has(), seat.counted) << name(tenant) << " has more than it is counted for";
    }
    ASSERT_LE(sum, kCapacity) << "the GPU holds more than it has";
    ASSERT_LE(allocated, kCapacity + kHost) << "more is allocated than there is";
  }

  std::mt19937_64 random_;
  Residency planner_;
  TimePoint now_ = TimePoint() + 1h;
  std::map<SeatId, Tenant> tenants_;
  std::vector<SeatId> order_;
  SeatId holder_{};
  SeatId leaving_{};
  bool was_complete_ = false;
  int held_for_ = 0;
  std::uint64_t returning_ = 0;
  std::uint64_t next_ = 1;
  bool calm_ = false;
};

TEST(ResidencyRandom, CapacityHoldsAndEverybodyGetsItsTurn) {
  int completed = 0;
  int moved = 0;
  int answered = 0;
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    world.run(20'000);
    completed += world.completed;
    moved += world.moved;
    answered += world.answered;
    refused += world.refused;
    if (HasFailure()) return;
  }
  // It was not a quiet world in which nothing could go wrong.
  EXPECT_GT(completed, 1000);
  EXPECT_GT(moved, 10'000);
  EXPECT_GT(answered, 1000);
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, answered);
}

}  // namespace
}  // namespace gpumux::sched

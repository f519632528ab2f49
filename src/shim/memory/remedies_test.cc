// SPDX-License-Identifier: Apache-2.0
// Goal: no allocation that GPU and host memory can hold together is ever refused, even if messages cross. Method: the
// planner that ships, the bounds that ship and the remedies that ship, between model tenants of several threads. One
// random actor makes one small step at a time. A thread tries, asks or frees. A tenant reads, reports, evicts or
// restores a chunk. The daemon reads, changes turns or is restarted. A failing seed is printed; GPUMUX_TEST_SEED
// repeats it, GPUMUX_TEST_ALLOCATIONS says how many allocations there are.
#include "shim/memory/remedies.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <variant>

#include "sched/memory/residency.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using pager::Placement;
using sched::Residency;
using sched::TurnKind;
using Answer = Remedies::Answer;
using Lack = Remedies::Lack;
using Remedy = Remedies::Remedy;

constexpr base::GpuIndex kGpu{0};
constexpr std::uint64_t kBlock = pager::kBlockBytes;
constexpr std::uint64_t kCapacity = 4096 * kBlock;
constexpr std::uint64_t kReserve = 64 * kBlock;
constexpr std::uint64_t kHost = 2500 * kBlock;
constexpr std::uint64_t kChunk = 32 * kBlock;
// Of GPU and host memory, all programs together hold this part: 60 of 140 GiB each, with 213 GiB in all.
constexpr std::uint64_t kShare = (kCapacity - kReserve + kHost) / 100 * 85 / 3;
constexpr base::Duration kTick = 10us;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct Allocation {
  std::uint64_t bytes = 0;
  std::uint64_t resident = 0;
};

struct Thread {
  enum class State { kIdle, kTrying, kAsking, kWaiting };
  State state = State::kIdle;
  Remedies remedies{0};
  Remedy remedy = Remedy::kTry;
  std::uint64_t bytes = 0;
  std::uint32_t ticket = 0;
};

struct Wish {
  std::uint32_t ticket = 0;
  std::uint64_t room = 0, commitment = 0;
};

struct Tenant {
  explicit Tenant(std::uint64_t number) : id{base::TenantId{number}, kGpu} { bounds.set(0, 0); }
  const sched::SeatId id;
  pager::Bounds bounds;
  std::vector<Allocation> live;
  std::uint64_t held = 0;  // by its program, allocations under way included
  std::vector<Thread> threads{3};
  // The daemon's newest bound, and the messages on their way to the tenant and to the daemon.
  sched::RoomBound told;
  std::deque<sched::RoomBound> inbox;
  std::deque<std::variant<sched::MemoryReport, Wish>> outbox;
  std::uint32_t last_ticket = 0, answered = 0, refused = 0;
  Wish wish;            // the newest
  bool asking = false;  // DeviceMemory::asking
  bool connected = true;
  // Turns.
  bool holds = false;
  int draining = 0;  // steps until its work is done

  std::uint64_t evicted() const {
    std::uint64_t sum = 0;
    for (const Allocation& one : live) sum += one.bytes - one.resident;
    return sum;
  }
};

class World {
 public:
  World(std::uint64_t seed, bool with_restarts) : random_(seed), with_restarts_(with_restarts) {
    for (std::uint64_t number = 1; number <= 3; ++number) tenants_.push_back(std::make_unique<Tenant>(number));
    start_daemon();
    for (auto& tenant : tenants_) connect(*tenant);
  }

  void run(std::uint64_t allocations) {
    std::uint64_t idle_steps = 0;
    while (made < allocations && !::testing::Test::HasFailure()) {
      const std::uint64_t before = made;
      now_ += kTick;
      step();
      const auto deadline = planner_->next_deadline(kGpu);
      if (deadline && *deadline <= now_) plan();
      idle_steps = made == before ? idle_steps + 1 : 0;
      // Two minutes of virtual time, in which a switch of everything takes some thousand steps.
      ASSERT_LT(idle_steps, 12'000'000u) << "nothing gets on";
    }
  }

  std::uint64_t made = 0;
  std::uint64_t asked = 0;
  std::uint64_t born_evicted = 0;
  std::uint64_t restarts = 0;

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void step() {
    Tenant& tenant = *tenants_[below(tenants_.size())];
    const std::uint64_t what = below(32);
    if (what < 4) return read(tenant);
    if (what < 8) return deliver(tenant);
    if (what < 20) return move(tenant);
    if (what < 22) return report(tenant);
    if (what == 22) return below(100) == 0 ? change_turns() : reconnect(tenant);
    if (what == 23) return below(4'000) == 0 ? restart() : reconnect(tenant);
    act(tenant, tenant.threads[below(tenant.threads.size())]);
  }

  // ---- a thread

  void act(Tenant& tenant, Thread& thread) {
    switch (thread.state) {
      case Thread::State::kIdle: return begin(tenant, thread);
      case Thread::State::kTrying: return attempt(tenant, thread);
      case Thread::State::kAsking: return ask(tenant, thread);
      case Thread::State::kWaiting: return look(tenant, thread);
    }
  }

  void begin(Tenant& tenant, Thread& thread) {
    // A program that holds its turn allocates more than a program that waits for it.
    if (below(tenant.holds ? 4 : 64) != 0) return;
    const std::uint64_t bytes = kBlock << below(below(4) == 0 ? 9 : 3);
    if (tenant.held + bytes > kShare || below(8) == 0) return free_one(tenant);
    tenant.held += bytes;
    thread = Thread{.state = Thread::State::kTrying, .remedies = Remedies(bytes), .bytes = bytes};
  }

  // Within the bound the seat takes from the driver. That has too little only where a restarted daemon does not know
  // yet what tenants took that are not back.
  bool take(Tenant& tenant, std::uint64_t bytes) {
    if (!tenant.bounds.take(bytes)) return false;
    if (used() <= kCapacity - kReserve) return true;
    EXPECT_TRUE(with_restarts_) << "the daemon gave more room than there is";
    tenant.bounds.give(bytes);
    return false;
  }
  std::uint64_t used() const {
    std::uint64_t sum = 0;
    for (const auto& tenant : tenants_) sum += tenant->bounds.used();
    return sum;
  }

  void free_one(Tenant& tenant) {
    if (tenant.live.empty()) return;
    std::swap(tenant.live[below(tenant.live.size())], tenant.live.back());
    const Allocation gone = tenant.live.back();
    tenant.live.pop_back();
    tenant.bounds.uncommit(gone.bytes);
    tenant.bounds.give(gone.resident);
    tenant.held -= gone.bytes;
  }

  cuda::CUresult place(Tenant& tenant, std::uint64_t bytes, Placement placement) {
    if (!tenant.bounds.commit(bytes)) return pager::kBeyondCommitment;
    if (placement == Placement::kEvicted || take(tenant, bytes)) return cuda::CUDA_SUCCESS;
    tenant.bounds.uncommit(bytes);
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }

  void attempt(Tenant& tenant, Thread& thread) {
    const bool may_use_gpu = tenant.holds && tenant.evicted() == 0;
    Placement placement = thread.remedies.placement();
    cuda::CUresult result = place(tenant, thread.bytes, placement);
    if (!may_use_gpu && placement == Placement::kResident && result != cuda::CUDA_SUCCESS)
      result = place(tenant, thread.bytes, placement = Placement::kEvicted);
    const Lack lack = Remedies::lack_of(placement, result);
    if (lack != Lack::kNone) return go_on(tenant, thread, thread.remedies.failed(lack));
    const bool is_there = placement == Placement::kResident;
    tenant.live.push_back({thread.bytes, is_there ? thread.bytes : 0});
    born_evicted += is_there ? 0 : 1;
    ++made;
    thread.state = Thread::State::kIdle;
  }

  // The model has no pools: nothing is kept there for reuse, and no free is under way.
  void go_on(Tenant& tenant, Thread& thread, Remedy remedy) {
    while (remedy == Remedy::kReleasePools || remedy == Remedy::kAwaitFrees) remedy = thread.remedies.ended(false);
    ASSERT_NE(remedy, Remedy::kGiveUp) << "tenant " << tenant.id.tenant.value << " is refused " << thread.bytes / kBlock
                                       << " blocks, and holds " << tenant.held / kBlock << " of " << kShare / kBlock;
    thread.remedy = remedy;
    const bool asks = remedy == Remedy::kAskForRoom || remedy == Remedy::kAskForCommitment;
    thread.state = asks ? Thread::State::kAsking : Thread::State::kTrying;
  }

  void ask(Tenant& tenant, Thread& thread) {
    if (tenant.asking) return;
    const bool for_room = thread.remedy == Remedy::kAskForRoom;
    const Wish wish{tenant.last_ticket + 1, for_room ? tenant.bounds.used() + thread.bytes : 0,
                    tenant.bounds.committed() + thread.bytes};
    if (tenant.told.room >= wish.room && tenant.told.commitment >= wish.commitment)
      return answered(tenant, thread, Answer::kGiven);
    ++asked;
    tenant.asking = true;
    thread.ticket = ++tenant.last_ticket;
    tenant.wish = wish;
    if (tenant.connected) tenant.outbox.emplace_back(wish);
    thread.state = Thread::State::kWaiting;
  }

  void look(Tenant& tenant, Thread& thread) {
    if (tenant.answered < thread.ticket) return;
    tenant.asking = false;
    answered(tenant, thread, tenant.refused == thread.ticket ? Answer::kRefused : Answer::kGiven);
  }

  void answered(Tenant& tenant, Thread& thread, Answer answer) {
    go_on(tenant, thread, thread.remedies.answered(answer));
  }

  // ---- a tenant's agent and pager thread

  void read(Tenant& tenant) {
    if (tenant.inbox.empty()) return;
    const sched::RoomBound bound = tenant.inbox.front();
    tenant.inbox.pop_front();
    tenant.told = bound;
    tenant.bounds.set(bound.room, bound.commitment);
    if (bound.ticket > tenant.answered) {
      tenant.answered = bound.ticket;
      if (bound.refused()) tenant.refused = bound.ticket;
    }
  }

  sched::MemoryReport report_of(const Tenant& tenant) const {
    return {.sequence = tenant.told.sequence,
            .allocated = tenant.bounds.committed(),
            .resident = tenant.bounds.used(),
            .evicted = tenant.evicted()};
  }
  void report(Tenant& tenant) {
    if (tenant.connected && tenant.outbox.size() < 4) tenant.outbox.emplace_back(report_of(tenant));
  }

  void move(Tenant& tenant) {
    const std::uint64_t excess = tenant.bounds.excess();
    if (tenant.draining > 0 && --tenant.draining == 0) plan();
    for (Allocation& one : tenant.live) {
      if (excess > 0 && one.resident > 0 && !tenant.holds && tenant.draining == 0) {
        const std::uint64_t bytes = std::min(kChunk, one.resident);
        one.resident -= bytes;
        tenant.bounds.give(bytes);
        return report(tenant);
      }
      if (excess == 0 && one.resident < one.bytes) {
        const std::uint64_t bytes = std::min(kChunk, one.bytes - one.resident);
        if (!take(tenant, bytes)) return;
        one.resident += bytes;
        return report(tenant);
      }
    }
  }

  // ---- the daemon

  void deliver(Tenant& tenant) {
    if (tenant.outbox.empty()) return;
    const auto message = tenant.outbox.front();
    tenant.outbox.pop_front();
    if (const auto* const wish = std::get_if<Wish>(&message)) {
      planner_->wanted(now_, tenant.id, wish->ticket, wish->room, wish->commitment);
    } else {
      planner_->reported(now_, tenant.id, std::get<sched::MemoryReport>(message));
      look_at_gpu();
    }
    plan();
  }

  void plan() {
    // At once while all fits, by turns otherwise.
    const bool shared = planner_->fits_together(kGpu, 0);
    std::vector<sched::Turn> turns;
    if (!shared && holder_ >= tenants_.size()) holder_ = 0;
    for (std::size_t i = 0; i < tenants_.size(); ++i) {
      Tenant& tenant = *tenants_[i];
      const bool holds = shared || (i == holder_ && undrained_but(i) == 0);
      if (tenant.holds && !holds) tenant.draining = 1 + static_cast<int>(below(20));
      tenant.holds = holds && tenant.connected;
      if (!planner_->has(tenant.id)) continue;
      TurnKind kind = TurnKind::kWaiting;
      if (tenant.holds) {
        kind = TurnKind::kHolding;
      } else if (tenant.draining > 0) {
        kind = TurnKind::kLeaving;
      } else if (i == holder_) {
        kind = TurnKind::kNext;
      }
      turns.push_back({tenant.id, kind, sched::TimePoint::max()});
    }
    std::stable_sort(turns.begin(), turns.end(), [](const auto& a, const auto& b) { return a.kind < b.kind; });
    sched::ResidencyCommands commands;
    planner_->plan(now_, kGpu, turns, commands);
    for (const sched::RoomBound& bound : commands.bounds) {
      Tenant& tenant = *tenants_[bound.seat.tenant.value - 1];
      if (tenant.connected) tenant.inbox.push_back(bound);
    }
    EXPECT_EQ(planner_->check_invariants(), "");
  }
  int undrained_but(std::size_t number) const {
    int sum = 0;
    for (std::size_t i = 0; i < tenants_.size(); ++i) sum += i != number ? tenants_[i]->draining : 0;
    return sum;
  }

  void change_turns() {
    holder_ = below(tenants_.size());
    plan();
  }

  // ---- restarts

  void start_daemon() {
    planner_ = std::make_unique<Residency>();
    planner_->set_host_budget(kHost, 0, 0);
    planner_->add_gpu(kGpu, kCapacity, kReserve);
    planner_->await_tenants(now_ + 2s);
  }
  void connect(Tenant& tenant) {
    planner_->opened(now_, tenant.id, {}, false);
    tenant.connected = true;
    tenant.told.sequence = 0;
    tenant.outbox.emplace_back(report_of(tenant));
    if (tenant.wish.ticket > tenant.answered) tenant.outbox.emplace_back(tenant.wish);
  }
  void restart() {
    if (!with_restarts_) return;
    ++restarts;
    start_daemon();
    for (auto& tenant : tenants_) {
      tenant->connected = false;
      tenant->inbox.clear();
      tenant->outbox.clear();
    }
    look_at_gpu();
  }
  void reconnect(Tenant& tenant) {
    if (tenant.connected || below(50) != 0) return;
    connect(tenant);
    plan();
  }
  // Memory that a tenant has not reported looks like other programs' memory.
  void look_at_gpu() {
    std::uint64_t foreign = 0;
    for (const auto& tenant : tenants_) {
      const auto view = planner_->view(tenant->id);
      if (!view || !view->speaks) foreign += tenant->bounds.used();
    }
    planner_->set_foreign(now_, kGpu, {.bytes = foreign, .seen_at = now_});
  }

  std::mt19937_64 random_;
  const bool with_restarts_;
  sched::TimePoint now_ = sched::TimePoint() + 1h;
  std::unique_ptr<Residency> planner_;
  std::vector<std::unique_ptr<Tenant>> tenants_;
  std::size_t holder_ = 0;
};

void run_worlds(bool with_restarts) {
  const std::uint64_t first = from_environment("GPUMUX_TEST_SEED", 1);
  const std::uint64_t allocations = from_environment("GPUMUX_TEST_ALLOCATIONS", 40'000);
  constexpr std::uint64_t kEach = 10'000;
  std::uint64_t made = 0, asked = 0, evicted = 0, restarts = 0;
  for (std::uint64_t seed = first; made < allocations; ++seed) {
    SCOPED_TRACE("GPUMUX_TEST_SEED=" + std::to_string(seed));
    World world(seed, with_restarts);
    world.run(kEach);
    if (::testing::Test::HasFailure()) return;
    made += world.made;
    asked += world.asked;
    evicted += world.born_evicted;
    restarts += world.restarts;
  }
  std::printf("allocations %llu, of them asked for %llu, born evicted %llu; restarts %llu; refused 0\n",
              static_cast<unsigned long long>(made), static_cast<unsigned long long>(asked),
              static_cast<unsigned long long>(evicted), static_cast<unsigned long long>(restarts));
  EXPECT_GT(asked, made / 100);
  EXPECT_GT(evicted, 0u);
  EXPECT_EQ(restarts > 0, with_restarts);
}

TEST(AcquisitionModel, NoAllocationWithinGpuAndHostMemoryIsRefused) { run_worlds(false); }
TEST(AcquisitionModel, NorWhileTheDaemonIsRestarted) { run_worlds(true); }

// ---- the orders

// A try fails, or a remedy ends. `then` is the remedy that must follow.
struct Event {
  enum class Kind { kFails, kHelps, kDoesNot, kAnswer };
  Kind kind;
  Lack lack;
  Answer answer;
  Remedy then;
};
constexpr Event fails(Lack lack, Remedy then) { return {Event::Kind::kFails, lack, {}, then}; }
constexpr Event helps(Remedy then) { return {Event::Kind::kHelps, {}, {}, then}; }
constexpr Event does_not(Remedy then) { return {Event::Kind::kDoesNot, {}, {}, then}; }
constexpr Event answers(Answer answer, Remedy then) { return {Event::Kind::kAnswer, {}, answer, then}; }

struct Course {
  const char* name;
  std::vector<Event> events;
};
void PrintTo(const Course& course, std::ostream* out) { *out << course.name; }

const Course kCourses[] = {
    {"RoomIsAskedForOnceAndThenDoneWithout",
     {fails(Lack::kRoom, Remedy::kReleasePools), does_not(Remedy::kAskForRoom), answers(Answer::kGiven, Remedy::kTry),
      fails(Lack::kRoom, Remedy::kReleasePools), does_not(Remedy::kDoWithoutRoom)}},
    {"ARefusalOfRoomIsNoRefusalOfMemory",
     {fails(Lack::kRoom, Remedy::kReleasePools), does_not(Remedy::kAskForRoom),
      answers(Answer::kRefused, Remedy::kDoWithoutRoom), fails(Lack::kCommitment, Remedy::kReleasePools),
      does_not(Remedy::kAskForCommitment), answers(Answer::kGiven, Remedy::kTry)}},
    {"TooMuchRoomIsDoneWithout",
     {fails(Lack::kRoom, Remedy::kReleasePools), does_not(Remedy::kAskForRoom),
      answers(Answer::kTooMuch, Remedy::kDoWithoutRoom)}},
    {"APoolsFreeMemoryGoesBeforeTheDaemonIsAsked",
     {fails(Lack::kRoom, Remedy::kReleasePools), helps(Remedy::kTry), fails(Lack::kRoom, Remedy::kReleasePools),
      helps(Remedy::kTry), fails(Lack::kCommitment, Remedy::kReleasePools), helps(Remedy::kTry)}},
    {"WhereTheDriverAloneDecidesItsNoIsTheAnswer",
     {fails(Lack::kRoom, Remedy::kReleasePools), does_not(Remedy::kAskForRoom),
      answers(Answer::kNoBounds, Remedy::kGiveUp)}},
    {"TheDriversNoIsAlsoTheAnswerForItsOwnMemory",
     {fails(Lack::kDriver, Remedy::kTrim), does_not(Remedy::kAskInTurn), answers(Answer::kNoBounds, Remedy::kGiveUp)}},
    {"CommitmentThatIsRefusedIsWaitedForWhileFreesAreUnderWay",
     {fails(Lack::kCommitment, Remedy::kReleasePools), does_not(Remedy::kAskForCommitment),
      answers(Answer::kRefused, Remedy::kAwaitFrees), helps(Remedy::kTry),
      fails(Lack::kCommitment, Remedy::kReleasePools), does_not(Remedy::kAskForCommitment),
      answers(Answer::kRefused, Remedy::kAwaitFrees), does_not(Remedy::kGiveUp)}},
    {"BoundsThatAreGoneEndTheWaitForCommitment",
     {fails(Lack::kCommitment, Remedy::kReleasePools), does_not(Remedy::kAskForCommitment),
      answers(Answer::kNoBounds, Remedy::kTry)}},
    {"NothingHelpsWithAddresses", {fails(Lack::kOther, Remedy::kReleasePools), does_not(Remedy::kGiveUp)}},
    {"TheDriversMemoryIsTriedAfterEachAnswerAndAtLastWaitedFor",
     {fails(Lack::kDriver, Remedy::kTrim), helps(Remedy::kTry), fails(Lack::kDriver, Remedy::kTrim),
      does_not(Remedy::kAskInTurn), answers(Answer::kGiven, Remedy::kTry), fails(Lack::kDriver, Remedy::kTrim),
      does_not(Remedy::kAskInTurn), answers(Answer::kTooMuch, Remedy::kTry), fails(Lack::kDriver, Remedy::kTrim),
      does_not(Remedy::kAskInTurn), answers(Answer::kRefused, Remedy::kTry), fails(Lack::kDriver, Remedy::kTrim),
      does_not(Remedy::kAwaitDriver), helps(Remedy::kTry), fails(Lack::kDriver, Remedy::kTrim), helps(Remedy::kTry)}},
    {"ACallUnderAQuotaMayLackBoth",
     {fails(Lack::kCommitment, Remedy::kReleasePools), does_not(Remedy::kAskForCommitment),
      answers(Answer::kGiven, Remedy::kTry), fails(Lack::kDriver, Remedy::kTrim), does_not(Remedy::kAskInTurn),
      answers(Answer::kGiven, Remedy::kTry), fails(Lack::kCommitment, Remedy::kReleasePools)}},
};

class RemedyOrders : public ::testing::TestWithParam<Course> {};

TEST_P(RemedyOrders, AreKept) {
  Remedies remedies(64 * pager::kMebibyte);
  int number = 0;
  for (const Event& event : GetParam().events) {
    SCOPED_TRACE("event " + std::to_string(++number));
    Remedy then = Remedy::kTry;
    switch (event.kind) {
      case Event::Kind::kFails: then = remedies.failed(event.lack); break;
      case Event::Kind::kHelps: then = remedies.ended(true); break;
      case Event::Kind::kDoesNot: then = remedies.ended(false); break;
      case Event::Kind::kAnswer: then = remedies.answered(event.answer); break;
    }
    ASSERT_EQ(then, event.then);
    if (then == Remedy::kDoWithoutRoom) {
      EXPECT_EQ(remedies.placement(), Placement::kEvicted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RemedyOrders, ::testing::ValuesIn(kCourses),
                         [](const auto& course) { return std::string(course.param.name); });

TEST(Remedies, AFailureSaysWhatLacks) {
  EXPECT_EQ(Remedies::lack_of(Placement::kResident, cuda::CUDA_SUCCESS), Lack::kNone);
  EXPECT_EQ(Remedies::lack_of(Placement::kEvicted, cuda::CUDA_ERROR_UNKNOWN), Lack::kNone);
  EXPECT_EQ(Remedies::lack_of(Placement::kResident, cuda::CUDA_ERROR_OUT_OF_MEMORY), Lack::kRoom);
  EXPECT_EQ(Remedies::lack_of(Placement::kResident, pager::kBeyondCommitment), Lack::kRoom);
  EXPECT_EQ(Remedies::lack_of(Placement::kEvicted, pager::kBeyondCommitment), Lack::kCommitment);
  EXPECT_EQ(Remedies::lack_of(Placement::kEvicted, cuda::CUDA_ERROR_OUT_OF_MEMORY), Lack::kOther);
}

TEST(Remedies, OnlyTheDaemonsNoEndsTheWaitForCommitment) {
  Remedies remedies(kBlock);
  // Others take what was given, however often that happens.
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(remedies.failed(Lack::kCommitment), Remedy::kReleasePools);
    ASSERT_EQ(remedies.ended(false), Remedy::kAskForCommitment);
    ASSERT_EQ(remedies.answered(Answer::kGiven), Remedy::kTry);
  }
}

// A try has failed, and nothing is kept for reuse.
Remedy driver_fails(Remedies& remedies) {
  EXPECT_EQ(remedies.failed(Lack::kDriver), Remedy::kTrim);
  return remedies.ended(false);
}

// Other seats want their turns, too, and none may be long enough for all that was asked for.
TEST(Remedies, ATurnThatEndsSaysNothingOfTheAmount) {
  Remedies remedies(32 * pager::kMebibyte);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(driver_fails(remedies), Remedy::kAskInTurn);
    ASSERT_EQ(remedies.room(), 32 * pager::kMebibyte);
    ASSERT_EQ(remedies.answered(Answer::kTurnOver), Remedy::kTry) << "the driver may have memory by now";
  }
  EXPECT_FALSE(remedies.is_refused());
}

TEST(Remedies, MoreAndMoreRoomIsAskedForUntilNothingComes) {
  Remedies remedies(32 * pager::kMebibyte);
  base::Duration last_pause{};
  for (std::uint64_t room = 32; room < 200'000; room *= 2) {
    ASSERT_EQ(driver_fails(remedies), Remedy::kAskInTurn);
    ASSERT_EQ(remedies.room(), room * pager::kMebibyte);
    // Given memory has to reach the driver before more is asked for.
    ASSERT_EQ(remedies.pause() > last_pause, room != 32 && last_pause < 100ms);
    last_pause = remedies.pause();
    ASSERT_EQ(remedies.answered(Answer::kGiven), Remedy::kTry);
  }
  // Then only what the driver owes can come, and that has an end.
  ASSERT_EQ(driver_fails(remedies), Remedy::kAskInTurn);
  EXPECT_FALSE(remedies.is_refused());
  ASSERT_EQ(remedies.answered(Answer::kRefused), Remedy::kTry);
  EXPECT_TRUE(remedies.is_refused());
  base::Duration waited{};
  Remedy remedy = driver_fails(remedies);
  for (; remedy == Remedy::kAwaitDriver; remedy = driver_fails(remedies)) {
    waited += remedies.pause();
    ASSERT_EQ(remedies.ended(true), Remedy::kTry);
  }
  EXPECT_EQ(remedy, Remedy::kGiveUp);
  EXPECT_GE(waited, 2s);
  EXPECT_LT(waited, 3s);
}

// Only the driver knows what it needs: a context may take nearly all that can leave the GPU.
TEST(Remedies, TheDriverGetsAllThatCanLeaveTheGpu) {
  for (const std::uint64_t bytes : {2u, 32u, 700u}) {
    for (std::uint64_t can_leave = bytes; can_leave < 90'000; can_leave += can_leave / 3 + 1) {
      Remedies remedies(bytes * pager::kMebibyte);
      std::uint64_t has_left = 0;
      int asked = 0;
      for (; driver_fails(remedies) == Remedy::kAskInTurn; ++asked) {
        const bool is_given = remedies.room() <= can_leave * pager::kMebibyte;
        if (is_given) has_left = std::max(has_left, remedies.room());
        ASSERT_EQ(remedies.answered(is_given ? Answer::kGiven : Answer::kTooMuch), Remedy::kTry);
      }
      EXPECT_GE(has_left + pager::kBlockBytes, can_leave * pager::kMebibyte) << bytes;
      EXPECT_LT(asked, 40);
    }
  }
}

// The room that was given may be gone when the search ends: other contexts were made since, or were seen late. A search
// that believed in it ended without asking for what could still leave.
TEST(Remedies, TheDriverGetsAllThatCanStillLeaveTheGpu) {
  constexpr std::uint64_t kBefore = 512, kAfter = 448;  // MiB
  for (int change = 0; change < 30; ++change) {
    Remedies remedies(2 * pager::kMebibyte);
    std::uint64_t has_left = 0;
    int asked = 0;
    for (; driver_fails(remedies) == Remedy::kAskInTurn; ++asked) {
      ASSERT_LT(asked, 80);
      if (asked == change) has_left = 0;
      const std::uint64_t can_leave = (asked < change ? kBefore : kAfter) * pager::kMebibyte;
      const bool is_given = remedies.room() <= can_leave;
      if (is_given) has_left = std::max(has_left, remedies.room());
      ASSERT_EQ(remedies.answered(is_given ? Answer::kGiven : Answer::kTooMuch), Remedy::kTry);
    }
    if (asked <= change) continue;  // it had ended before
    EXPECT_GE(has_left + pager::kBlockBytes, kAfter * pager::kMebibyte) << "after question " << change;
  }
}

}  // namespace
}  // namespace gpumux::shim

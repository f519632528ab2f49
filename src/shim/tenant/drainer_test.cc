// SPDX-License-Identifier: Apache-2.0
// Goal: what the drainer has seen before a Revoke is not said after it, and it looks when it should. Method: a drainer
// on the simulated driver; the test takes the agent's part, between a look at the GPU and what follows from it.
#include "shim/tenant/drainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "os/futex.h"
#include "os/system_clock.h"
#include "shim/process/real_driver.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::shim {

// In place of the real driver's, in this program.
constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

namespace {

sim::Tap& g_query = sim::tap<&cuda::Driver::cuStreamQuery>(g_driver);

}  // namespace

void load_real_driver() {
  g_driver = sim::simulated_driver();
  sim::tap<&cuda::Driver::cuStreamQuery>(g_driver);
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

using namespace std::chrono_literals;

class NoPort final : public client::SeatPort {
 public:
  void on_connected(const wire::Welcome&, bool) override {}
  void announce_seats() override {}
  void on_message(const wire::DaemonMessage&, os::FileDescriptor) override {}
  void on_second() override {}
  void on_closed_by_program(const std::string&) override {}
  void on_lost() override {}
  void on_ungated(const std::string&) override {}
};

// How often the GPU has been asked whether a stream is done.
class Queries {
 public:
  void count() {
    count_.fetch_add(1);
    os::futex_wake(count_, os::FutexScope::kProcess);
  }
  void await(std::uint32_t many) {
    for (std::uint32_t seen = count_; seen < many; seen = count_)
      os::futex_wait(count_, seen, 1ms, os::FutexScope::kProcess);
  }
  std::uint32_t now() const { return count_; }

 private:
  std::atomic<std::uint32_t> count_{0};
};

// A seat of a program with one context. Each test makes its drainer itself, after what the drainer's thread uses.
class DrainerTest : public sim::SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    driver();  // is loaded
    bool opened = false;
    ASSERT_EQ(seats.open(0, opened), 0u);
    g_query.clear();
  }
  // `queries` hears of each answer that the drainer is about to have.
  static void count(Queries& queries) {
    g_query.answered = [&queries](cuda::CUresult result) {
      queries.count();
      return result;
    };
  }
  // Seats that are open live as long as the process.
  static Seats& new_seats() {
    static auto& all = *new std::vector<Seats*>;
    return *all.emplace_back(new Seats(driver()));
  }

  wire::LeasePage page{};
  gate::Gate gate{page, [](void*, std::uint32_t) {}, nullptr};
  Seats& seats = new_seats();
  LockModes lock_modes{std::nullopt};
  NoPort port;
  client::Agent agent{{}, port};
};

// A seat gets another lease after it had drained. The drainer has looked before that, and found nothing. It comes to
// say so when the seat has submitted since, and the gate has closed again.
TEST_F(DrainerTest, DoesNotSayOfARevocationWhatItSawBeforeIt) {
  constexpr std::uint64_t kEpoch = 7;
  page.slots[0].epoch.store(kEpoch);
  const cuda::CUstream before = make_stream();
  const cuda::CUstream after = make_stream();
  seats.streams(0).note(context_, before);  // and what it ran is done

  Queries queries;
  count(queries);
  // A Revoke, and the gate is closed.
  const auto revoke = [&] {
    Seats::Locked locked(seats);
    // Looks are far apart: none is only half a one.
    locked[0].begin_closing(kEpoch, os::now() - 1h);
    locked[0].closing->phase = Closing::Phase::kDraining;
  };
  revoke();
  Drainer drainer(gate, seats, lock_modes, agent);
  std::optional<client::Agent::Announcement> nothing_is_said(std::in_place, agent);
  ASSERT_TRUE(drainer.start());
  queries.await(1);
  // Waits until the look is over, as a thread does that is let through.
  seats.streams(0).note(context_, after);
  const sim::HeldStream works(after);
  revoke();
  const std::uint32_t seen = queries.now();
  nothing_is_said.reset();
  // It looks again, or has come to the end.
  const auto is_draining = [this] {
    Seats::Locked locked(seats);
    return locked[0].closing && locked[0].closing->phase == Closing::Phase::kDraining;
  };
  while (queries.now() < seen + 2 && is_draining()) std::this_thread::yield();
  EXPECT_TRUE(is_draining()) << "it works still";
}

// A program that has turned out to go on at once each time that it has waited.
TEST_F(DrainerTest, IsWokenByOneWaitInSoMany) {
  seats.streams(0).note(context_, make_stream());
  Queries queries;
  count(queries);
  Drainer drainer(gate, seats, lock_modes, agent);
  ASSERT_TRUE(drainer.start());
  page.slots[0].word.store(wire::kGranted | wire::kExclusive | wire::kContended);
  seats.waits_to_skip(0) = 2;
  drainer.synchronised(0);
  drainer.synchronised(0);
  EXPECT_EQ(seats.waits_to_skip(0), 0u);
  drainer.synchronised(0);
  queries.await(1);  // it looks
}

// Each time that it has turned out to go on, more of its waits pass unseen; and none any more once it was idle indeed.
TEST_F(DrainerTest, IsWokenLessOftenTheMoreAlarmsWereFalse) {
  const auto set_idle_hold = [this](base::Duration hold) {
    Seats::Locked locked(seats);
    locked[0].idle_hold = hold;
  };
  // A look is one critical section.
  const auto await = [this](auto condition) {
    for (;;) {
      Seats::Locked locked(seats);
      if (condition(locked[0])) return;
    }
  };
  const auto await_alarms = [&](std::uint32_t alarms) {
    await([alarms](const Seat& seat) { return seat.false_alarms == alarms; });
  };
  set_idle_hold(1h);
  Drainer drainer(gate, seats, lock_modes, agent);
  const auto submits_and_waits = [&] {
    gate::ThreadRecord* const thread = gate::this_thread();
    ASSERT_EQ(gate.pass(*thread, 0), gate::Passed::kHolding);
    gate.leave(*thread, 0);
    drainer.synchronised(0);
  };
  page.slots[0].word.store(wire::kGranted | wire::kExclusive | wire::kContended);
  submits_and_waits();
  ASSERT_TRUE(drainer.start());  // not before: no seat waits for this grant, so it would be given back at the first
                                 // look
  await([](const Seat& seat) { return seat.idling_told; });
  EXPECT_EQ(seats.waits_to_skip(0), 0u);

  submits_and_waits();
  await_alarms(1);
  EXPECT_EQ(seats.waits_to_skip(0), 1u);
  submits_and_waits();
  EXPECT_EQ(seats.waits_to_skip(0), 0u) << "it is left alone";
  submits_and_waits();
  await([](const Seat& seat) { return seat.idling_told; });
  EXPECT_EQ(seats.waits_to_skip(0), 1u) << "as often as before: nobody was told anything that was false";
  submits_and_waits();
  submits_and_waits();
  await_alarms(2);
  EXPECT_EQ(seats.waits_to_skip(0), 3u);

  set_idle_hold(0ns);
  drainer.wake();
  await_alarms(0);
  EXPECT_FALSE(gate.is_granted(0));
  EXPECT_EQ(seats.waits_to_skip(0), 0u);
}

// The driver may wait for another GPU's frozen work. A second driver's call would wait for ever if the lock were held.
TEST_F(DrainerTest, ASeatIsOpenedWithoutTheLockThatAThawNeeds) {
  cuda::Driver watched = driver();
  sim::Tap& asked = sim::tap<&cuda::Driver::cuDeviceGetUuid_v2>(watched);
  auto& opening = *new Seats(watched);  // as those of a process
  asked.answered = [&](cuda::CUresult result) {
    const Seats::Locked locked(opening);
    return result;
  };
  bool is_new = false;
  EXPECT_EQ(opening.open(0, is_new), 0u);
  EXPECT_TRUE(is_new);
  EXPECT_EQ(opening.open(0, is_new), 0u);
  EXPECT_FALSE(is_new);
  EXPECT_EQ(asked.calls, 1u);
  asked.clear();
}

}  // namespace
}  // namespace gpumux::shim

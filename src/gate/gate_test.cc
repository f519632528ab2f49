// SPDX-License-Identifier: Apache-2.0
// Goal: invariant 3, no lease can be lost between the gate's check and the submission; and a thread that may submit
// gets through. Method: threads submit as fast as they can against a closer that plays the daemon. A submission writes
// a plain variable that only the holder may touch. A hole in the gate shows as a wrong value, and as a race under
// ThreadSanitizer.
#include "gate/gate.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "os/futex.h"
#include "os/spin.h"

namespace gpumux::gate {
namespace {

class GateTest : public ::testing::Test {
 protected:
  // The daemon's stores, as lease_page.h has them.
  void store(std::uint32_t slot, std::uint32_t bits) {
    wire::LeaseSlot& at = page.slots[slot];
    sequence_ += wire::kSequenceOne;
    at.word.store(sequence_ | bits, std::memory_order_release);
    os::futex_wake(at.word, os::FutexScope::kShared);
  }
  void grant(std::uint32_t slot) { store(slot, wire::kGranted | wire::kExclusive); }
  void close(std::uint32_t slot) {
    store(slot, 0);
    gate.begin_close();
    while (gate.is_anybody_inside(slot)) std::this_thread::yield();
  }

  static void count_request(void* self, std::uint32_t) { ++static_cast<GateTest*>(self)->requests; }

  wire::LeasePage page{};
  std::atomic<int> requests{0};
  Gate gate{page, count_request, this};

 private:
  std::uint32_t sequence_ = 0;
};

// As a sandbox does that a program enters long after it has begun.
bool refuse_membarrier() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(GateTest, TellsThreadsThatNeedMemoryFromThoseThatSubmit) {
  ThreadRecord& thread = *this_thread();
  grant(0);
  ASSERT_EQ(gate.pass(thread, 0), Passed::kHolding);
  EXPECT_FALSE(gate.is_anybody_holding(0));
  EXPECT_EQ(gate.hold(thread, 0), Passed::kNested);
  gate.leave(thread, 0);
  ASSERT_EQ(gate.hold(thread, 0), Passed::kHolding);
  EXPECT_TRUE(gate.is_anybody_inside(0));
  EXPECT_TRUE(gate.is_anybody_holding(0));
  EXPECT_FALSE(gate.is_anybody_holding(1));
  gate.leave(thread, 0);
  EXPECT_FALSE(gate.is_anybody_holding(0));
  {
    const LookingUp looking_up(&thread);
    EXPECT_FALSE(gate.is_anybody_looking_up(0)) << "it is not inside";
    ASSERT_EQ(gate.pass(thread, 0), Passed::kHolding);
    EXPECT_TRUE(gate.is_anybody_looking_up(0));
    EXPECT_FALSE(gate.is_anybody_holding(0));
    gate.leave(thread, 0);
  }
  // Without a lease, too.
  store(0, 0);
  ASSERT_EQ(gate.hold(thread, 0), Passed::kHolding);
  EXPECT_TRUE(gate.is_anybody_holding(0));
  gate.leave(thread, 0);
}

TEST_F(GateTest, AKernelThatRefusesTheBarrierLaterMakesThreadsFenceThemselves) {
  if (!gate.has_short_way()) GTEST_SKIP() << "it has refused at once";
  enum { kHolds, kNoFilter, kStillShort };
  const pid_t child = ::fork();
  if (child == 0) {
    if (!refuse_membarrier()) ::_exit(kNoFilter);
    close(0);
    ::_exit(gate.has_short_way() ? kStillShort : kHolds);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoFilter) GTEST_SKIP() << "no filters for system calls here";
  EXPECT_EQ(WEXITSTATUS(status), kHolds);
  EXPECT_TRUE(gate.has_short_way());
}

TEST_F(GateTest, NobodyIsInsideAfterItHasClosed) {
  constexpr std::uint32_t kSlot = 3;
  // On a busy machine a round takes long, for it waits until a thread has passed: there fewer rounds have to do.
  constexpr int kRounds = 2000, kLeastRounds = 100;
  constexpr auto kLongEnough = std::chrono::seconds(10);
  std::uint64_t guarded =
      0;  // written inside by one thread at a time (a mutex of theirs), read by the closer without any lock
  pthread_mutex_t among_themselves = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> passed{0};  // says only that the threads run; orders nothing
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      ThreadRecord& me = *this_thread();
      while (!stop.load(std::memory_order_relaxed)) {
        ASSERT_EQ(gate.pass(me, kSlot), Passed::kHolding);
        pthread_mutex_lock(&among_themselves);
        ++guarded;
        pthread_mutex_unlock(&among_themselves);
        passed.fetch_add(1, std::memory_order_relaxed);
        gate.leave(me, kSlot);
      }
    });
  }
  std::mt19937 random(1);
  const auto enough = std::chrono::steady_clock::now() + kLongEnough;
  for (int round = 0; round < kRounds; ++round) {
    if (round >= kLeastRounds && std::chrono::steady_clock::now() > enough) break;
    const std::uint64_t before = passed.load(std::memory_order_relaxed);
    grant(kSlot);
    while (passed.load(std::memory_order_relaxed) == before) std::this_thread::yield();
    for (auto spin = random() % 2000; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    close(kSlot);
    const std::uint64_t closed = guarded;
    for (int look = 0; look < 20; ++look) {
      std::this_thread::yield();
      ASSERT_EQ(guarded, closed) << "somebody submitted through a closed gate in round " << round;
    }
  }
  stop = true;
  grant(kSlot);
  for (auto& thread : threads) thread.join();
}

TEST_F(GateTest, AThreadInsidePassesAgainWithoutAsking) {
  ThreadRecord& me = *this_thread();
  grant(0);
  ASSERT_EQ(gate.pass(me, 0), Passed::kHolding);
  store(0, 0);
  EXPECT_EQ(gate.pass(me, 0), Passed::kNested);
  EXPECT_TRUE(gate.is_anybody_inside(0));
  gate.leave(me, 0);
  EXPECT_FALSE(gate.is_anybody_inside(0));
  EXPECT_EQ(gate.try_pass(me, 0), Passed::kNot);
}

TEST_F(GateTest, AWaitingThreadAsksAndIsWokenByTheGrant) {
  std::thread waiter([&] {
    ThreadRecord& me = *this_thread();
    ASSERT_EQ(gate.pass(me, 7), Passed::kHolding);
    gate.leave(me, 7);
  });
  while (requests.load() == 0) std::this_thread::yield();
  EXPECT_EQ(gate.passages(7), 0u);
  grant(7);
  waiter.join();
  EXPECT_EQ(gate.passages(7), 2u);
}

// A thread without a lease and a thread that lacks memory alone.
TEST_F(GateTest, NoThreadWaitsForMemoryThatCannotComeBack) {
  grant(1);
  for (const std::uint32_t slot : {0u, 1u}) {
    gate.bar(slot);
    std::thread waiter([&] { EXPECT_EQ(gate.pass(*this_thread(), slot), Passed::kStranded); });
    while (gate.waiting(slot) == 0) std::this_thread::yield();
    gate.set_stranded(slot, slot == 0 ? Gate::StrandedBy::kDaemon : Gate::StrandedBy::kDriver, true);
    waiter.join();
    EXPECT_FALSE(gate.is_anybody_inside(slot));
  }
  // Its memory has come back after all.
  gate.unbar(1);
  ThreadRecord& me = *this_thread();
  ASSERT_EQ(gate.pass(me, 1), Passed::kHolding);
  gate.leave(me, 1);
  // It waits for its memory again, as any seat.
  gate.set_stranded(1, Gate::StrandedBy::kDaemon, false);
  EXPECT_TRUE(gate.bar(1));
  EXPECT_TRUE(gate.is_stranded(1)) << "the daemon has not said so, and cannot take it back";
  gate.set_stranded(1, Gate::StrandedBy::kDriver, false);
  EXPECT_FALSE(gate.is_stranded(1));
}

TEST_F(GateTest, AReleaseIsTakenBackOnlyIfTheDaemonHasNotSpoken) {
  grant(0);
  ASSERT_TRUE(gate.close_if_granted(0));
  EXPECT_FALSE(gate.is_granted(0));
  gate.reopen_own(0);
  EXPECT_TRUE(gate.is_granted(0));
  EXPECT_TRUE(gate.is_exclusive(0));

  ASSERT_TRUE(gate.close_if_granted(0));
  store(0, 0);  // a revocation crosses the release
  gate.reopen_own(0);
  EXPECT_FALSE(gate.is_granted(0));
  EXPECT_FALSE(gate.close_if_granted(0));
}

// The lease that is released is the one whose number is returned, while a daemon gives one after the other in place.
// The sequence in each word is made from the number of its lease, so that they can be compared.
TEST_F(GateTest, AReleaseNamesTheLeaseThatItGivesUp) {
  wire::LeaseSlot& slot = page.slots[0];
  std::atomic<bool> stop{false};
  std::atomic<int> released{0};
  int misnamed = 0;
  std::thread releaser([&] {
    while (!stop.load()) {
      const auto epoch = gate.close_if_granted(0);
      if (!epoch) continue;
      ++released;
      const std::uint32_t word = slot.word.load();
      if ((word & wire::kReleased) == 0) continue;  // the daemon has stored the next one
      if ((word & wire::kSequenceMask) / wire::kSequenceOne != ((2 * *epoch + 1) & 0xffffffu)) ++misnamed;
    }
  });
  for (std::uint64_t epoch = 1; released.load() < 5000; ++epoch) {
    // Each 64th lease lasts until it is released, so that the test ends wherever it runs. The others end with the next
    // grant at the latest, which meets the releaser in any of its steps.
    for (int looks = 0; epoch % 64 == 0 && (slot.word.load() & wire::kReleased) == 0; ++looks) {
      if (looks > 1000) std::this_thread::yield();  // the releaser may need this core
    }
    // As the daemon's LeasePageView::grant.
    const auto sequence = static_cast<std::uint32_t>(2 * epoch) * wire::kSequenceOne;
    slot.word.store(sequence, std::memory_order_relaxed);
    slot.epoch.store(epoch, std::memory_order_release);
    slot.word.store((sequence + wire::kSequenceOne) | wire::kGranted, std::memory_order_release);
  }
  stop = true;
  releaser.join();
  EXPECT_EQ(misnamed, 0);
}

// A waiting thread that is told of a grant to come finds it without being woken. Asleep it would ask again first.
TEST_F(GateTest, AHintKeepsAWaitingThreadAwake) {
  os::pretend_spare_cores(true);
  gate.stay_awake_in_test(std::chrono::hours(1));  // this thread may be kept from running for a while
  std::atomic<std::uint32_t>& word = page.slots[0].word;
  store(0, 0);
  const int before = requests.load();
  std::thread waiter([&] {
    ASSERT_EQ(gate.pass(*this_thread(), 0), Passed::kHolding);
    gate.leave(*this_thread(), 0);
  });
  while (requests.load() == before) std::this_thread::yield();
  word.fetch_or(wire::kImminent);
  os::futex_wake(word, os::FutexScope::kShared, 1);
  while ((word.load() & wire::kImminent) != 0) std::this_thread::yield();
  const int asked = requests.load();
  word.fetch_or(wire::kGranted);  // and no thread is woken
  waiter.join();
  EXPECT_EQ(requests.load(), asked);
}

// A waiting thread is counted all the time, also while it asks again: an idle look in between must find it.
TEST_F(GateTest, WhoWaitsIsCountedAllTheTime) {
  store(0, 0);
  const int before = requests.load();
  std::thread waiter([&] {
    ASSERT_EQ(gate.pass(*this_thread(), 0), Passed::kHolding);
    gate.leave(*this_thread(), 0);
  });
  while (requests.load() == before) std::this_thread::yield();
  std::uint64_t gaps = 0;
  while (requests.load() < before + 8) gaps += gate.waiting(0) == 0 ? 1u : 0u;
  EXPECT_EQ(gaps, 0u);
  store(0, wire::kGranted);
  waiter.join();
  EXPECT_EQ(gate.waiting(0), 0u);
}

// A hint is a hint: with nothing behind it, again and again, threads wait as they did, and the grant finds them.
TEST_F(GateTest, HintsThatComeToNothingChangeNothing) {
  for (const bool spare : {false, true}) {
    os::pretend_spare_cores(spare);
    store(0, 0);
    const int before = requests.load();
    std::atomic<int> passed{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
      waiters.emplace_back([&] {
        ASSERT_EQ(gate.pass(*this_thread(), 0), Passed::kHolding);
        ++passed;
        gate.leave(*this_thread(), 0);
      });
    }
    while (requests.load() < before + 3) std::this_thread::yield();
    for (int i = 0; i < 200; ++i) {
      page.slots[0].word.fetch_or(wire::kImminent);
      os::futex_wake(page.slots[0].word, os::FutexScope::kShared, 1);
      std::this_thread::yield();
    }
    EXPECT_EQ(passed.load(), 0);
    grant(0);
    for (auto& waiter : waiters) waiter.join();
  }
}

TEST(SpinBudget, IsAShareOfTheTimeAndAReserve) {
  using namespace std::chrono_literals;
  os::SpinBudget budget(4, 1ms);
  base::TimePoint now(10s);
  EXPECT_EQ(budget.left(now), 1ms);
  budget.spend(1ms);
  EXPECT_EQ(budget.left(now), 0ms);
  EXPECT_EQ(budget.left(now += 1ms), 250us);
  EXPECT_EQ(budget.left(now += 1h), 1ms);
  EXPECT_EQ(budget.left(now - 1h), 1ms) << "another thread's clock reading is a little older";
}

TEST_F(GateTest, UngatedLetsEverybodyPass) {
  std::thread waiter([&] {
    ThreadRecord& me = *this_thread();
    ASSERT_EQ(gate.pass(me, 1), Passed::kHolding);
    gate.leave(me, 1);
  });
  while (requests.load() == 0) std::this_thread::yield();
  gate.set_ungated(1);
  waiter.join();
}

// A thread may end in the driver's call: it is cancelled there, or a callback of the program's calls pthread_exit.
TEST_F(GateTest, AThreadThatEndsInsideIsOutside) {
  grant(0);
  const auto end_inside = [](void* passed) -> void* {
    EXPECT_EQ(static_cast<Gate*>(passed)->try_pass(*this_thread(), 0), Passed::kHolding);
    pthread_exit(nullptr);
  };
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, nullptr, end_inside, &gate), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  gate.begin_close();
  EXPECT_FALSE(gate.is_anybody_inside(0));
  // The next thread gets that record, and is inside once.
  std::thread([this] {
    EXPECT_EQ(gate.try_pass(*this_thread(), 0), Passed::kHolding);
    gate.leave(*this_thread(), 0);
  }).join();
}

TEST_F(GateTest, ThreadRecordsAreUsedAgain) {
  const auto count = [] {
    int records = 0;
    for (const ThreadRecord* r = first_record(); r != nullptr; r = r->next.load()) ++records;
    return records;
  };
  std::thread([] { this_thread(); }).join();
  const int before = count();
  for (int i = 0; i < 50; ++i) std::thread([] { this_thread(); }).join();
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace gpumux::gate

// SPDX-License-Identifier: Apache-2.0
// Goal: a fork waits for every thread that is inside, a thread that comes waits for the fork, and neither waits for
// ever. Method: fork's handlers are called by a thread of their own; nothing is forked.
#include "base/no_fork.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

namespace gpumux::base {
namespace {

// Lets the others run for a while, but not so long that any thread loses patience.
template <class Done>
void let_run(const Done& done) {
  for (int i = 0; i < 1000 && !done(); ++i) std::this_thread::yield();
}

// On a busy machine the thread that is waited for may not run for kPatience. Then going on is right.
class Patience {
 public:
  bool is_over() const { return std::chrono::steady_clock::now() - began_ >= NoFork::kPatience; }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

TEST(NoForkTest, AForkWaitsForWhoIsInside) {
  std::atomic<bool> begun{false}, prepared{false}, went_too_early{false};
  std::optional<NoFork> inside(std::in_place);
  std::thread fork([&] {
    begun.store(true);
    const Patience patience;
    NoFork::prepare();
    went_too_early.store(NoFork::is_anybody_inside() && !patience.is_over());
    prepared.store(true);
  });
  while (!begun.load()) std::this_thread::yield();
  let_run([&] { return prepared.load(); });
  inside.reset();
  fork.join();
  EXPECT_FALSE(went_too_early.load());
  NoFork::in_parent();
}

TEST(NoForkTest, WhoComesWaitsForTheFork) {
  NoFork::prepare();
  std::atomic<bool> begun{false}, entered{false}, over{false}, went_too_early{false};
  std::thread next([&] {
    begun.store(true);
    const Patience patience;
    const NoFork no_fork;
    went_too_early.store(!over.load() && !patience.is_over());
    entered.store(true);
  });
  while (!begun.load()) std::this_thread::yield();
  let_run([&] { return entered.load(); });
  over.store(true);
  NoFork::in_parent();
  next.join();
  EXPECT_FALSE(went_too_early.load());
}

// As in a signal's handler in the thread that is inside.
TEST(NoForkTest, AForkDoesNotWaitForEver) {
  {
    const NoFork no_fork;
    NoFork::prepare();
    EXPECT_TRUE(NoFork::is_anybody_inside());
    NoFork::in_parent();
  }
  EXPECT_FALSE(NoFork::is_anybody_inside());
}

// As where a fork's handler waits for the thread that wants to come in.
TEST(NoForkTest, NobodyWaitsForAForkForEver) {
  NoFork::prepare();
  { const NoFork no_fork; }
  NoFork::in_parent();
}

TEST(NoForkTest, InTheChildNobodyIsInside) {
  NoFork* const parents = new NoFork;  // of a thread that the child does not have
  NoFork::prepare();
  NoFork::in_child();
  EXPECT_FALSE(NoFork::is_anybody_inside());
  { const NoFork no_fork; }
  ::operator delete(parents);
}

// Threads that have something in hand, and others that fork, as fast as they can: nothing is in hand during a fork.
TEST(NoForkTest, NobodyIsInsideDuringAFork) {
  std::atomic<int> held{0};
  std::atomic<int> wrong{0};
  const auto hold = [&] {
    for (int i = 0; i < 2000; ++i) {
      const NoFork no_fork;
      held.fetch_add(1);
      held.fetch_sub(1);
    }
  };
  const auto fork = [&] {
    for (int i = 0; i < 50; ++i) {
      NoFork::prepare();
      // Otherwise it has lost patience with a thread that did not get a processor.
      const bool is_alone = !NoFork::is_anybody_inside();
      for (int look = 0; look < 100; ++look) wrong.fetch_add(is_alone && held.load() != 0 ? 1 : 0);
      NoFork::in_parent();
    }
  };
  std::thread threads[] = {std::thread(hold), std::thread(hold), std::thread(fork), std::thread(fork)};
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace gpumux::base

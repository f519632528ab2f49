// SPDX-License-Identifier: Apache-2.0
// Goal: no exception ends a timer of the loop. Method: a loop whose timers throw.
#include "daemon/loop/loop_timer.h"

#include <gtest/gtest.h>

#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <new>
#include <stdexcept>

#include "daemon/loop/pool_work.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

TEST(LoopTimer, FiresAgainAfterItsWorkHasThrown) {
  boost::asio::io_context io;
  int fired = 0;
  LoopTimer timer(io, LoopTimer::every(1ms), [&](base::TimePoint) {
    ++fired;
    throw std::runtime_error("housekeeping has failed");
  });
  timer.update();
  for (int i = 1; i <= 3; ++i) {
    EXPECT_THROW(io.run_one(), std::runtime_error);
    EXPECT_EQ(fired, i);
    EXPECT_TRUE(timer.is_armed());
  }
}

TEST(LoopTimer, FiresOnceWhereItIsArmedFromOutside) {
  boost::asio::io_context io;
  int fired = 0;
  LoopTimer timer(io, LoopTimer::never(), [&](base::TimePoint) { ++fired; });
  timer.arm_in(1ms);
  timer.arm_in(1ms);
  io.run();
  EXPECT_EQ(fired, 1);
  EXPECT_FALSE(timer.is_armed());
}

TEST(LoopTimer, MayBeDestroyedByItsOwnWork) {
  boost::asio::io_context io;
  std::unique_ptr<LoopTimer> timer;
  timer = std::make_unique<LoopTimer>(io, LoopTimer::every(1ms), [&](base::TimePoint) { timer.reset(); });
  timer->update();
  io.run();
  EXPECT_EQ(timer, nullptr);
}

TEST(PoolWork, ThatThrowsIsReportedOnTheLoop) {
  boost::asio::io_context io;
  boost::asio::thread_pool pool(1);
  bool is_told = false;
  work_then(
      pool, io, []() -> int { throw std::bad_alloc(); }, [&](int) { is_told = true; });
  pool.join();
  EXPECT_THROW(io.run(), std::bad_alloc);
  EXPECT_FALSE(is_told);
}

}  // namespace
}  // namespace gpumux::daemon

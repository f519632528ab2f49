// SPDX-License-Identifier: Apache-2.0
// Goal: no exception ends a timer of the loop. Method: a loop whose timers throw.
#include "server/loop/loop_timer.h"

#include <gtest/gtest.h>

#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <new>
#include <stdexcept>

#include "server/loop/pool_work.h"

namespace gpumux::server {
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

TEST(PoolWork, ThatThrowsIsReportedOnTheLoopAndDoneAgain) {
  boost::asio::io_context io;
  boost::asio::thread_pool pool(1);
  int calls = 0;
  int told = 0;
  work_then(
      pool, io, [&calls]() -> int { return ++calls < 3 ? throw std::bad_alloc() : calls; },
      [&](int result) { told = result; }, std::chrono::milliseconds(1));
  int reports = 0;
  const auto busy = boost::asio::make_work_guard(io);
  while (told == 0) {
    try {
      io.run_one();
    } catch (const std::bad_alloc&) {
      ++reports;
    }
  }
  EXPECT_EQ(told, 3);
  EXPECT_EQ(reports, 2);
}

}  // namespace
}  // namespace gpumux::server

// SPDX-License-Identifier: Apache-2.0
// Goal: a pool does its work with the threads that it gets, and never waits for one that it does not get. Method: a
// process of a user that exists by number only, whose limit on tasks the test sets.
#include "server/loop/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>

namespace gpumux::server {
namespace {

constexpr unsigned kHangSeconds = 60;

// In a process of its own. Returns how many threads there are, after each has worked; 0: none could be made.
int threads_with(rlim_t tasks) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kHangSeconds);
    const rlimit limit{tasks, tasks};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || ::setresuid(60003, 60003, 60003) != 0) ::_exit(100);
    try {
      WorkerPool pool(4);
      std::atomic<int> done{0};
      for (int i = 0; i < 8; ++i) boost::asio::post(pool, [&done] { ++done; });
      pool.join();
      ::_exit(done == 8 ? static_cast<int>(pool.size()) : 101);
    } catch (const boost::system::system_error&) {
      ::_exit(0);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(WorkerPool, HasAsManyThreadsAsCanBeMade) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: a user without other processes";
  EXPECT_EQ(threads_with(100), 4);
  EXPECT_EQ(threads_with(4), 3) << "the process itself is a task";
  EXPECT_EQ(threads_with(2), 1);
  EXPECT_EQ(threads_with(1), 0);
}

TEST(WorkerPool, EndsWithWorkThatIsLeft) {
  for (int i = 0; i < 20; ++i) {
    WorkerPool pool(3);
    for (int work = 0; work < 100; ++work) boost::asio::post(pool, [] {});
  }
}

}  // namespace
}  // namespace gpumux::server

// SPDX-License-Identifier: Apache-2.0
// Goal: the closer closes everything that it is given, whenever that comes, and recovers from a lack of threads.
// Method: one end of a pipe is given to the closer, and the other end shows when it is closed. Threads are refused by
// asking for stacks that are larger than the address space.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/peers/closer.h"
#include "daemon/test_support.h"

namespace gpumux::daemon {
namespace {

using testing::eventually;

const server::Account kAccount = server::Account::of_user(1000);

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reads = os::FileDescriptor(ends[0]);
    writes = os::FileDescriptor(ends[1]);
  }
  bool is_closed() const {
    pollfd item{reads.get(), POLLIN, 0};
    return ::poll(&item, 1, 0) == 1 && (item.revents & POLLHUP) != 0;
  }
  os::FileDescriptor reads;
  os::FileDescriptor writes;
};

// A connection in which something lies unread.
os::FileDescriptor unread_connection() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const os::FileDescriptor other(ends[1]);
  EXPECT_EQ(::write(other.get(), "x", 1), 1);
  return os::FileDescriptor(ends[0]);
}

// No thread can be made while this lives.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t none;
    ::pthread_getattr_default_np(&before_);
    ::pthread_attr_init(&none);
    EXPECT_EQ(::pthread_attr_setstacksize(&none, std::size_t{1} << 60), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&none), 0);
    ::pthread_attr_destroy(&none);
  }
  ~NoThreads() {
    EXPECT_EQ(::pthread_setattr_default_np(&before_), 0);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

// The ids of this process's threads.
std::set<std::string> threads() {
  std::set<std::string> ids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ids.insert(task.path().filename());
  return ids;
}

// Nothing is accepted while the closer is behind, so nothing more comes that could start the thread.
TEST(Closer, WithoutAThreadForConnectionsTriesAgain) {
  Closer closer;
  {
    const NoThreads none;
    for (std::size_t i = 0; i < kMaxUnclosedConnections; ++i) closer.drop(unread_connection());
    EXPECT_TRUE(closer.is_behind());
  }
  EXPECT_TRUE(eventually([&] { return !closer.is_behind(); }));
}

TEST(Closer, WithoutAThreadForAnAccountTriesAgain) {
  Closer closer;
  Pipe pipe;
  {
    const NoThreads none;
    closer.close(std::move(pipe.writes), kAccount);
    EXPECT_EQ(closer.unclosed(kAccount), 1u);
  }
  EXPECT_TRUE(eventually([&] { return closer.unclosed(kAccount) == 0; }));
  EXPECT_TRUE(pipe.is_closed());
}

TEST(Closer, MakesAnotherThreadAfterAnIdleOneHasEnded) {
  // Threads of closers before this one may still be ending.
  const std::set<std::string> others = threads();
  Closer closer;
  const auto has_thread = [&] {
    const std::set<std::string> now = threads();
    return !std::includes(others.begin(), others.end(), now.begin(), now.end());
  };
  for (int round = 0; round < 2; ++round) {
    Pipe pipe;
    closer.close(std::move(pipe.writes), kAccount);
    EXPECT_TRUE(eventually([&] { return pipe.is_closed(); }));
    if (round == 0) {
      EXPECT_TRUE(eventually([&] { return !has_thread(); }));
    }
  }
}

// Threads begin, idle and end while descriptors come, and the closer ends at any of these moments.
TEST(Closer, ClosesWhatCameBeforeItsEnd) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    std::vector<Pipe> pipes(random() % 24);
    {
      Closer closer;
      std::vector<std::thread> givers;
      for (std::size_t first = 0; first < 3; ++first) {
        givers.emplace_back([&, first] {
          for (std::size_t i = first; i < pipes.size(); i += 3)
            closer.close(std::move(pipes[i].writes), server::Account::of_user(static_cast<uid_t>(i % 2)));
        });
      }
      for (std::thread& giver : givers) giver.join();
    }
    for (const Pipe& pipe : pipes) ASSERT_TRUE(eventually([&] { return pipe.is_closed(); })) << "round " << round;
  }
}

}  // namespace
}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
// Goal: a program keeps its own descriptor numbers and its limit, and a forked child keeps no memory of its parent.
// Method: files instead of GPU memory.
#include "client/kept_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "base/no_fork.h"

namespace gpumux::client {
namespace {

os::FileDescriptor file() { return os::FileDescriptor(::memfd_create("memory", MFD_CLOEXEC)); }

std::optional<std::uint64_t> keep(KeptMemory& memory, os::FileDescriptor fd) {
  const base::NoFork no_fork;
  return memory.keep(std::move(fd));
}

int open_above(int limit) {
  int open = 0;
  for (int fd = limit; fd < limit + 300; ++fd) open += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return open;
}

ino_t inode(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return status.st_ino;
}

// In a child, whose limits are its own. Returns its exit status: 0, or the number of the check that failed.
int failure_in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(KeptMemory, IsKeptAboveTheProgramsLimit) {
  EXPECT_EQ(failure_in_child([] {
              rlimit limit{};
              ::getrlimit(RLIMIT_NOFILE, &limit);
              limit.rlim_cur = 64;
              ::setrlimit(RLIMIT_NOFILE, &limit);
              const int before = open_above(64);
              KeptMemory memory;
              std::vector<std::uint64_t> numbers;
              for (int i = 0; i < 200; ++i) {
                const auto number = keep(memory, file());
                if (!number) return 1;
                numbers.push_back(*number);
              }
              rlimit after{};
              ::getrlimit(RLIMIT_NOFILE, &after);
              if (after.rlim_cur != 64) return 2;
              // The program's next number.
              if (const int next = file().release(); next < 0 || next >= 64) return 3;
              for (const std::uint64_t number : numbers) memory.freed(number);
              if (memory.count() != 0) return 4;
              return open_above(64) == before ? 0 : 5;
            }),
            0);
}

TEST(KeptMemory, ADescriptorIsOfTheSameMemory) {
  KeptMemory memory;
  os::FileDescriptor one = file();
  const ino_t its = inode(one.get());
  const auto number = keep(memory, std::move(one));
  ASSERT_TRUE(number);
  const os::FileDescriptor again(memory.descriptor(*number));
  ASSERT_TRUE(again);
  EXPECT_EQ(inode(again.get()), its);
  memory.freed(*number);
  memory.freed(*number);
  EXPECT_LT(memory.descriptor(*number), 0);
}

TEST(KeptMemory, WithoutNumbersThereIsNoSpace) {
  EXPECT_EQ(failure_in_child([] {
              const rlimit limit{64, 64};
              ::setrlimit(RLIMIT_NOFILE, &limit);
              KeptMemory memory;
              int failures = keep(memory, file()) ? 1 : 0;
              failures += memory.has_space() ? 1 : 0;
              memory.freed(1);  // what it had kept before
              return failures + (memory.has_space() ? 0 : 1);
            }),
            0);
}

TEST(KeptMemory, AForkedChildHasNoneOfIt) {
  KeptMemory memory;
  const auto number = keep(memory, file());
  ASSERT_TRUE(number);
  EXPECT_EQ(failure_in_child([&] {
              memory.close_after_fork();
              return memory.descriptor(*number) >= 0 ? 1 : 0;
            }),
            0);
  const os::FileDescriptor still(memory.descriptor(*number));
  EXPECT_TRUE(still);
}

}  // namespace
}  // namespace gpumux::client

// SPDX-License-Identifier: Apache-2.0
// Goal: a kept descriptor is never taken for another file that has got its number. Method: the test does with the
// number what a program does, and looks at it afterwards.
#include "os/kept_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace gpumux::os {
namespace {

FileDescriptor open_null() { return FileDescriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

class KeptDescriptorTest : public ::testing::Test {
 protected:
  KeptDescriptorTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    other_end_ = FileDescriptor(ends[0]);
    kept_ = KeptDescriptor(FileDescriptor(ends[1]));
  }

  FileDescriptor other_end_;
  KeptDescriptor kept_;
};

TEST_F(KeptDescriptorTest, HasAHighNumberThatIsNotInherited) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GE(kept_.get(), static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1024) / 2));
  EXPECT_EQ(::fcntl(kept_.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(KeptDescriptorTest, IsLostWhenItsNumberIsClosed) {
  EXPECT_FALSE(kept_.is_lost());
  ::close(kept_.get());
  errno = ENOENT;
  EXPECT_EQ(kept_.get(), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_TRUE(kept_.is_lost());
}

TEST_F(KeptDescriptorTest, LeavesTheFileAloneThatHasItsNumberNow) {
  const int number = kept_.get();
  ASSERT_EQ(::dup2(open_null().get(), number), number);
  EXPECT_TRUE(kept_.is_lost());
  EXPECT_FALSE(kept_.release());
  kept_.reset();
  EXPECT_GE(::fcntl(number, F_GETFD), 0) << "it is the program's";
  EXPECT_FALSE(kept_.is_lost()) << "nothing is kept any more";
  ::close(number);
}

TEST_F(KeptDescriptorTest, ClosesItsOwn) {
  const int number = kept_.get();
  KeptDescriptor moved = std::move(kept_);
  EXPECT_EQ(kept_.get(), -1);
  EXPECT_EQ(moved.get(), number);
  moved = KeptDescriptor();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(KeptDescriptor, IsKeptWhereNoHighNumberIsFree) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  FileDescriptor low = open_null();
  const int number = low.get();
  const rlimit few{static_cast<rlim_t>(number) + 1, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const KeptDescriptor kept(std::move(low));
  EXPECT_EQ(kept.get(), number);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace gpumux::os

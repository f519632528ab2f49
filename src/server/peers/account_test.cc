// SPDX-License-Identifier: Apache-2.0
// Goal: an account cannot be multiplied by its members, and is never another user's.
// Method: tables of subordinate ids; and child processes in namespaces, made by root and by an ordinary user.
#include "server/peers/account.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/unit/temporary_directory.h"

namespace gpumux::server {
namespace {

std::optional<uid_t> users(const std::string& name) {
  if (name == "eva") return 1000;
  if (name == "root") return 0;
  if (name == "1001") return 1001;
  return std::nullopt;
}

TEST(Account, SubordinateIdsCountForTheirOwner) {
  const auto ids = SubordinateIds::parse("eva:100000:65536\n1001:165536:65536\nnobody-here:500000:10\n", users);
  EXPECT_EQ(ids.owner_of(1000), 1000u);
  EXPECT_EQ(ids.owner_of(100000), 1000u);
  EXPECT_EQ(ids.owner_of(165535), 1000u);
  EXPECT_EQ(ids.owner_of(165536), 1001u);
  EXPECT_EQ(ids.owner_of(500000), 500000u);
  EXPECT_EQ(ids.owner_of(0), 0u);
}

TEST(Account, RootOwnsNoSubordinates) {
  EXPECT_EQ(SubordinateIds::parse("root:1000:1\nroot:1000000:65536", users).owner_of(1000), 1000u);
}

TEST(Account, NonsenseInTheFileIsLeftOut) {
  const auto ids = SubordinateIds::parse(":::\neva\neva:1\neva:-1:5\neva:5:0\neva:9999999999:1\n\neva:7:1", users);
  EXPECT_EQ(ids.owner_of(5), 5u);
  EXPECT_EQ(ids.owner_of(7), 1000u);
  EXPECT_EQ(SubordinateIds::read("/there/is/no/such/file").owner_of(7), 7u);
}

TEST(Account, AFileOfManyRangesIsReadWhole) {
  const TemporaryDirectory dir;
  std::ofstream file(dir.file("subuid"));
  for (int i = 0; i < 100'000; ++i) file << "1001:165536:1\n";
  file << "1000:700000:5\n";
  file.close();
  EXPECT_EQ(SubordinateIds::read(dir.file("subuid")).owner_of(700001), 1000u);
}

TEST(Account, TextsAndKeysTellThemApart) {
  EXPECT_EQ(Account::of_user(5).text(), "user 5");
  EXPECT_EQ(Account::of_container(5).text(), "container 5");
  EXPECT_NE(Account::of_user(5), Account::of_container(5));
  EXPECT_NE(Account::of_user(0), Account());
  EXPECT_EQ(Account::of_user(5).user(), 5u);
  EXPECT_EQ(Account::of_container(5).user(), std::nullopt);
}

// A process that has left the test's namespaces by `leave`, and is there until the end of the test.
class Elsewhere {
 public:
  explicit Elsewhere(bool (*leave)()) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      // A new pid namespace holds the children, so the grandchild is the one to be looked at.
      const bool left = leave();
      const pid_t inmate = left ? ::fork() : -1;
      if (inmate == 0) {
        ::setpgid(0, 0);
        for (;;) ::pause();
      }
      if (::write(ends[1], &inmate, sizeof inmate) != sizeof inmate) ::_exit(1);
      for (;;) ::pause();
    }
    if (::read(ends[0], &inmate_, sizeof inmate_) != sizeof inmate_) inmate_ = -1;
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Elsewhere() {
    if (inmate_ > 0) ::kill(inmate_, SIGKILL);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  // As the test sees it; not positive: the kernel does not let it leave.
  pid_t pid() const { return inmate_; }

 private:
  pid_t pid_ = -1;
  pid_t inmate_ = -1;
};

constexpr uid_t kStranger = 54321;

bool leave_as_stranger() {
  return ::setresuid(kStranger, kStranger, kStranger) == 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0;
}

TEST(Account, NamespacesOfAUserCountForTheUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: processes of another user";
  const Elsewhere one(leave_as_stranger);
  const Elsewhere another(leave_as_stranger);
  if (one.pid() <= 0 || another.pid() <= 0) GTEST_SKIP() << "users may not make namespaces here";
  for (const Elsewhere* process : {&one, &another}) {
    EXPECT_EQ(account_of(process->pid(), kStranger, true, {}), Account::of_user(kStranger));
  }
}

TEST(Account, ContainersOfRootsAreAccountsOfTheirOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: pid namespaces";
  const auto leave = [] { return ::unshare(CLONE_NEWPID) == 0; };
  const Elsewhere one(leave);
  const Elsewhere another(leave);
  if (one.pid() <= 0 || another.pid() <= 0) GTEST_SKIP() << "root may not make namespaces here";
  const Account first = account_of(one.pid(), 0, true, {});
  EXPECT_EQ(first.user(), std::nullopt);
  EXPECT_NE(first, Account());
  EXPECT_EQ(account_of(one.pid(), 7, true, {}), first);  // for any user that it claims to be
  EXPECT_NE(account_of(another.pid(), 0, true, {}), first);
}

TEST(Account, WhatCannotBeSeenIsOneAccount) {
  EXPECT_EQ(account_of(0, 7, true, {}), Account());
  EXPECT_EQ(account_of(::getpid(), 7, true, {}), Account());  // another root directory, say
  EXPECT_EQ(account_of(::getpid(), 7, false, {}), Account::of_user(7));
}

}  // namespace
}  // namespace gpumux::server

// SPDX-License-Identifier: Apache-2.0
// Goal: trust_domain never takes a process in other namespaces for one of the machine's. Method: children that leave by
// themselves.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "server/peers/trust_domain.h"

namespace gpumux::server {
namespace {

TEST(TrustDomain, IsOfAUserInItsNamespaces) {
  const std::string own = trust_domain(::getpid(), 0);
  EXPECT_FALSE(own.empty());
  EXPECT_EQ(trust_domain(::getpid(), 0), own);
  EXPECT_NE(trust_domain(::getpid(), 1), own);
  EXPECT_EQ(trust_domain(-1, 0), "");
}

// Asks of a child that has gone elsewhere by `leave`; none: it may not.
std::optional<bool> is_where_we_are_after(bool (*leave)()) {
  int ready[2], end[2];
  EXPECT_EQ(::pipe2(ready, O_CLOEXEC) + ::pipe2(end, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(end[1]);
    char word = leave() ? 'y' : 'n';
    if (::write(ready[1], &word, 1) != 1 || ::read(end[0], &word, 1) != 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(end[0]);
  char word = 'n';
  EXPECT_EQ(::read(ready[0], &word, 1), 1);
  const bool is = is_where_we_are(child);
  ::close(end[1]);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  return word == 'y' ? std::optional(is) : std::nullopt;
}

TEST(TrustDomain, ContainersAreNotTheMachine) {
  EXPECT_TRUE(is_where_we_are(::getpid()));
  EXPECT_FALSE(is_where_we_are(0));
  EXPECT_EQ(is_where_we_are_after([] { return true; }), true);
  EXPECT_NE(is_where_we_are_after([] { return ::chroot("/tmp") == 0 && ::chdir("/") == 0; }), true);
  EXPECT_NE(is_where_we_are_after([] { return ::unshare(CLONE_NEWUSER) == 0; }), true);
  // A service's mounts are its own, and it is of the machine.
  EXPECT_NE(is_where_we_are_after([] { return ::unshare(CLONE_NEWNS) == 0; }), false);
}

}  // namespace
}  // namespace gpumux::server

// SPDX-License-Identifier: Apache-2.0
// Goal: a thread that takes connections does not spin when it cannot have any. Method: a child process that may open no
// more descriptors.
#include "os/unix_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/system_clock.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::os {
namespace {

constexpr int kTries = 5;

// In the child: 0 if each of kTries refusals took kRefusedPause, and the connection is had when there is room again.
int take_with_no_descriptor_left(int listener) {
  rlimit none{};
  ::getrlimit(RLIMIT_NOFILE, &none);
  const rlimit before = none;
  none.rlim_cur = 0;
  ::setrlimit(RLIMIT_NOFILE, &none);
  const base::TimePoint begin = now();
  for (int i = 0; i < kTries; ++i) {
    if (accept_connection(listener)) return 1;
  }
  if (now() - begin < kTries * kRefusedPause) return 2;
  ::setrlimit(RLIMIT_NOFILE, &before);
  return accept_connection(listener) ? 0 : 3;
}

TEST(AcceptConnection, WaitsWhereDescriptorsAreShort) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/socket";
  const auto listener = listen_seqpacket(path, 0600, 1);
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_FALSE(accept_connection(listener->get())) << "no process has connected";
  const auto peer = connect_seqpacket(path);
  ASSERT_TRUE(peer) << peer.error().message();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(take_with_no_descriptor_left(listener->get()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpumux::os

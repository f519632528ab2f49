// SPDX-License-Identifier: Apache-2.0
// Goal: a runtime directory has one daemon, whose sockets are reachable, and an unused daemon ends. Method: daemons in
// this process, one after the other or two at once, and processes that keep a directory or its lock.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "daemon/daemon.h"
#include "daemon/test_support.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "server/peers/process_info.h"

namespace gpumux::daemon {
namespace {

using namespace testing;

TEST(Runtime, DirectoryIsForOneDaemon) {
  const TemporaryDirectory dir;
  TestDaemon first(TestDaemon::options_in(dir.path()));
  const auto second = Daemon::make(TestDaemon::options_in(dir.path()), fake_inventory(1, 50));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().exit_code, kExitOwned);
}

// A daemon that was killed and cannot end: its main thread is gone, and another one waits in the kernel. That is no
// daemon that serves, and the next one has the service manager try again.
TEST(Runtime, DirectoryOfADaemonThatCannotEndIsTriedAgain) {
  const TemporaryDirectory dir;
  OtherProcess killed([&] {
    const int file = open((dir.path() + "/lock").c_str(), O_RDWR | O_CREAT, 0600);
    if (flock(file, LOCK_EX) != 0) return 1;
    std::thread([] {
      for (;;) pause();
    }).detach();
    syscall(SYS_exit, 0);
    return 2;
  });
  killed.begin();
  ASSERT_TRUE(eventually([&] {
    const auto info = server::process_info(killed.pid());
    return info && info->state == 'Z';
  }));
  const auto next = Daemon::make(TestDaemon::options_in(dir.path()), fake_inventory(1));
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().exit_code, kExitFailed) << next.error().error.message();
  EXPECT_NE(next.error().error.message().find(std::to_string(killed.pid())), std::string::npos);
  // It waits for one that ends after all.
  auto patient = std::async(std::launch::async, [&] {
    return Daemon::make(TestDaemon::options_in(dir.path()), fake_inventory(1)).has_value();
  });
  killed.kill();
  EXPECT_TRUE(patient.get());
}

// A daemon that ends removes its sockets first, and then stores what it knows.
TEST(Runtime, DirectoryOfADaemonThatEndsIsWaitedFor) {
  const TemporaryDirectory dir;
  OtherProcess ending([&] {
    const int file = open((dir.path() + "/lock").c_str(), O_RDWR | O_CREAT, 0600);
    if (flock(file, LOCK_EX) != 0) return 1;
    std::this_thread::sleep_for(300ms);
    return 0;
  });
  ending.begin();
  ASSERT_TRUE(eventually([&] {
    const int file = open((dir.path() + "/lock").c_str(), O_RDWR);
    const bool is_locked = file >= 0 && flock(file, LOCK_SH | LOCK_NB) != 0;
    close(file);
    return is_locked;
  }));
  EXPECT_TRUE(Daemon::make(TestDaemon::options_in(dir.path()), fake_inventory(1)));
}

// Root of a container may write to the folder that it is given, unless it is given it read-only.
TEST(Runtime, TakesTheNamesOfItsSocketsBack) {
  const TemporaryDirectory dir;
  const std::string path = dir.path() + "/" + os::kTenantSocket;
  const auto serves = [&] {
    TestDaemon daemon(TestDaemon::options_in(dir.path()));
    TestTenant tenant(dir.path());
    return tenant.join();
  };
  ASSERT_TRUE(serves());
  std::ofstream(path) << "not a socket";
  EXPECT_TRUE(serves());
  const auto foreign = os::listen_seqpacket(path, 0600, 1);
  ASSERT_TRUE(foreign);
  EXPECT_TRUE(serves());
  std::filesystem::create_directories(path + "/in/the/way");
  EXPECT_TRUE(serves());
}

// A person tidies up, or a service clears old files.
TEST(Runtime, IsMadeAnewWhenItWasEmptied) {
  const TemporaryDirectory dir;
  const TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant before(dir.path());
  ASSERT_TRUE(before.join());
  const auto serves = [&] {
    if (!std::filesystem::exists(dir.path() + "/" + os::kTenantSocket)) return false;
    if (!std::filesystem::exists(dir.path() + "/" + os::kApiSocket)) return false;
    TestTenant tenant(dir.path());
    return tenant.join() && http(dir.path(), "GET", "/v1/daemon").status == 200;
  };
  for (const char* gone : {os::kTenantSocket, os::kApiSocket, os::kRuntimeLock}) {
    std::filesystem::remove(dir.path() + "/" + gone);
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(dir.path() + "/" + gone); })) << gone;
    EXPECT_TRUE(eventually(serves)) << gone;
  }
  // In one go: the daemon may begin in the middle.
  std::filesystem::rename(dir.path(), dir.path() + ".gone");
  std::filesystem::remove_all(dir.path() + ".gone");
  EXPECT_TRUE(eventually(serves));
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(dir.path() + "/" + os::kRuntimeLock); }));
  const auto second = Daemon::make(TestDaemon::options_in(dir.path()), fake_inventory(1, 50));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().exit_code, kExitOwned) << "the directory is this daemon's still";
  EXPECT_TRUE(before.open_seat(0, test_uuid(0)) && before.request() && before.wait_granted());
}

TEST(Runtime, StaysForAProcessThatAskedForIt) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.exit_when_unused = 1s;
  options.is_private = true;
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  OtherProcess holder([&] {
    close(hold[1]);
    char byte;
    if (http(dir.path(), "POST", "/v1/hold").body != "{}\n") return 1;
    [[maybe_unused]] const ssize_t got = read(hold[0], &byte, 1);
    return 0;
  });
  TestDaemon daemon(std::move(options));
  holder.begin();
  close(hold[0]);
  // Two house-keepings beyond the limit. Looking does not count as use here: only the socket's file is looked at.
  const auto until = std::chrono::steady_clock::now() + 3s;
  EXPECT_FALSE(eventually([&] { return access((dir.path() + "/" + os::kTenantSocket).c_str(), F_OK) != 0; },
                          until - std::chrono::steady_clock::now()));
  close(hold[1]);
  EXPECT_EQ(holder.wait(), 0);
  EXPECT_EQ(daemon.wait(), kExitStopped);
}

TEST(Runtime, EndsWhenUnused) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.exit_when_unused = 1s;
  TestDaemon daemon(std::move(options));
  {
    TestTenant tenant(dir.path());
    ASSERT_TRUE(tenant.join());
  }
  EXPECT_EQ(daemon.wait(), kExitStopped);
  EXPECT_NE(access((dir.path() + "/" + os::kTenantSocket).c_str(), F_OK), 0);
}

}  // namespace
}  // namespace gpumux::daemon

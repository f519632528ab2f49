// SPDX-License-Identifier: Apache-2.0
// Goal: a peer is known for certain, or counts as contained; and no account can shut out another.
// Method: processes that end while their connection goes on, with numbers that are used again. A kernel without
// SO_PEERPIDFD (a seam of DaemonOptions). Accounts that take all the connections there are.
#include "server/peers/access.h"

#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "daemon/api/http_server.h"
#include "daemon/peers/admission.h"
#include "daemon/test_support.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "server/peers/process_info.h"
#include "server/peers/trust_domain.h"

namespace gpumux::daemon {
namespace {

using namespace testing;

// A process of exactly this number, which waits for its end; not positive: that cannot be had.
pid_t fork_as(pid_t number) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<std::uint64_t>(&number);
  arguments.set_tid_size = 1;
  const auto child = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  if (child == 0) {
    for (;;) ::pause();
  }
  return child;
}

// A connection that a child of the test has made, in the daemon's hands. The child has ended.
class Orphaned {
 public:
  Orphaned() {
    const std::string path = dir_.file("socket");
    const auto listener = os::listen_seqpacket(path, 0600, 1);
    child_ = ::fork();
    if (child_ == 0) {
      const auto socket = os::connect_seqpacket(path);
      ::_exit(socket ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child_, &status, 0);
    if (listener && status == 0) ours_ = os::FileDescriptor(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  int socket() const { return ours_.get(); }
  pid_t child() const { return child_; }

 private:
  TemporaryDirectory dir_;
  pid_t child_ = -1;
  os::FileDescriptor ours_;
};

TEST(Identity, WhatHasEndedIsContained) {
  const Orphaned orphaned;
  ASSERT_GE(orphaned.socket(), 0);
  const auto peer = server::peer_of(orphaned.socket(), {}, server::Door::kOpen);
  ASSERT_TRUE(peer) << peer.error().message();
  EXPECT_TRUE(peer->is_contained);
  EXPECT_TRUE(peer->has_ended());
}

TEST(Identity, ANumberThatIsUsedAgainLendsNothing) {
  const Orphaned orphaned;
  ASSERT_GE(orphaned.socket(), 0);
  const pid_t other = fork_as(orphaned.child());
  if (other <= 0) GTEST_SKIP() << "needs the right to choose a process id";
  const auto peer = server::peer_of(orphaned.socket(), {}, server::Door::kOwners);
  const auto by_number = server::peer_of(orphaned.socket(), {}, server::Door::kOpen, os::PeerLookup::kByNumber);
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  ASSERT_TRUE(peer && by_number);
  EXPECT_TRUE(peer->is_contained);
  EXPECT_TRUE(peer->has_ended());
  EXPECT_EQ(peer->account, server::Account());
  // Without SO_PEERPIDFD the other process cannot be told from the peer: nothing of root's is believed then.
  EXPECT_EQ(by_number->is_contained, ::geteuid() == 0);
}

// Its main thread has ended, so /proc has no root directory of it; another thread lives in a chroot.
TEST(Identity, AProcessWithoutItsMainThreadIsContained) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: chroot";
  const TemporaryDirectory dir;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::chroot(dir.path().c_str()) != 0) ::_exit(1);
    std::thread([] {
      for (;;) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);
  }
  const bool has_no_leader = eventually([&] {
    const auto info = server::process_info(child);
    return info && info->state == 'Z';
  });
  const bool has_ended = ::waitpid(child, nullptr, WNOHANG) == child;
  const bool is_ours = server::is_where_we_are(child);
  ::kill(child, SIGKILL);
  if (!has_ended) ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(has_no_leader && !has_ended);
  EXPECT_FALSE(is_ours);
}

// In a new pid namespace. Process 1 has the machine's root, a stranger another one, and the daemon a third one.
int where_a_daemon_in_a_pod_sees_them(const std::string& pods_root, const std::string& strangers_root) {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return -1;
  const pid_t first = ::fork();
  if (first == 0) {
    int ready[2];
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", (pods_root + "/proc").c_str(), "proc", 0, nullptr) != 0 || ::pipe(ready) != 0)
      ::_exit(255);
    const pid_t stranger = ::fork();
    if (stranger == 0) {
      if (::chroot(strangers_root.c_str()) == 0 && ::write(ready[1], "1", 1) == 1) ::pause();
      ::_exit(1);
    }
    char byte = 0;
    const pid_t daemon = ::read(ready[0], &byte, 1) == 1 ? ::fork() : -1;
    if (daemon == 0) {
      if (::chroot(pods_root.c_str()) != 0) ::_exit(255);
      ::_exit((server::is_where_we_are(1) ? 1 : 0) | (server::is_where_we_are(::getpid()) ? 2 : 0) |
              (server::is_where_we_are(stranger) ? 4 : 0));
    }
    int status = 0;
    ::waitpid(daemon, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 255);
  }
  int status = 0;
  ::waitpid(first, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST(Identity, TheMachineIsWhereItsFirstProcessIs) {
  const TemporaryDirectory pod, stranger;
  ASSERT_EQ(::mkdir((pod.path() + "/proc").c_str(), 0755), 0);
  // A child asks, for it enters other namespaces.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(where_a_daemon_in_a_pod_sees_them(pod.path(), stranger.path()) & 255);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 255) GTEST_SKIP() << "needs the right to make namespaces";
  EXPECT_EQ(WEXITSTATUS(status), 1 | 2) << "1: process 1, 2: itself, 4: a process with another root";
}

TEST(Identity, APeerThatLivesIsKnown) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const os::FileDescriptor one(ends[0]);
  const os::FileDescriptor other(ends[1]);
  const auto peer = server::peer_of(one.get(), {}, server::Door::kOpen);
  ASSERT_TRUE(peer);
  EXPECT_FALSE(peer->is_contained);
  EXPECT_FALSE(peer->has_ended());
  EXPECT_EQ(peer->account, server::Account::of_user(::geteuid()));
  const auto owners = server::peer_of(one.get(), {}, server::Door::kOwners, os::PeerLookup::kByNumber);
  ASSERT_TRUE(owners);
  EXPECT_FALSE(owners->is_contained);
}

// The kubelet's plugin is in a pod, and is given the folder of root's own socket. It reads metrics, and changes
// nothing.
TEST(Identity, MetricsAreForAllWhoReachTheOwnersSocket) {
  const auto rules = server::AccessRules::make({}, 0, false);
  ASSERT_TRUE(rules);
  server::Peer pod{.pid = 1, .uid = 0, .groups = {}, .is_contained = true};
  EXPECT_FALSE(rules->may_read_metrics(pod));
  pod.by_owners_door = true;
  EXPECT_TRUE(rules->may_read_metrics(pod));
  EXPECT_FALSE(rules->may_change(pod));
}

TEST(Identity, RootNeedsItsOwnSocketWhereTheKernelCannotNamePeers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: a system daemon";
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.without_peer_pidfd = true;
  TestDaemon daemon(std::move(options));
  const auto refused = http(dir.path(), "GET", "/v1/queue");
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find(os::kRootApiSocket), std::string::npos) << refused.body;
  EXPECT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", "{}").status, 403);
  EXPECT_EQ(http(dir.path(), "GET", "/v1/queue", "", os::kRootApiSocket).status, 200);
  EXPECT_NE(http(dir.path(), "PATCH", "/v1/gpus/0", "{}", os::kRootApiSocket).status, 403);
}

TEST(Identity, ContainersAreGivenAFolderOfTheTenantsSocketAlone) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  const auto mode_of = [&](const std::string& name) {
    struct stat status {};
    return ::stat((dir.path() + "/" + name).c_str(), &status) == 0 ? status.st_mode & 0777 : 0u;
  };
  EXPECT_EQ(mode_of(os::kTenantDir), 0755u);
  if (::geteuid() == 0) {
    EXPECT_EQ(mode_of(os::kRootDir), 0700u);
    EXPECT_EQ(mode_of(os::kRootApiSocket), 0600u);
  }
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path() + "/" + os::kTenantDir)) {
    EXPECT_EQ(entry.path().filename(), "tenants.sock");
    ++files;
  }
  EXPECT_EQ(files, 1u);
}

server::Peer peer(uid_t uid, server::Account account, bool is_contained = false) {
  return {.pid = 1, .uid = uid, .groups = {}, .is_contained = is_contained, .account = account};
}

TEST(Limits, AreOfAccountsAndLeaveAReserve) {
  const auto access = server::AccessRules::make(Config(), 0, false);
  ASSERT_TRUE(access);
  const Closer closer;
  Admission admission({.all = 10, .per_account = 5, .reserve = 2}, "seats", *access, closer);
  const server::Account eva = server::Account::of_user(1000);
  const server::Account box = server::Account::of_container(4026531836);
  for (int i = 0; i < 5; ++i) {
    // One of subordinate ids counts for the account, whatever its number.
    EXPECT_EQ(admission.refusal(peer(100'000 + static_cast<uid_t>(i), eva)), std::nullopt);
    admission.entered(eva);
  }
  const auto full = admission.refusal(peer(1000, eva));
  ASSERT_TRUE(full);
  EXPECT_NE(full->find("user 1000"), std::string::npos) << *full;
  // Another account has its own, as far as the reserve.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(admission.refusal(peer(0, box, true)), std::nullopt);
    admission.entered(box);
  }
  EXPECT_TRUE(admission.refusal(peer(0, box, true))) << "root of a container has no reserve";
  EXPECT_TRUE(admission.refusal(peer(1001, server::Account::of_user(1001))));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(admission.refusal(peer(0, server::Account::of_user(0))), std::nullopt);
    admission.entered(server::Account::of_user(0));
  }
  EXPECT_TRUE(admission.refusal(peer(0, server::Account::of_user(0))));
  admission.left(eva);
  EXPECT_EQ(admission.refusal(peer(0, server::Account::of_user(0))), std::nullopt);
  EXPECT_EQ(admission.of(eva), 4u);
}

os::FileDescriptor connect_api(const std::string& dir) {
  os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir + "/" + os::kApiSocket;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) socket.reset();
  return socket;
}

TEST(Limits, AnAccountThatHasAllItMayIsToldSo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 4 * kMaxApiConnectionsPerAccount) GTEST_SKIP() << "needs more descriptors";
  const TemporaryDirectory dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  OtherProcess stranger([&] {
    if (::setresuid(12345, 12345, 12345) != 0) return 1;
    std::vector<os::FileDescriptor> held;
    for (std::size_t i = 0; i < kMaxApiConnectionsPerAccount; ++i) held.push_back(connect_api(dir.path()));
    const auto refused = http(dir.path(), "GET", "/v1/daemon");
    if (refused.status != 503) return 2;
    if (refused.body.find("user 12345") == std::string::npos) return 3;
    held.clear();
    return eventually([&] { return http(dir.path(), "GET", "/v1/daemon").status == 200; }) ? 0 : 4;
  });
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  EXPECT_EQ(stranger.run(), 0);
  EXPECT_EQ(http(dir.path(), "GET", "/v1/daemon").status, 200);
}

}  // namespace
}  // namespace gpumux::daemon

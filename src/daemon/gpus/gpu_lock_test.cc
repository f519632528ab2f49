// SPDX-License-Identifier: Apache-2.0
// Goal: a GPU has one daemon, root's goes first, and no other user keeps it from its GPUs. Method: two daemons on GPUs
// that do not exist, and processes of another user that take the lock's name.
#include "daemon/gpus/gpu_lock.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "daemon/peers/closer.h"
#include "daemon/test_support.h"
#include "os/unix_socket.h"
#include "server/loop/files.h"

namespace gpumux::daemon {
namespace {

using namespace testing;

TEST(GpuLock, RefusesASecondDaemonAndNamesTheOwner) {
  const TemporaryDirectory first_dir;
  const TemporaryDirectory second_dir;
  TestDaemon first(TestDaemon::options_in(first_dir.path()));
  const auto second = Daemon::make(TestDaemon::options_in(second_dir.path()), fake_inventory(1));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().exit_code, kExitOwned);
  const std::string why = second.error().error.message();
  EXPECT_NE(why.find("pid " + std::to_string(getpid())), std::string::npos) << why;
  EXPECT_NE(why.find(first_dir.path()), std::string::npos) << why;
}

// systemd starts the daemon again after these two exit statuses alone. Method: a daemon that may open ever more files.
TEST(GpuLock, ALackOfDescriptorsIsNoOtherDaemon) {
  for (rlim_t most = 3;; ++most) {
    ASSERT_LT(most, 1000U) << "it never starts";
    const TemporaryDirectory dir;
    OtherProcess daemon([&] {
      const rlimit limit{most, most};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 99;
      try {
        const auto made = Daemon::make(TestDaemon::options_in(dir.path()), fake_inventory(1));
        return made ? 0 : static_cast<int>(made.error().exit_code);
      } catch (const std::exception&) {
        return static_cast<int>(kExitFailed);  // as main does
      }
    });
    daemon.begin();
    const int status = daemon.wait();
    if (status == 0) break;
    EXPECT_TRUE(status == kExitFailed || status == kExitNoSockets) << status << " with " << most << " descriptors";
  }
}

TEST(GpuLock, LetsASecondDaemonServeTheRestAndTakeOverLater) {
  const TemporaryDirectory first_dir;
  const TemporaryDirectory second_dir;
  auto first = std::make_unique<TestDaemon>(TestDaemon::options_in(first_dir.path()), fake_inventory(1));
  TestDaemon second(TestDaemon::options_in(second_dir.path()), fake_inventory(2));
  const auto refused = [&] {
    return get_json(second_dir.path(), "/v1/status")["gpus"][0]["refused"].get<std::string>();
  };
  EXPECT_NE(refused().find("another daemon"), std::string::npos);
  TestTenant tenant(second_dir.path());
  ASSERT_TRUE(tenant.join());
  wire::SeatOpen open{.slot = 0};
  std::copy_n(test_uuid(0).bytes.begin(), 16, open.gpu_uuid);
  ASSERT_TRUE(tenant.send(open));
  const auto answer = tenant.receive_a<wire::SeatRefused>();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->reason, wire::Reason::kOwnedElsewhere);
  EXPECT_TRUE(tenant.open_seat(1, test_uuid(1)));
  first.reset();
  EXPECT_TRUE(eventually([&] { return refused().empty(); }));
  EXPECT_TRUE(tenant.open_seat(0, test_uuid(0)));
}

// A socket with the name of a GPU's lock, of user 65534; with `listens` it listens but never answers.
struct LockName {
  explicit LockName(const std::string& uuid) {
    address.sun_family = AF_UNIX;
    const std::string name = "gpumux-gpu-" + uuid;
    name.copy(address.sun_path + 1, name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t length = 0;
};

int keep_name(const std::string& uuid, bool listens) {
  const int squatter = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  const LockName name(uuid);
  if (bind(squatter, name.get(), name.length) != 0) return 98;
  if (listens && listen(squatter, 1) != 0) return 97;
  for (;;) pause();
}

int squat(const std::string& uuid, bool listens) {
  if (setgid(65534) != 0 || setuid(65534) != 0) return 99;
  return keep_name(uuid, listens);
}

bool is_taken(const std::string& uuid) {
  const auto list = server::read_file("/proc/net/unix", std::size_t{16} << 20);
  return list && list->find("@gpumux-gpu-" + uuid + "\n") != std::string::npos;
}

TEST(GpuLock, RootsDaemonServesWhatASquatterClaims) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user too";
  for (const bool listens : {false, true}) {
    const std::string uuid = fake_inventory(1)->gpus()[0].uuid_text;
    OtherProcess squatter([&] { return squat(uuid, listens); });
    squatter.begin();
    ASSERT_TRUE(eventually([&] { return is_taken(uuid); }));
    const TemporaryDirectory dir;
    TestDaemon daemon(TestDaemon::options_in(dir.path()));
    const auto gpu = [&] { return get_json(dir.path(), "/v1/status")["gpus"][0]; };
    EXPECT_EQ(gpu()["refused"], "");
    const std::string who = gpu()["claimed_by"];
    EXPECT_NE(who.find("pid " + std::to_string(squatter.pid()) + " of user nobody"), std::string::npos) << who;
    TestTenant tenant(dir.path());
    EXPECT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)));
    squatter.kill();
    EXPECT_TRUE(eventually([&] { return gpu()["claimed_by"].get<std::string>().empty(); })) << gpu()["claimed_by"];
  }
}

TEST(GpuLock, RootOfAContainerIsASquatterToo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: chroot";
  const std::string uuid = fake_inventory(1)->gpus()[0].uuid_text;
  const TemporaryDirectory dir;
  OtherProcess squatter([&] { return chroot(dir.path().c_str()) != 0 ? 99 : keep_name(uuid, true); });
  squatter.begin();
  ASSERT_TRUE(eventually([&] { return is_taken(uuid); }));
  TestDaemon daemon(TestDaemon::options_in(dir.path() + "/run"));
  const auto gpu = get_json(dir.path() + "/run", "/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["refused"], "");
  const std::string who = gpu["claimed_by"];
  EXPECT_NE(who.find("pid " + std::to_string(squatter.pid())), std::string::npos) << who;
}

// A visitor's connection to the lock of this name.
os::FileDescriptor visit(const std::string& uuid) {
  os::FileDescriptor visitor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const LockName name(uuid);
  if (connect(visitor.get(), name.get(), name.length) != 0) visitor.reset();
  return visitor;
}

TEST(GpuLock, AnswersAFewVisitorsATurn) {
  const TemporaryDirectory dir;
  const std::string uuid = "test-" + std::to_string(getpid());
  std::optional<LockOwner> owner;
  Closer closer;
  const auto lock =
      GpuLock::take({.uuid_text = uuid, .runtime_dir = "/there", .folder = dir.file("locks")}, owner, closer);
  ASSERT_TRUE(lock) << lock.error().message();
  std::vector<os::FileDescriptor> visitors;
  while (auto visitor = visit(uuid)) visitors.push_back(std::move(visitor));
  lock->answer();
  const auto answered = [&] {
    return std::count_if(visitors.begin(), visitors.end(), [](const os::FileDescriptor& visitor) {
      pollfd poller{visitor.get(), POLLIN, 0};
      return poll(&poller, 1, 0) == 1;
    });
  };
  EXPECT_GT(answered(), 0);
  EXPECT_LT(answered(), static_cast<std::ptrdiff_t>(visitors.size())) << "one turn goes on as long as visitors come";
  lock->answer();
  EXPECT_EQ(answered(), static_cast<std::ptrdiff_t>(visitors.size()));
}

TEST(GpuLock, IsFreeWhenItsVisitorsHearOfItsEnd) {
  const TemporaryDirectory dir;
  const std::string uuid = "test-" + std::to_string(getpid());
  const LockName name(uuid);
  Closer closer;
  for (int round = 0; round < 200; ++round) {
    std::optional<LockOwner> owner;
    auto lock = GpuLock::take({.uuid_text = uuid, .runtime_dir = "/there", .folder = dir.file("locks")}, owner, closer);
    ASSERT_TRUE(lock) << lock.error().message();
    const os::FileDescriptor visitor = visit(uuid);
    ASSERT_TRUE(visitor);
    const std::array<std::byte, 1> unread{};
    ASSERT_TRUE(os::send_message(visitor.get(), unread));
    auto next = std::async(std::launch::async, [&] {
      pollfd poller{visitor.get(), POLLIN, 0};
      const os::FileDescriptor mine(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      return poll(&poller, 1, 10'000) == 1 && bind(mine.get(), name.get(), name.length) == 0;
    });
    { const GpuLock ends = std::move(*lock); }
    ASSERT_TRUE(next.get()) << "round " << round;
  }
}

TEST(GpuLock, RootsDaemonIsFoundThoughASquatterHasTheName) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user too";
  const std::string uuid = fake_inventory(1)->gpus()[0].uuid_text;
  const TemporaryDirectory dir;
  OtherProcess squatter([&] { return squat(uuid, true); });
  OtherProcess other([&] {
    if (setgid(65534) != 0 || setuid(65534) != 0) return 99;
    std::optional<LockOwner> owner;
    Closer closer;
    const auto lock = GpuLock::take({.uuid_text = uuid, .runtime_dir = "/tmp/other"}, owner, closer);
    if (lock || lock.error().code != base::Code::kExists || !owner) return 1;
    return owner->uid == 0 && owner->pid == getppid() && owner->runtime_dir == dir.path() ? 0 : 2;
  });
  squatter.begin();
  ASSERT_TRUE(eventually([&] { return is_taken(uuid); }));
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  EXPECT_EQ(other.run(), 0);
}

// The same with two daemons that do as they should: there is one owner at any time.
void private_daemon_gives_way_to_roots(uid_t owner) {
  const TemporaryDirectory dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0777), 0);
  auto inventory = fake_inventory(1);  // of this process's GPU, whose UUID has its number
  const std::string uuid = inventory->gpus()[0].uuid_text;
  const std::string private_dir = dir.path() + "/private";
  OtherProcess other([&] {
    if (setgid(owner) != 0 || setuid(owner) != 0) return 99;
    auto options = TestDaemon::options_in(private_dir);
    options.is_private = true;
    TestDaemon daemon(std::move(options), std::move(inventory));
    return static_cast<int>(daemon.wait());
  });
  other.begin();
  ASSERT_TRUE(eventually([&] { return access((private_dir + "/api.sock").c_str(), F_OK) == 0; }));
  const std::string roots_dir = dir.path() + "/roots";
  TestDaemon daemon(TestDaemon::options_in(roots_dir));
  EXPECT_EQ(other.wait(), kExitOwned);
  const auto gpu = get_json(roots_dir, "/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["refused"], "");
  EXPECT_EQ(gpu["claimed_by"], "");
  // A client that looks for the other daemon finds root's.
  EXPECT_EQ(get_json(private_dir, "/v1/daemon")["runtime_dir"], roots_dir);
  EXPECT_TRUE(is_taken(uuid));
}

TEST(GpuLock, OfAPrivateDaemonGivesWayToRoots) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user too";
  for (const uid_t owner : {65534u, 0u}) private_daemon_gives_way_to_roots(owner);
}

}  // namespace
}  // namespace gpumux::daemon

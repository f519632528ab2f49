// SPDX-License-Identifier: Apache-2.0
// Goal: tenants get, share and give back GPUs through a whole daemon, and whatever one of them does harms no other.
// Method: a daemon in this process with GPUs that do not exist, tenants that send scripted messages over the real
// socket. Nothing is timed: every wait is for a condition, with a deadline that only a failure reaches.
#include "daemon/daemon.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/gpus/gpu_lock.h"
#include "daemon/loop/files.h"
#include "daemon/peers/known_tenants.h"
#include "daemon/peers/process_info.h"
#include "daemon/test_support.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "wire/lease_page.h"

namespace gpumux::daemon {
namespace {

using namespace testing;
using Json = nlohmann::json;

Json get(const std::string& dir, const std::string& target) {
  const HttpAnswer answer = http(dir, "GET", target);
  EXPECT_EQ(answer.status, 200) << answer.body;
  return Json::parse(answer.body, nullptr, false);
}

// For tests in which a holder is asked for nothing: the automatic quantum, 5 ms at first, may be over before a busy
// computer lets the next tenant ask, and then the holder is revoked and told nothing of contention.
DaemonOptions unlimited_quanta_in(const TemporaryDirectory& dir) {
  auto options = TestDaemon::options_in(dir.path());
  options.flag_settings = {{"quantum", "unlimited"}, {"in_flight", "unlimited"}};
  return options;
}

TEST(Leases, AreGivenReleasedAndGivenToTheNext) {
  const TemporaryDirectory dir;
  TestDaemon daemon(unlimited_quanta_in(dir));
  TestTenant a(dir.path(), "a.py");
  TestTenant b(dir.path(), "b.py");
  ASSERT_TRUE(a.join() && b.join());
  ASSERT_TRUE(a.open_seat(0, test_uuid(0)) && b.open_seat(3, test_uuid(0)));
  EXPECT_FALSE(a.is_granted());

  ASSERT_TRUE(a.request());
  ASSERT_TRUE(a.wait_granted());
  ASSERT_TRUE(b.request(3));
  // The holder hears that somebody waits.
  const auto contention = a.receive_a<wire::Contention>();
  ASSERT_TRUE(contention);
  EXPECT_EQ(contention->contended, 1u);
  EXPECT_FALSE(b.is_granted(3));

  ASSERT_TRUE(a.release());
  ASSERT_TRUE(b.wait_granted(3));
  EXPECT_FALSE(a.is_granted());
  EXPECT_GT(b.epoch(3), a.epoch(0));
}

TEST(Leases, GivenWhileOthersWaitSaySo) {
  // Who is granted a GPU that a third one waits for learns of it although nothing changes afterwards: otherwise nobody
  // in it would watch for idleness, and an idle holder would keep the GPU for its whole quantum.
  const TemporaryDirectory dir;
  auto options = unlimited_quanta_in(dir);
  options.flag_settings.push_back({"idle_hold", "700us"});
  TestDaemon daemon(std::move(options));
  TestTenant a(dir.path());
  TestTenant b(dir.path());
  TestTenant c(dir.path());
  ASSERT_TRUE(a.join() && b.join() && c.join());
  ASSERT_TRUE(a.open_seat(0, test_uuid(0)) && b.open_seat(0, test_uuid(0)) && c.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(a.request() && a.wait_granted() && b.request() && a.receive_a<wire::Contention>() && c.request());
  // Two requests of different tenants may come in either order: the daemon has both when its status says so.
  ASSERT_TRUE(eventually([&] {
    const Json status = get(dir.path(), "/v1/status");
    int waiting = 0;
    for (const Json& seat : status["gpus"][0]["seats"]) waiting += seat["phase"] == "waiting" ? 1 : 0;
    return waiting == 2;
  }));
  ASSERT_TRUE(a.release() && b.wait_granted());
  const auto contention = b.receive_a<wire::Contention>();
  ASSERT_TRUE(contention);
  EXPECT_EQ(contention->contended, 1u);
  EXPECT_EQ(contention->idle_hold_ns, 700'000u);
}

TEST(Leases, AreRevokedWhenTheQuantumEnds) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.flag_settings = {{"quantum", "20ms"}};
  TestDaemon daemon(std::move(options));
  TestTenant a(dir.path());
  TestTenant b(dir.path());
  ASSERT_TRUE(a.join() && b.join() && a.open_seat(0, test_uuid(0)) && b.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(a.request() && a.wait_granted() && b.request());
  ASSERT_TRUE(a.yield());
  ASSERT_TRUE(b.wait_granted());
  EXPECT_FALSE(a.is_granted());
}

TEST(Leases, AboutToBeGivenUpAreAnnouncedToTheNextOnly) {
  const TemporaryDirectory dir;
  TestDaemon daemon(unlimited_quanta_in(dir));
  TestTenant a(dir.path()), b(dir.path()), c(dir.path());
  for (TestTenant* tenant : {&a, &b, &c}) ASSERT_TRUE(tenant->join() && tenant->open_seat(0, test_uuid(0)));
  ASSERT_TRUE(a.request() && a.wait_granted() && b.request());
  ASSERT_TRUE(eventually([&] { return (a.word() & wire::kContended) != 0; }));
  ASSERT_TRUE(c.request());
  ASSERT_TRUE(a.send(wire::Idling{.slot = 0, .epoch = a.epoch()}));
  EXPECT_TRUE(eventually([&] { return (b.word() & wire::kImminent) != 0; }));
  EXPECT_FALSE(b.is_granted());
  EXPECT_TRUE(a.is_granted()) << "it may have work again";
  EXPECT_EQ(c.word() & wire::kImminent, 0u);
  ASSERT_TRUE(a.release());
  EXPECT_TRUE(b.wait_granted());
  EXPECT_EQ(b.word() & wire::kImminent, 0u);
}

TEST(Leases, OfDifferentGpusAreIndependent) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()), fake_inventory(2));
  TestTenant a(dir.path());
  TestTenant b(dir.path());
  ASSERT_TRUE(a.join() && b.join() && a.open_seat(0, test_uuid(0)) && b.open_seat(0, test_uuid(1)));
  ASSERT_TRUE(a.request() && b.request());
  EXPECT_TRUE(a.wait_granted());
  EXPECT_TRUE(b.wait_granted());
}

TEST(Tenants, ThatDisconnectFreeTheirGpu) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant a(dir.path());
  TestTenant b(dir.path());
  ASSERT_TRUE(a.join() && b.join() && a.open_seat(0, test_uuid(0)) && b.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(a.request() && a.wait_granted() && b.request());
  a.disconnect();
  EXPECT_TRUE(b.wait_granted());
}

// A forked child keeps the dead tenant's socket open: only the pidfd tells.
TEST(Tenants, ThatDieFreeTheirGpuThoughAChildHoldsTheirSocket) {
  const TemporaryDirectory dir;
  int ready[2];
  int hold[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(hold), 0);
  OtherProcess dying([&, uuid = test_uuid(0)] {
    TestTenant a(dir.path());
    if (!a.join() || !a.open_seat(0, uuid) || !a.request() || !a.wait_granted()) return 1;
    char byte;
    if (fork() == 0) {
      close(hold[1]);
      // Holds the socket until the test closes its end.
      [[maybe_unused]] const ssize_t got = read(hold[0], &byte, 1);
      _exit(0);
    }
    [[maybe_unused]] const ssize_t put = write(ready[1], "r", 1);
    for (;;) pause();
  });
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  dying.begin();
  close(hold[0]);
  char byte;
  close(ready[1]);  // so that a child that fails is an end of file here
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  TestTenant b(dir.path());
  ASSERT_TRUE(b.join() && b.open_seat(0, test_uuid(0)) && b.request());
  dying.kill();
  EXPECT_TRUE(b.wait_granted());
  close(hold[1]);
  close(ready[0]);
}

TEST(Seats, OfUnknownGpusAndTakenSlotsAreRefused) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant a(dir.path());
  ASSERT_TRUE(a.join());
  ASSERT_TRUE(a.send(wire::SeatOpen{.slot = 1}));
  auto refused = a.receive_a<wire::SeatRefused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, wire::Reason::kUnknownGpu);
  ASSERT_TRUE(a.open_seat(1, test_uuid(0)));
  wire::SeatOpen again{.slot = 1};
  std::copy_n(test_uuid(0).bytes.begin(), 16, again.gpu_uuid);
  ASSERT_TRUE(a.send(again));
  refused = a.receive_a<wire::SeatRefused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, wire::Reason::kSlotInUse);
}

TEST(Hello, OfAnotherProtocolIsRefusedWithTheReason) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  for (const auto& [protocol, oldest] : {std::pair{0u, 0u}, std::pair{9u, 9u}}) {
    TestTenant a(dir.path());
    ASSERT_TRUE(a.send(wire::Hello{.protocol = protocol, .oldest_protocol = oldest}, a.page_fd()));
    const auto refused = a.receive_a<wire::Refused>();
    ASSERT_TRUE(refused) << protocol;
    EXPECT_EQ(refused->reason, wire::Reason::kVersion);
    EXPECT_TRUE(a.is_dropped());
  }
  TestTenant newer(dir.path());
  ASSERT_TRUE(newer.send(wire::Hello{.protocol = 9, .oldest_protocol = 1}, newer.page_fd()));
  const auto welcome = newer.receive_a<wire::Welcome>();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->protocol, wire::kProtocolVersion);
}

TEST(Hello, NeedsASealedPageOfTheRightSize) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  const os::FileDescriptor unsealed = make_page(8192, false);
  const os::FileDescriptor small = make_page(4096, true);
  const os::FileDescriptor huge = make_page(1 << 20, true);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  for (const int fd : {-1, unsealed.get(), small.get(), huge.get(), pipes[0]}) {
    TestTenant a(dir.path());
    ASSERT_TRUE(a.send(wire::Hello{.protocol = 1, .oldest_protocol = 1}, fd));
    const auto refused = a.receive_a<wire::Refused>();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->reason, wire::Reason::kBadPage) << refused->text;
    EXPECT_TRUE(a.is_dropped());
  }
  close(pipes[0]);
  close(pipes[1]);
}

// A daemon may be killed before its predecessor's tenants are back. The next one must wait for them all the same.
TEST(Restart, KnowsTheTenantsThatItStillAwaits) {
  TemporaryDirectory dir;
  OtherProcess newcomer([&, uuid = test_uuid(0)] {
    TestTenant early(dir.path());
    return early.join() && early.open_seat(0, uuid) ? 0 : 1;
  });
  const std::string path = dir.path() + "/" + kKnownTenantsFile;
  const auto knows_this_process = [&] {
    const auto text = read_file(path, 4096);
    return text && parse_known_tenants(*text).contains(getpid());
  };
  const auto file_number = [&] {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
  };
  auto daemon = std::make_unique<TestDaemon>(TestDaemon::options_in(dir.path()));
  TestTenant holder(dir.path());
  ASSERT_TRUE(holder.join() && holder.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(eventually(knows_this_process));
  daemon->crash();

  // It does not come back to this one; another tenant comes, and the list is written.
  daemon = std::make_unique<TestDaemon>(TestDaemon::options_in(dir.path()));
  const auto before = file_number();
  EXPECT_EQ(newcomer.run(), 0);
  ASSERT_TRUE(eventually([&] { return file_number() != before; }));
  EXPECT_TRUE(knows_this_process());
  daemon->crash();
}

TEST(Restart, KeepsHoldersHoldingAndWaitersWaiting) {
  const TemporaryDirectory dir;
  // Another process, so that the restarted daemon does not take it for the one that it waits for.
  OtherProcess newcomer([&, uuid = test_uuid(0)] {
    TestTenant early(dir.path());
    if (!early.join() || !early.open_seat(0, uuid) || !early.request()) return 1;
    // The answer to this comes after the request was handled.
    wire::SeatOpen unknown{.slot = 5};
    if (!early.send(unknown) || !early.receive_a<wire::SeatRefused>()) return 2;
    return early.is_granted() ? 3 : 0;
  });
  auto daemon = std::make_unique<TestDaemon>(TestDaemon::options_in(dir.path()));
  TestTenant holder(dir.path());
  ASSERT_TRUE(holder.join() && holder.open_seat(0, test_uuid(0)) && holder.request() && holder.wait_granted());
  const std::uint64_t epoch = holder.epoch();
  ASSERT_TRUE(eventually([&] {
    const auto text = read_file(dir.path() + "/" + kKnownTenantsFile, 4096);
    return text && parse_known_tenants(*text).count(getpid()) == 1 &&
           parse_known_tenants(*text).begin()->second.seats == 1;
  }));
  daemon->crash();
  ASSERT_TRUE(holder.is_granted());  // nobody took it away

  daemon = std::make_unique<TestDaemon>(TestDaemon::options_in(dir.path()));
  // A newcomer comes first, and must not get what the returning holder has.
  EXPECT_EQ(newcomer.run(), 0);

  TestTenant back(dir.path(), std::move(holder));
  ASSERT_TRUE(back.join());
  wire::SeatOpen open{.slot = 0, .state = wire::SeatState::kHolding, .epoch = epoch, .exclusive = 1};
  std::copy_n(test_uuid(0).bytes.begin(), 16, open.gpu_uuid);
  ASSERT_TRUE(back.open_seat(open));
  const auto status_json = get(dir.path(), "/v1/status");
  const auto& seats = status_json["gpus"][0]["seats"];
  ASSERT_EQ(seats.size(), 1u) << status_json;
  EXPECT_EQ(seats[0]["phase"], "holding");
  EXPECT_EQ(seats[0]["epoch"], epoch);
  EXPECT_TRUE(back.is_granted());
  EXPECT_EQ(back.epoch(), epoch);

  // And the lease goes on like any other.
  TestTenant waiter(dir.path());
  ASSERT_TRUE(waiter.join() && waiter.open_seat(0, test_uuid(0)) && waiter.request());
  ASSERT_TRUE(back.release());
  ASSERT_TRUE(waiter.wait_granted());
  EXPECT_GT(waiter.epoch(), epoch);
}

TEST(Restart, DoesNotBelieveImpossibleLeases) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant liar(dir.path());
  ASSERT_TRUE(liar.join());
  wire::SeatOpen open{.slot = 0, .state = wire::SeatState::kHolding, .epoch = UINT64_MAX, .exclusive = 1};
  std::copy_n(test_uuid(0).bytes.begin(), 16, open.gpu_uuid);
  ASSERT_TRUE(liar.open_seat(open));
  const auto revoke = liar.receive_a<wire::Revoke>();
  ASSERT_TRUE(revoke);
  EXPECT_EQ(revoke->epoch, UINT64_MAX);
  TestTenant honest(dir.path());
  ASSERT_TRUE(honest.join() && honest.open_seat(0, test_uuid(0)) && honest.request());
  EXPECT_TRUE(honest.wait_granted());
}

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

TEST(GpuLock, LetsASecondDaemonServeTheRestAndTakeOverLater) {
  const TemporaryDirectory first_dir;
  const TemporaryDirectory second_dir;
  auto first = std::make_unique<TestDaemon>(TestDaemon::options_in(first_dir.path()), fake_inventory(1));
  TestDaemon second(TestDaemon::options_in(second_dir.path()), fake_inventory(2));
  const auto refused = [&] { return get(second_dir.path(), "/v1/status")["gpus"][0]["refused"].get<std::string>(); };
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

// A socket with the name of a GPU's lock, of user 65534; with `listens` it answers nobody.
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
  const auto list = read_file("/proc/net/unix", std::size_t{16} << 20);
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
    const auto gpu = [&] { return get(dir.path(), "/v1/status")["gpus"][0]; };
    EXPECT_EQ(gpu()["refused"], "");
    const std::string who = gpu()["claimed_by"];
    EXPECT_NE(who.find("pid " + std::to_string(squatter.pid()) + " of user nobody"), std::string::npos) << who;
    TestTenant tenant(dir.path());
    EXPECT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)));
    squatter.kill();
    EXPECT_TRUE(eventually([&] { return gpu()["claimed_by"] == ""; })) << gpu()["claimed_by"];
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
  const auto gpu = get(dir.path() + "/run", "/v1/status")["gpus"][0];
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

// The same beside two daemons that do as they should: there is one owner at any time.
TEST(GpuLock, OfAnotherUsersDaemonGivesWayToRoots) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user too";
  const TemporaryDirectory dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0777), 0);
  auto inventory = fake_inventory(1);  // of this process's GPU, whose UUID has its number
  const std::string uuid = inventory->gpus()[0].uuid_text;
  const std::string private_dir = dir.path() + "/private";
  OtherProcess other([&] {
    if (setgid(65534) != 0 || setuid(65534) != 0) return 99;
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
  const auto gpu = get(roots_dir, "/v1/status")["gpus"][0];
  EXPECT_EQ(gpu["refused"], "");
  EXPECT_EQ(gpu["claimed_by"], "");
  // Who looks for the other one finds root's.
  EXPECT_EQ(get(private_dir, "/v1/daemon")["runtime_dir"], roots_dir);
  EXPECT_TRUE(is_taken(uuid));
}

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
    const auto info = process_info(killed.pid());
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

// SPDX-License-Identifier: Apache-2.0
// Goal: tenants get, share and give back GPUs through a whole daemon, and whatever one of them does harms no other.
// Method: a daemon in this process with GPUs that do not exist, tenants that send scripted messages over the real
// socket. Nothing is timed: every wait is for a condition, with a deadline that only a failure reaches.
#include "daemon/daemon.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/peers/known_tenants.h"
#include "daemon/test_support.h"
#include "server/loop/files.h"
#include "wire/lease_page.h"

namespace gpumux::daemon {
namespace {

using namespace testing;
using Json = nlohmann::json;

// For tests in which the daemon asks a holder for nothing. The automatic quantum, 5 ms at first, may be over before a
// busy computer lets the next tenant ask. Then the holder is revoked and told nothing of contention.
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
  // The holder hears that another tenant waits.
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
  // A tenant that is granted a GPU for which a third one waits learns of that, although nothing changes afterwards.
  // Otherwise no thread in it would watch for idleness, and an idle holder would keep the GPU for its whole quantum.
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
    const Json status = get_json(dir.path(), "/v1/status");
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
  const std::string path = dir.path() + "/" + os::kKnownTenants;
  const auto knows_this_process = [&] {
    const auto text = server::read_file(path, 4096);
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
  // The list knows a seat before anything is granted to it, so a daemon may be killed at any moment.
  const auto list = server::read_file(dir.path() + "/" + os::kKnownTenants, 4096);
  ASSERT_TRUE(list);
  const KnownTenants known = parse_known_tenants(*list);
  ASSERT_EQ(known.count(getpid()), 1u) << *list;
  EXPECT_EQ(known.at(getpid()).seats, 1u);
  daemon->crash();
  ASSERT_TRUE(holder.is_granted());  // the daemon did not take it away

  daemon = std::make_unique<TestDaemon>(TestDaemon::options_in(dir.path()));
  // A newcomer comes first, and must not get what the returning holder has.
  EXPECT_EQ(newcomer.run(), 0);

  TestTenant back(dir.path(), std::move(holder));
  ASSERT_TRUE(back.join());
  wire::SeatOpen open{.slot = 0, .state = wire::SeatState::kHolding, .epoch = epoch, .exclusive = 1};
  std::copy_n(test_uuid(0).bytes.begin(), 16, open.gpu_uuid);
  ASSERT_TRUE(back.open_seat(open));
  const auto status_json = get_json(dir.path(), "/v1/status");
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

}  // namespace
}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
// The daemon's half of memory through its socket. Goal: bounds, hints and host memory reach the right tenant, and
// nothing that a tenant says about memory harms another. Method: a daemon with a GPU of 80 GiB and tenants that speak
// by hand.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "daemon/config/host_budget.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/memory_test_support.h"
#include "os/unix_socket.h"
#include "wire/messages.h"

namespace gpumux::daemon::testing {
namespace {

// Of 80 GiB: not the reserve, and not the contexts that are expected of the tenant and of the mover.
constexpr std::uint64_t kAlone = 77 * kGiB;

TEST(DaemonMemory, AloneATenantHasTheWholeGpu) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  Tenant tenant(dir.path());
  ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(tenant.settle([](const wire::Room& room) { return room.room >= kAlone; }));
  EXPECT_LE(tenant.room.room, 80 * kGiB - kReserve);
  EXPECT_EQ(tenant.room.total, 80 * kGiB);
}

// Two programs of 60 GiB each take turns, and the memory goes where the turn is.
TEST(DaemonMemory, MemoryFollowsTheLease) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  Tenant a(dir.path(), "a");
  Tenant b(dir.path(), "b");
  ASSERT_TRUE(a.join() && a.open_seat(0, test_uuid(0)) && a.settle(has_any));
  ASSERT_TRUE(a.request() && a.wait_granted());
  ASSERT_TRUE(a.settle([](const wire::Room& room) { return room.room >= kAlone; }));
  ASSERT_TRUE(a.has(60));
  ASSERT_TRUE(b.join() && b.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(b.settle([](const wire::Room&) { return true; }));  // the first one gives nothing: b counts from now on
  ASSERT_TRUE(a.settle([](const wire::Room& room) { return room.room < kAlone; }));
  ASSERT_TRUE(b.settle(has_any));
  // Born evicted: b holds no lease.
  ASSERT_TRUE(b.has(0, 60));
  ASSERT_TRUE(b.request());
  ASSERT_TRUE(a.settle([](const wire::Room& room) { return room.room <= 20 * kGiB; }, &b));
  EXPECT_TRUE(eventually([&] { return b.is_granted(); }));
  EXPECT_FALSE(a.is_granted());
  EXPECT_LT(b.room.room, 60 * kGiB);  // not before it is free
  ASSERT_TRUE(a.has(17, 43));
  EXPECT_TRUE(b.settle([](const wire::Room& room) { return room.room >= 60 * kGiB; }));
}

std::string mode_now(const TemporaryDirectory& dir) {
  const std::string body = http(dir.path(), "GET", "/v1/status").body;
  const std::string key = "\"mode_now\":\"";
  const std::size_t at = body.find(key);
  return at == std::string::npos ? "" : body.substr(at + key.size(), body.find('"', at + key.size()) - at - key.size());
}

// Mode auto: at once as long as all fits together, and by turns from the moment when it does not. At once again when it
// has fitted for a while.
TEST(DaemonMemory, TheModeFollowsWhatFits) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  Tenant a(dir.path(), "a");
  Tenant b(dir.path(), "b");
  ASSERT_TRUE(a.join() && a.open_seat(0, test_uuid(0)) && a.settle(has_any));
  ASSERT_TRUE(b.join() && b.open_seat(0, test_uuid(0)) && b.settle(has_any, &a));
  ASSERT_TRUE(a.has(20) && b.has(20));
  ASSERT_TRUE(a.request() && b.request());
  ASSERT_TRUE(a.wait_granted() && b.wait_granted());
  EXPECT_EQ(mode_now(dir), "concurrent");
  // A little more than fits: the rest must find host memory on any machine that runs this.
  ASSERT_TRUE(a.send(wire::RoomWanted{.slot = 0, .ticket = 1, .room = 62 * kGiB, .commitment = 62 * kGiB}));
  EXPECT_TRUE(a.settle([](const wire::Room& room) { return room.ticket == 1; }, &b));
  EXPECT_EQ(a.room.refused, 0u);  // both lost their leases, and it asks again when it has its turn
  ASSERT_TRUE(a.has(0, 62));
  EXPECT_TRUE(eventually([&] { return mode_now(dir) == "serial"; }));
  ASSERT_TRUE(a.has(30));
  EXPECT_TRUE(eventually([&] { return a.step(), b.step(), mode_now(dir) == "concurrent"; }));
}

// A connection has ended, and its process has not. The memory is its own and not on its way back. So there is room for
// it, and it is not told to evict anything.
TEST(DaemonMemory, WhoConnectsAgainKeepsWhatItHas) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  std::optional<Tenant> before(std::in_place, dir.path());
  ASSERT_TRUE(before->join() && before->open_seat(0, test_uuid(0)) && before->settle(has_any));
  ASSERT_TRUE(before->request() && before->wait_granted());
  ASSERT_TRUE(before->has(60));
  ASSERT_TRUE(before->settle([](const wire::Room&) { return true; }));
  wire::SeatOpen open{
      .slot = 0, .state = wire::SeatState::kDraining, .epoch = before->epoch(), .exclusive = 1, .has_mover = 0};
  std::copy_n(test_uuid(0).bytes.begin(), 16, open.gpu_uuid);
  Tenant again(dir.path(), std::move(*before));
  before.reset();
  ASSERT_TRUE(eventually(
      [&] { return nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body)["gpus"][0]["seats"].empty(); }));
  ASSERT_TRUE(again.join() && again.open_seat(open));
  ASSERT_TRUE(again.has(60));
  ASSERT_TRUE(again.settle([](const wire::Room&) { return true; }));
  EXPECT_EQ(again.room.sequence, 1u);
  EXPECT_GE(again.room.room, 60 * kGiB);
}

// A program leaves its memory to the driver: the daemon cannot know whether it would fit together with others.
TEST(DaemonMemory, WhoSaysNothingKeepsTheGpuSerial) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  Tenant a(dir.path(), "a");
  TestTenant silent(dir.path(), "silent");
  ASSERT_TRUE(a.join() && a.open_seat(0, test_uuid(0)) && a.settle(has_any));
  ASSERT_TRUE(silent.join() && silent.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(a.request() && a.wait_granted());
  ASSERT_TRUE(silent.request());
  EXPECT_TRUE(eventually([&] { return a.step(), silent.is_granted(); }));
  EXPECT_FALSE(a.is_granted());
  EXPECT_EQ(mode_now(dir), "serial");
}

TEST(DaemonMemory, AnAllocationIsAnswered) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  Tenant tenant(dir.path());
  ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)) && tenant.settle(has_any));
  ASSERT_TRUE(tenant.send(wire::RoomWanted{.slot = 0, .ticket = 1, .room = 90 * kGiB}));
  ASSERT_TRUE(tenant.settle([](const wire::Room& room) { return room.ticket == 1; }));
  EXPECT_EQ(tenant.room.refused, wire::kTooMuch);
  const auto refused = [&] {
    return nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body)["gpus"][0]["refused_allocations"];
  };
  ASSERT_EQ(refused().size(), 1u);
  EXPECT_EQ(refused()[0]["reason"], "gpu_memory");
  EXPECT_EQ(refused()[0]["pid"], getpid());
  EXPECT_EQ(refused()[0]["wanted_bytes"], 90 * kGiB);
  EXPECT_EQ(refused()[0]["limit_bytes"], 80 * kGiB);
  EXPECT_GE(refused()[0]["others_bytes"], kReserve);
  EXPECT_GT(refused()[0]["age_ns"], 0);
  ASSERT_TRUE(tenant.send(wire::RoomWanted{.slot = 0, .ticket = 2, .room = 85 * kGiB, .again = 1}));
  ASSERT_TRUE(tenant.settle([](const wire::Room& room) { return room.ticket == 2; }));
  EXPECT_EQ(tenant.room.refused, wire::kTooMuch);
  EXPECT_EQ(refused()[0]["wanted_bytes"], 90 * kGiB) << "it is the same call, which was told already";
  ASSERT_TRUE(tenant.send(wire::RoomWanted{.slot = 0, .ticket = 3, .room = 70 * kGiB, .commitment = 70 * kGiB}));
  ASSERT_TRUE(tenant.settle([](const wire::Room& room) { return room.ticket == 3; }));
  EXPECT_EQ(tenant.room.refused, 0u);
  tenant.disconnect();
  ASSERT_TRUE(eventually(
      [&] { return nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body)["gpus"][0]["seats"].empty(); }));
  EXPECT_EQ(refused().size(), 1u) << "a program that ends for want of memory is not asked any more";
}

// A killed tenant's memory is another one's as soon as NVML has it back.
TEST(DaemonMemory, TheMemoryOfTheDeadIsReused) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  auto a = std::make_unique<Tenant>(dir.path(), "a");
  Tenant b(dir.path(), "b");
  ASSERT_TRUE(a->join() && a->open_seat(0, test_uuid(0)) && a->settle(has_any));
  ASSERT_TRUE(a->has(77));
  ASSERT_TRUE(b.join() && b.open_seat(0, test_uuid(0)));
  a.reset();
  EXPECT_TRUE(b.settle([](const wire::Room& room) { return room.room >= kAlone; }));
}

// A new daemon believes its tenants' reports: it tells no tenant to give up anything before that tenant has reported.
TEST(DaemonMemory, ARestartTakesNothingAway) {
  const TemporaryDirectory dir;
  auto daemon = std::make_unique<TestDaemon>(TestDaemon::options_in(dir.path()));
  Tenant before(dir.path());
  ASSERT_TRUE(before.join() && before.open_seat(0, test_uuid(0)) && before.settle(has_any));
  ASSERT_TRUE(before.has(50, 3));
  daemon->stop();
  TestDaemon later(TestDaemon::options_in(dir.path()));
  Tenant tenant(dir.path());
  tenant.memory = before.memory;
  ASSERT_TRUE(tenant.join());
  wire::SeatOpen open{.slot = 0, .state = wire::SeatState::kWaiting};
  const base::GpuUuid uuid = test_uuid(0);
  std::copy(uuid.bytes.begin(), uuid.bytes.end(), std::begin(open.gpu_uuid));
  ASSERT_TRUE(tenant.send(open) && tenant.say());
  std::uint64_t least = ~std::uint64_t{0};
  ASSERT_TRUE(tenant.settle([&](const wire::Room& room) {
    least = std::min(least, room.room);
    return room.room >= kAlone;
  }));
  EXPECT_GE(least, 50 * kGiB);
}

// A tenant that comes back after a restart has host memory of the daemon before: that counts against a fixed budget.
// From a cold start, and by what is asked for: nothing has been evicted, and what was allocated last is not reported.
TEST(DaemonMemory, HostMemoryIsReadyBeforeAGpuIsFull) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.config.host_memory = "64M";
  TestDaemon daemon(std::move(options));
  Tenant a(dir.path(), "a");
  Tenant b(dir.path(), "b");
  ASSERT_TRUE(a.join() && a.open_seat(0, test_uuid(0)) && a.settle(has_any));
  ASSERT_TRUE(a.has(36));
  ASSERT_TRUE(b.join() && b.open_seat(0, test_uuid(0)) && b.settle(has_any, &a));
  ASSERT_TRUE(b.has(1));
  std::uint32_t ticket = 0;
  // A thread fills the GPU, piece by piece, before its next report.
  EXPECT_TRUE(eventually([&] {
    const wire::RoomWanted wanted{.slot = 0, .ticket = ++ticket, .room = 36 * kGiB, .commitment = 36 * kGiB};
    if (!b.send(wanted) || !b.settle([&](const wire::Room& room) { return room.ticket == ticket; }, &a)) return false;
    EXPECT_EQ(b.room.refused, 0u);
    const auto status = nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body);
    return status["host_memory"]["ready_bytes"] == 64 << 20;
  }));
}

TEST(DaemonMemory, StatusSaysWhatEverybodyHas) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.config.host_memory = "64M";
  TestDaemon daemon(std::move(options));
  Tenant a(dir.path(), "a");
  Tenant b(dir.path(), "b");
  TestTenant silent(dir.path(), "silent");
  ASSERT_TRUE(a.join() && a.open_seat(0, test_uuid(0)) && a.settle(has_any));
  a.memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kGraph)] = kGiB;
  a.memory.moved_out = 7;
  ASSERT_TRUE(a.has(50));
  const auto status = [&] { return nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body); };
  EXPECT_TRUE(eventually([&] { return status()["gpus"][0]["memory"]["tenants_bytes"] == 51 * kGiB; }));
  EXPECT_EQ(status()["gpus"][0]["remark"], "");
  ASSERT_TRUE(b.join() && b.open_seat(0, test_uuid(0)) && b.settle(has_any, &a));
  ASSERT_TRUE(b.has(0, 40));
  ASSERT_TRUE(silent.join() && silent.open_seat(0, test_uuid(0)));
  EXPECT_TRUE(eventually([&] { return !status()["gpus"][0]["remark"].get<std::string>().empty(); }));
  const auto json = status();
  const auto& gpu = json["gpus"][0];
  EXPECT_NE(gpu["remark"].get<std::string>().find("XLA_PYTHON_CLIENT_PREALLOCATE=false"), std::string::npos);
  EXPECT_EQ(gpu["memory"]["moved_out_bytes"], 7);
  EXPECT_EQ(gpu["memory"]["reserve_bytes"], kReserve);
  EXPECT_EQ(json["host_memory"]["budget_bytes"], 64 << 20);
  for (const auto& seat : gpu["seats"]) {
    EXPECT_EQ(seat.contains("memory"), seat["program"] != "silent");
    if (seat["program"] == "b") {
      EXPECT_EQ(seat["memory"]["evicted_bytes"], 40 * kGiB);
    }
    if (seat["program"] != "a") continue;
    EXPECT_EQ(seat["memory"]["resident_bytes"], 50 * kGiB);
    EXPECT_EQ(seat["memory"]["unpageable"], (nlohmann::json{{"graph", kGiB}}));
  }
  // The bytes that a tenant has moved still count when it is gone.
  a.disconnect();
  EXPECT_TRUE(eventually([&] { return status()["gpus"][0]["seats"].size() == 2; }));
  EXPECT_EQ(status()["gpus"][0]["memory"]["moved_out_bytes"], 7);
}

// A library that cannot be connected to a mover: nothing takes its memory off the GPU.
TEST(DaemonMemory, AnOldLibrarysMemoryStays) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  Tenant old(dir.path(), "old");
  const wire::Hello hello{.protocol = wire::kProtocolVersion, .oldest_protocol = wire::kOldestProtocolVersion};
  ASSERT_TRUE(old.send(hello, old.page_fd()) && old.receive_a<wire::Welcome>() && old.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(old.settle(has_any) && old.has(50));
  EXPECT_TRUE(old.send(wire::HostWanted{.slot = 0, .bytes = 1}));
  EXPECT_TRUE(old.send(wire::HostReturned{.id = 1}));
  EXPECT_TRUE(old.send(wire::HostForgotten{.slot = 0}));
  EXPECT_TRUE(old.send(wire::FrameWanted{.slot = 0, .number = 1}));
  EXPECT_TRUE(old.send(wire::FrameFreed{.slot = 0, .number = 1}));
  EXPECT_TRUE(eventually([&] {
    const auto seat = nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body)["gpus"][0]["seats"][0];
    return seat.contains("memory") && seat["memory"]["unpageable"] == nlohmann::json{{"no_mover", 50 * kGiB}};
  }));
  EXPECT_TRUE(old.settle([](const wire::Room& room) { return room.room >= 70 * kGiB; })) << "it goes on";
}

// The list of a GPU's processes is up to a second old. A process that was a tenant when the list was made is not
// foreign.
TEST(DaemonMemory, WhoHasJustEndedIsNotForeign) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  TestTenant tenant(dir.path());
  ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)));
  const auto foreign = [&] {
    return nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body)["gpus"][0]["foreign"];
  };
  // The GPU's list has this process, which is the tenant, and another one.
  EXPECT_TRUE(eventually([&] { return foreign().size() == 1; }));
  tenant.disconnect();
  EXPECT_TRUE(eventually(
      [&] { return nlohmann::json::parse(http(dir.path(), "GET", "/v1/status").body)["gpus"][0]["seats"].empty(); }));
  EXPECT_EQ(foreign().size(), 1u);
  // It goes on without us, and is shown as that when it is still there after a while.
  EXPECT_TRUE(eventually([&] { return foreign().size() == 2; }));
}

// `gpumux run --mem`: the process tree of a run has its limit together, and sees a GPU of that size.
TEST(DaemonMemory, ARunHasItsLimitTogether) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  const auto join = [&](Tenant& tenant, std::uint64_t limit, Tenant* other = nullptr) {
    wire::Hello hello{.protocol = wire::kProtocolVersion, .oldest_protocol = wire::kOldestProtocolVersion};
    hello.flags = wire::kKnowsMover;
    hello.memory_limit = limit;
    wire::set_text(hello.run, "run");
    return tenant.send(hello, tenant.page_fd()) && tenant.receive_a<wire::Welcome>() &&
           tenant.open_seat(0, test_uuid(0)) && tenant.settle(has_any, other);
  };
  Tenant first(dir.path(), "first");
  ASSERT_TRUE(join(first, 20 * kGiB));
  EXPECT_EQ(first.room.total, 20 * kGiB);
  EXPECT_LE(first.room.commitment, 20 * kGiB);
  ASSERT_TRUE(first.has(15));
  Tenant second(dir.path(), "second");
  ASSERT_TRUE(second.connected());
  EXPECT_TRUE(join(second, 60 * kGiB, &first));  // says more, and gets what the run has left
  EXPECT_EQ(second.room.total, 20 * kGiB);
  ASSERT_TRUE(second.send(wire::RoomWanted{.slot = 0, .ticket = 1, .commitment = 6 * kGiB}));
  EXPECT_TRUE(second.settle([](const wire::Room& room) { return room.ticket == 1; }, &first));
  EXPECT_EQ(second.room.refused, wire::kTooMuch);
  ASSERT_TRUE(second.send(wire::RoomWanted{.slot = 0, .ticket = 2, .commitment = 4 * kGiB}));
  EXPECT_TRUE(second.settle([](const wire::Room& room) { return room.ticket == 2; }, &first));
  EXPECT_EQ(second.room.refused, 0u);
}

// A child whose environment lacks the variable is of the run all the same, as long as the run is there.
TEST(DaemonMemory, AProcessOfALimitedRunThatSaysNoLimitHasIt) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  const auto join = [&](Tenant& tenant, std::uint64_t limit, const char* run) {
    wire::Hello hello{.protocol = wire::kProtocolVersion, .oldest_protocol = wire::kOldestProtocolVersion};
    hello.flags = wire::kKnowsMover;
    hello.memory_limit = limit;
    wire::set_text(hello.run, run);
    return tenant.send(hello, tenant.page_fd()) && tenant.receive_a<wire::Welcome>() &&
           tenant.open_seat(0, test_uuid(0)) && tenant.settle(has_any);
  };
  auto first = std::make_unique<Tenant>(dir.path(), "first");
  ASSERT_TRUE(join(*first, 20 * kGiB, "run"));
  Tenant child(dir.path(), "child");
  ASSERT_TRUE(join(child, 0, "run"));
  EXPECT_EQ(child.room.total, 20 * kGiB);
  Tenant stranger(dir.path(), "stranger");
  ASSERT_TRUE(join(stranger, 0, "another run"));
  EXPECT_EQ(stranger.room.total, 80 * kGiB);
  Tenant nobodys(dir.path(), "nobody's");
  ASSERT_TRUE(join(nobodys, 0, ""));
  EXPECT_EQ(nobodys.room.total, 80 * kGiB);
  // The child keeps the run there when its first process has ended.
  first.reset();
  Tenant later(dir.path(), "later");
  ASSERT_TRUE(join(later, 0, "run"));
  EXPECT_EQ(later.room.total, 20 * kGiB);
}

TEST(HostBudget, IsAPartOfWhatIsAvailable) {
  EXPECT_GT(host_budget("50%"), 0u);
  EXPECT_EQ(host_budget("0%"), 0u);
  EXPECT_EQ(host_budget("64M"), 64u << 20);
  EXPECT_LE(host_budget("100000T"), host_budget("90%") * 2);
}

}  // namespace
}  // namespace gpumux::daemon::testing

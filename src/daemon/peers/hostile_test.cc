// SPDX-License-Identifier: Apache-2.0
// Goal: a tenant that does its worst hurts only itself.
// Method: each test has a good tenant that asks for, gets and gives back the GPU before, while and after another
// misbehaves. A test ends well only if the good one was served every time, and the bad one was dropped or ignored as it
// should be.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>

#include "daemon/tenants/tenant_server.h"
#include "daemon/test_support.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "tests/unit/send_with.h"
#include "wire/lease_page.h"

namespace gpumux::daemon {
namespace {

using namespace testing;

std::vector<std::byte> bytes_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

class Hostile : public ::testing::Test {
 protected:
  Hostile() : daemon_(TestDaemon::options_in(dir_.path()), fake_inventory(2)), good_(dir_.path(), "good") {}

  void SetUp() override { ASSERT_TRUE(good_.join() && good_.open_seat(0, test_uuid(0))); }
  void TearDown() override { good_goes_on(); }

  // One whole turn of the good tenant.
  void good_goes_on() {
    ASSERT_TRUE(good_.request());
    ASSERT_TRUE(good_.wait_granted());
    ASSERT_TRUE(good_.release());
  }

  TemporaryDirectory dir_;
  TestDaemon daemon_;
  TestTenant good_;
};

TEST_F(Hostile, GarbageDropsItsSender) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    TestTenant bad(dir_.path());
    ASSERT_TRUE(round % 2 == 0 || bad.join());
    std::vector<std::byte> garbage(1 + random() % 1200);
    for (auto& b : garbage) b = static_cast<std::byte>(random());
    ASSERT_TRUE(bad.send_bytes(garbage));
    EXPECT_TRUE(bad.is_dropped());
    if (round % 10 == 0) good_goes_on();
  }
}

TEST_F(Hostile, BrokenProtocolDropsItsSender) {
  const auto request = bytes_of(wire::encode(wire::Request{.slot = 0}).bytes());
  auto half = request;
  half.resize(10);
  auto huge_length = request;
  huge_length[6] = std::byte{0x7f};
  auto unknown = request;
  unknown[0] = std::byte{0x3f};
  std::vector<std::byte> too_long(base::kMaxMessageBytes + 100);
  std::memcpy(too_long.data(), request.data(), 4);
  const auto no_slot = bytes_of(wire::encode(wire::Request{.slot = base::kMaxSeatsPerTenant}).bytes());
  const auto far_slot = bytes_of(wire::encode(wire::SeatOpen{.slot = UINT32_MAX}).bytes());
  const auto hello = bytes_of(wire::encode(wire::Hello{.protocol = 1, .oldest_protocol = 1}).bytes());
  const auto of_daemon = bytes_of(wire::encode(wire::Revoke{.slot = 0}).bytes());
  for (const auto& message : {half, huge_length, unknown, too_long, no_slot, far_slot, hello, of_daemon}) {
    TestTenant bad(dir_.path());
    ASSERT_TRUE(bad.join());
    ASSERT_TRUE(bad.send_bytes(message));
    EXPECT_TRUE(bad.is_dropped());
  }
  // Before Hello nothing else may come.
  TestTenant early(dir_.path());
  ASSERT_TRUE(early.send_bytes(request));
  EXPECT_TRUE(early.is_dropped());
}

TEST_F(Hostile, SensiblyFormedNonsenseIsIgnored) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join() && bad.open_seat(0, test_uuid(0)));
  ASSERT_TRUE(good_.request() && good_.wait_granted());
  // Another tenant's lease, by any epoch.
  for (const std::uint64_t epoch : {std::uint64_t{0}, good_.epoch(), good_.epoch() + 1, UINT64_MAX}) {
    ASSERT_TRUE(bad.send(wire::Drained{.slot = 0, .epoch = epoch}));
    ASSERT_TRUE(bad.send(wire::GateClosed{.slot = 0, .epoch = epoch}));
    ASSERT_TRUE(bad.send(wire::RevokeSeen{.slot = 0, .epoch = epoch}));
    ASSERT_TRUE(bad.send(wire::Stepped{.slot = 0, .epoch = epoch}));
    ASSERT_TRUE(bad.send(wire::Request{.slot = 63}));
    ASSERT_TRUE(bad.send(wire::SeatClose{.slot = 63}));
  }
  // The answer to this shows that the daemon has read all of it.
  ASSERT_TRUE(bad.send(wire::SeatOpen{.slot = 9}) && bad.receive_a<wire::SeatRefused>());
  EXPECT_TRUE(good_.is_granted());
  EXPECT_FALSE(bad.is_granted());
  ASSERT_TRUE(good_.release());
}

TEST_F(Hostile, ScribbledPageChangesNothing) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join() && bad.open_seat(0, test_uuid(0)));
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937 random(7);
    while (!stop.load()) {
      for (auto& slot : bad.page().slots) {
        slot.word.store(static_cast<std::uint32_t>(random()));
        slot.epoch.store(random());
        slot.permits.store(static_cast<std::uint32_t>(random()));
        slot.submissions.store(random());
      }
    }
  });
  // It is granted and revoked like any tenant, and answers nothing. Then it is passed over, and in the end it leaves.
  for (int i = 0; i < 20; ++i) good_goes_on();
  ASSERT_TRUE(bad.request());
  const auto holds = [&] {
    return http(dir_.path(), "GET", "/v1/status").body.find("\"holding\"") != std::string::npos;
  };
  ASSERT_TRUE(eventually(holds));
  ASSERT_TRUE(good_.request());
  ASSERT_TRUE(good_.wait_granted());
  ASSERT_TRUE(good_.release());
  bad.disconnect();
  good_goes_on();
  stop = true;
  scribbler.join();
}

TEST_F(Hostile, GangsWithoutEndAreRefused) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join());
  for (std::size_t i = 0; i <= kMaxGangJoins; ++i) {
    wire::GangJoin join;
    wire::set_text(join.key, std::to_string(i));
    ASSERT_TRUE(bad.send(join));
  }
  EXPECT_TRUE(bad.is_dropped());
}

TEST_F(Hostile, DescriptorsDoNotPileUp) {
  const std::size_t before = open_descriptors();
  for (int round = 0; round < 20; ++round) {
    TestTenant bad(dir_.path());
    ASSERT_TRUE(round % 2 == 0 || bad.join());
    // As many as the kernel lets through in one message.
    ASSERT_TRUE(send_with(bad.socket(), wire::encode(wire::Request{.slot = 0}).bytes(), std::vector<int>(253, 0)));
    EXPECT_TRUE(bad.is_dropped());
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << before << " before, " << open_descriptors() << " after";
}

TEST_F(Hostile, FloodsDoNotStarveOthers) {
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> sent{0};
  std::vector<std::thread> flooders;
  for (int i = 0; i < 2; ++i) {
    flooders.emplace_back([&] {
      TestTenant bad(dir_.path());
      if (!bad.join() || !bad.open_seat(0, test_uuid(1))) return;
      const auto message = wire::encode(wire::Request{.slot = 0});
      while (!stop.load()) {
        // Waits where its socket is full: the flood's own trouble.
        if (::send(bad.socket(), message.bytes().data(), message.bytes().size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
          ++sent;
      }
    });
  }
  // More than the burst that is let through at full speed.
  ASSERT_TRUE(eventually([&] { return sent.load() > 2 * kMessageBurst; }));
  for (int i = 0; i < 50; ++i) good_goes_on();
  stop = true;
  for (auto& flooder : flooders) flooder.join();
}

TEST_F(Hostile, OneThatDoesNotReadIsDropped) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join());
  // Each is answered by a refusal that it does not read.
  bool dropped = false;
  for (int i = 0; i < 100'000 && !dropped; ++i) {
    const auto message = wire::encode(wire::SeatOpen{.slot = 1});
    const auto sent = ::send(bad.socket(), message.bytes().data(), message.bytes().size(), MSG_NOSIGNAL);
    dropped = sent < 0 && errno != EAGAIN;
    if (i % 100 == 0) good_goes_on();
  }
  EXPECT_TRUE(dropped);
}

TEST_F(Hostile, ManyConnectionsThatSayNothingHarmNobody) {
  std::vector<os::FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) {
    auto socket = os::connect_seqpacket(dir_.path() + "/" + os::kTenantSocket);
    ASSERT_TRUE(socket) << socket.error().message();
    silent.push_back(std::move(*socket));
    if (i % 50 == 0) good_goes_on();
  }
  good_goes_on();
  // They are not kept for ever.
  EXPECT_TRUE(eventually(
      [&] {
        char byte;
        return ::recv(silent.back().get(), &byte, 1, MSG_DONTWAIT) == 0;
      },
      kHelloTimeout + kPatience));
}

TEST_F(Hostile, ApiClientsThatMisbehaveHarmNobody) {
  const auto connect = [&] {
    auto socket = os::connect_seqpacket(dir_.path() + "/" + os::kApiSocket);
    EXPECT_FALSE(socket);  // it is a stream socket: the wrong kind cannot even connect
  };
  connect();
  EXPECT_EQ(http(dir_.path(), "GET", "/" + std::string(100'000, 'x')).status, 413);
  EXPECT_EQ(http(dir_.path(), "PATCH", "/v1/gpus/0", std::string(100'000, ' ')).status, 413);
  EXPECT_EQ(http(dir_.path(), "\x01\x02", "/v1/status").status, 400);
  EXPECT_EQ(http(dir_.path(), "PATCH", "/v1/gpus/0", std::string(10'000, '[')).status, 400);
  EXPECT_EQ(http(dir_.path(), "PATCH", "/v1/gpus/0", "{\"mode\": \"\xff\xfe\"}").status, 400);
}

}  // namespace
}  // namespace gpumux::daemon

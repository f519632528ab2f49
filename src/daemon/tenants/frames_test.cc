// SPDX-License-Identifier: Apache-2.0
// Physical memory on its way. Goal: a frame goes once, to a seat that may see its data and to no other. A frame that no
// seat takes is freed. It goes over the socket, ahead of the room that it fills. Method: the table by itself, with
// descriptors of files; a daemon with a GPU of 80 GiB and tenants that speak by hand.
#include "daemon/tenants/frames.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "daemon/test_support.h"
#include "os/unix_socket.h"
#include "wire/messages.h"

namespace gpumux::daemon::testing {
namespace {

constexpr std::uint64_t kBytes = base::kMostFrameBytes;
constexpr base::FrameSizes kSize = base::frame_size(kBytes);
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

ForeignDescriptor any_file() { return ForeignDescriptor(os::FileDescriptor(::memfd_create("frame", MFD_CLOEXEC))); }
base::SeatId seat(std::uint64_t tenant, std::uint32_t gpu = 0) { return {base::TenantId{tenant}, base::GpuIndex{gpu}}; }

std::vector<std::uint64_t> lent(Frames& frames, base::SeatId to, const std::string& domain, base::FrameSizes sizes,
                                std::uint64_t bytes) {
  std::vector<std::uint64_t> numbers;
  frames.lend(to, domain, sizes, bytes, [&](std::uint64_t number, std::uint64_t, int fd) {
    EXPECT_GE(fd, 0);
    numbers.push_back(number);
  });
  return numbers;
}

TEST(FramesTest, GoFromSeatToSeat) {
  Frames frames(10);
  ASSERT_TRUE(frames.given(seat(1), "d", 0, kBytes, any_file()));
  ASSERT_TRUE(frames.given(seat(1), "d", 0, kBytes, any_file()));
  frames.settled();
  EXPECT_EQ(frames.size(), 2u) << "its giver has not said yet that it has less";
  EXPECT_EQ(lent(frames, seat(2), "d", kSize, kBytes), std::vector<std::uint64_t>{1});
  frames.reported(seat(1));
  frames.settled();
  EXPECT_EQ(frames.size(), 1u) << "nobody took the other one";
  EXPECT_FALSE(frames.given(seat(1), "d", 1, kBytes, {})) << "not its own any more";
  ASSERT_TRUE(frames.given(seat(2), "d", 1, kBytes, {}));
  EXPECT_FALSE(frames.given(seat(2), "d", 1, kBytes, {})) << "twice";
  EXPECT_EQ(lent(frames, seat(1), "d", kSize, 3 * kBytes), std::vector<std::uint64_t>{1});
  frames.freed(seat(2), 1);
  EXPECT_EQ(frames.size(), 1u) << "not its own";
  frames.freed(seat(1), 1);
  EXPECT_EQ(frames.size(), 0u);
}

TEST(FramesTest, GoToNobodyElse) {
  Frames frames(10);
  EXPECT_FALSE(frames.given(seat(1), "", 0, kBytes, any_file())) << "not known who it is";
  EXPECT_FALSE(frames.given(seat(1), "d", 0, kBytes, {}));
  EXPECT_FALSE(frames.given(seat(1), "d", 0, kBytes + 1, any_file()));
  EXPECT_FALSE(frames.given(seat(1), "d", 77, kBytes, {}));
  ASSERT_TRUE(frames.given(seat(1), "d", 0, kBytes, any_file()));
  EXPECT_TRUE(lent(frames, seat(2), "e", kSize, kBytes).empty());
  EXPECT_TRUE(lent(frames, seat(2), "", kSize, kBytes).empty());
  EXPECT_TRUE(lent(frames, seat(2, 1), "d", kSize, kBytes).empty()) << "another GPU";
  EXPECT_TRUE(lent(frames, seat(2), "d", base::frame_size(kBytes / 2), kBytes).empty());
  EXPECT_TRUE(lent(frames, seat(2), "d", kSize, kBytes - 1).empty()) << "more than there is room for";
  EXPECT_EQ(lent(frames, seat(2), "d", kSize, kBytes).size(), 1u);
}

TEST(FramesTest, OfSeatsThatAreGone) {
  Frames frames(10);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(frames.given(seat(1), "d", 0, kBytes, any_file()));
  ASSERT_EQ(lent(frames, seat(2), "d", kSize, kBytes).size(), 1u);
  frames.gone(seat(2));
  EXPECT_EQ(frames.size(), 1u);
  frames.gone(seat(1));
  EXPECT_EQ(frames.size(), 1u) << "what it had given somebody may take";
  frames.settled();
  EXPECT_EQ(frames.size(), 0u);
}

TEST(FramesTest, WhatIsSharedIsGivenToNobody) {
  Frames frames(10);
  ASSERT_TRUE(frames.given(seat(1), "d", 0, kBytes, any_file()));
  EXPECT_LT(frames.share(seat(1), 1), 0) << "it has given it";
  ASSERT_EQ(lent(frames, seat(2), "d", kSize, kBytes).size(), 1u);
  EXPECT_LT(frames.share(seat(1), 1), 0);
  EXPECT_GE(frames.share(seat(2), 1), 0);
  EXPECT_FALSE(frames.given(seat(2), "d", 1, kBytes, {}));
  EXPECT_EQ(frames.size(), 0u);
}

TEST(FramesTest, AreNotMoreThanThereAreDescriptorsFor) {
  EXPECT_GT(most_frames(), 0u);
  Frames frames(2);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(frames.given(seat(1), "d", 0, kBytes, any_file()));
  EXPECT_FALSE(frames.given(seat(3, 1), "d", 0, kBytes, any_file()));
  ASSERT_EQ(lent(frames, seat(2), "d", kSize, kBytes).size(), 1u);
  EXPECT_FALSE(frames.given(seat(3, 1), "d", 0, kBytes, any_file())) << "it is still kept";
  ASSERT_TRUE(frames.given(seat(2), "d", 1, kBytes, {}));
}

// ---- over the socket

class Tenant : public TestTenant {
 public:
  using TestTenant::TestTenant;

  struct Lent {
    wire::FrameLent message;
    bool has_fd = false;
  };
  // Takes messages, answering bounds and revocations, until `is_there`.
  bool until(const std::function<bool()>& is_there, Tenant* other = nullptr) {
    return eventually([&] {
      step();
      if (other != nullptr) other->step();
      return is_there();
    });
  }
  void step() {
    pollfd poller{socket(), POLLIN, 0};
    while (::poll(&poller, 1, 1) == 1) {
      std::array<std::byte, base::kMaxMessageBytes> buffer;
      const auto received = os::receive_message(socket(), buffer);
      if (!received || received->bytes == 0) return;
      const auto message = wire::decode_from_daemon(std::span<const std::byte>(buffer).first(received->bytes));
      ASSERT_TRUE(message);
      if (const auto* next = std::get_if<wire::Room>(&*message)) {
        // Frames that have been lent by now go with this room.
        if (next->room > room.room) lent_before_more = lent.size();
        room = *next;
        say();
      } else if (const auto* frame = std::get_if<wire::FrameLent>(&*message)) {
        lent.push_back({*frame, static_cast<bool>(received->fd)});
      } else if (const auto* revoke = std::get_if<wire::Revoke>(&*message)) {
        send(wire::RevokeSeen{.slot = 0, .epoch = revoke->epoch});
        send(wire::GateClosed{.slot = 0, .epoch = revoke->epoch});
        send(wire::Drained{.slot = 0, .epoch = revoke->epoch});
      }
    }
  }
  bool say() {
    memory.room_sequence = room.sequence;
    memory.allocated = memory.resident + memory.evicted;
    return send(memory);
  }
  bool has(std::uint64_t resident, std::uint64_t evicted, base::FrameSizes frames) {
    memory.resident = resident;
    memory.evicted = evicted;
    memory.frames = frames;
    return say();
  }
  wire::Memory memory{};
  wire::Room room{};
  std::vector<Lent> lent;
  std::size_t lent_before_more = 0;
};

class Switch : public ::testing::Test {
 protected:
  TemporaryDirectory dir;
  std::optional<TestDaemon> daemon;
  std::optional<Tenant> a, b;

  // `a` has 60 GiB and is to give room to `b`, which has as much evicted, of these sizes.
  void begin(bool hand_over, base::FrameSizes sizes = kSize) {
    daemon.emplace(TestDaemon::options_in(dir.path()));
    ASSERT_EQ(http(dir.path(), "PATCH", "/v1/gpus/0", hand_over ? R"({"hand_over": true})" : R"({"hand_over": false})")
                  .status,
              200);
    a.emplace(dir.path(), "a");
    b.emplace(dir.path(), "b");
    ASSERT_TRUE(a->join() && a->open_seat(0, test_uuid(0)) && a->until([&] { return a->room.room > 0; }));
    ASSERT_TRUE(a->request() && a->wait_granted());
    ASSERT_TRUE(a->until([&] { return a->room.room >= 78 * kGiB; }));
    ASSERT_TRUE(a->has(60 * kGiB, 0, 0));
    ASSERT_TRUE(b->join() && b->open_seat(0, test_uuid(0)) && b->until([&] { return b->room.sequence != 0; }));
    ASSERT_TRUE(a->until([&] { return a->room.room < 78 * kGiB; }));
    ASSERT_TRUE(b->has(0, 60 * kGiB, sizes));
    ASSERT_TRUE(b->request());
    ASSERT_TRUE(a->until([&] { return a->room.room <= 20 * kGiB; }, &*b));
  }
};

TEST_F(Switch, WhatIsGivenComesAheadOfTheRoom) {
  ASSERT_NO_FATAL_FAILURE(begin(true, kSize | base::frame_size(kBytes / 2)));
  EXPECT_EQ(a->room.frames, kSize | base::frame_size(kBytes / 2));
  EXPECT_EQ(b->room.frames, 0u);
  const std::size_t before = b->lent.size();
  ASSERT_EQ(before, 0u);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(a->send(wire::FrameGiven{.slot = 0, .bytes = kBytes}, any_file().get()));
  const std::uint64_t room = b->room.room;
  ASSERT_TRUE(a->has(60 * kGiB - 2 * kBytes, 2 * kBytes, 0));
  ASSERT_TRUE(b->until([&] { return b->room.room >= room + 2 * kBytes; }, &*a));
  ASSERT_EQ(b->lent.size(), 2u);
  EXPECT_EQ(b->lent_before_more, 2u);
  for (const Tenant::Lent& one : b->lent) {
    EXPECT_TRUE(one.has_fd);
    EXPECT_EQ(one.message.bytes, kBytes);
    EXPECT_NE(one.message.number, 0u);
  }
  // One for another process to import, and one that is not its own.
  ASSERT_TRUE(b->send(wire::FrameWanted{.slot = 0, .number = b->lent[0].message.number}));
  ASSERT_TRUE(b->send(wire::FrameWanted{.slot = 0, .number = 99}));
  ASSERT_TRUE(b->until([&] { return b->lent.size() == 4; }, &*a));
  EXPECT_EQ(b->lent[2].message.bytes, 0u);
  EXPECT_TRUE(b->lent[2].has_fd);
  EXPECT_FALSE(b->lent[3].has_fd);
}

TEST_F(Switch, NothingIsAskedForUnlessItIsWanted) {
  ASSERT_NO_FATAL_FAILURE(begin(false));
  EXPECT_EQ(a->room.frames, 0u);
  // Given all the same, it is freed.
  ASSERT_TRUE(a->send(wire::FrameGiven{.slot = 0, .bytes = kBytes}, any_file().get()));
  const std::uint64_t room = b->room.room;
  ASSERT_TRUE(a->has(60 * kGiB - kBytes, kBytes, 0));
  ASSERT_TRUE(b->until([&] { return b->room.room >= room + kBytes; }, &*a));
  EXPECT_TRUE(b->lent.empty());
}

TEST_F(Switch, WhatMakesNoSenseIsNotBelieved) {
  ASSERT_NO_FATAL_FAILURE(begin(true));
  ASSERT_TRUE(a->send(wire::FrameFreed{.slot = 0, .number = 5}));
  ASSERT_TRUE(a->send(wire::FrameFreed{.slot = 7, .number = 5}));
  ASSERT_TRUE(a->send(wire::FrameGiven{.slot = 0, .number = 5, .bytes = kBytes}));
  ASSERT_TRUE(a->send(wire::FrameGiven{.slot = 7, .bytes = kBytes}, any_file().get()));
  EXPECT_FALSE(a->is_dropped(std::chrono::milliseconds(100)));
  ASSERT_TRUE(a->send(wire::FrameGiven{.slot = 0, .bytes = kBytes}));
  EXPECT_FALSE(a->is_dropped(std::chrono::milliseconds(100))) << "its descriptor may have been lost on the way";
  ASSERT_TRUE(b->send(wire::FrameGiven{.slot = 0, .number = 5, .bytes = kBytes}, any_file().get()));
  EXPECT_TRUE(b->is_dropped()) << "a descriptor where none belongs";
}

}  // namespace
}  // namespace gpumux::daemon::testing

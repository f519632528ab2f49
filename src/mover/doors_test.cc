// SPDX-License-Identifier: Apache-2.0
// Goal: no seat's descriptor stops the mover, or the seats of another account.
// Method: seats send what closing which never returns (a file of a FUSE file system whose server does not answer).
#include "mover/doors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "os/unix_socket.h"
#include "sim/cuda/test_machine.h"
#include "tests/unit/never_flushed.h"
#include "tests/unit/send_with.h"
#include "wire/mover_messages.h"

namespace gpumux::mover {
namespace {

class DoorsTest : public ::testing::Test {
 protected:
  static bool say(const os::FileDescriptor& socket, const std::string& text, int fd = -1) {
    return os::send_message(socket.get(), std::as_bytes(std::span(text)), fd).has_value();
  }
  struct Heard {
    std::string text;
    os::FileDescriptor fd;
    bool has_ended = false;
  };
  static Heard hear(const os::FileDescriptor& socket) {
    Heard heard;
    EXPECT_TRUE(sim::eventually([&] {
      std::vector<std::byte> buffer(wire::kMostMoverBytes);
      auto received = os::receive_message(socket.get(), buffer);
      if (!received && received.error().system_errno == EAGAIN) return false;
      heard.has_ended = !received || received->bytes == 0;
      if (heard.has_ended) return true;
      heard.text.assign(reinterpret_cast<const char*>(buffer.data()), received->bytes);
      heard.fd = std::move(received->fd);
      return true;
    }));
    return heard;
  }
  // As an allocation of the simulated driver is exported.
  static os::FileDescriptor allocation(off_t bytes = 2 << 20, int seals = F_SEAL_GROW) {
    os::FileDescriptor file(::memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(file.get(), bytes), 0);
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  }
  static os::FileDescriptor a_file() { return os::FileDescriptor(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)); }

  Doors doors_ = Doors::start().value();
};

TEST_F(DoorsTest, MessagesGoBothWays) {
  auto made = doors_.open(1);
  ASSERT_TRUE(made);
  const os::FileDescriptor memory = allocation();
  ASSERT_TRUE(say(made->seat, "to the mover", memory.get()));
  const Heard there = hear(made->relay);
  EXPECT_EQ(there.text, "to the mover");
  EXPECT_TRUE(there.fd);
  ASSERT_TRUE(say(made->relay, "to the seat", memory.get()));
  const Heard back = hear(made->seat);
  EXPECT_EQ(back.text, "to the seat");
  EXPECT_TRUE(back.fd);
}

// Neither end loses what the other one does not read yet.
TEST_F(DoorsTest, MessagesWaitForTheirReader) {
  auto made = doors_.open(1);
  ASSERT_TRUE(made);
  constexpr int kMany = 5'000;  // more than the sockets hold
  const auto text = [](int number) { return std::to_string(number) + std::string(1'000, '.'); };
  int said = 0;
  for (int heard = 0; heard < kMany; ++heard) {
    while (said < kMany && say(made->seat, text(said))) ++said;
    ASSERT_EQ(hear(made->relay).text, text(heard));
  }
}

// Even while the mover does not read.
TEST_F(DoorsTest, TheMoverSeesThatTheSeatIsGone) {
  auto made = doors_.open(1);
  ASSERT_TRUE(made);
  sim::eventually([&] { return !say(made->seat, std::string(1'000, '.')); });
  made->seat.reset();
  EXPECT_TRUE(hear(made->presence).has_ended);
  std::string last;
  for (Heard heard; !heard.has_ended; heard = hear(made->relay)) last = heard.text;
  EXPECT_EQ(last.front(), '.');  // and the end, behind it
}

TEST_F(DoorsTest, TheSeatSeesThatTheMoverIsGone) {
  auto made = doors_.open(1);
  ASSERT_TRUE(made);
  made->relay.reset();
  made->presence.reset();
  EXPECT_TRUE(hear(made->seat).has_ended);
}

// Even while nothing that either says is read.
TEST_F(DoorsTest, TheMoverAsksWhetherTheSeatIsThere) {
  auto made = doors_.open(1);
  ASSERT_TRUE(made);
  while (say(made->relay, std::string(1'000, '.'))) {
  }
  while (say(made->seat, std::string(1'000, '.'))) {
  }
  ASSERT_TRUE(say(made->presence, "1"));
  EXPECT_EQ(hear(made->presence).text, "1");
  made->seat.reset();
  static_cast<void>(say(made->presence, "2"));  // or it has ended by then
  EXPECT_TRUE(hear(made->presence).has_ended);
}

TEST_F(DoorsTest, AnUnknownDescriptorEndsTheAccountsConnections) {
  auto bad = doors_.open(1);
  auto its = doors_.open(1);
  auto others = doors_.open(2);
  ASSERT_TRUE(bad && its && others);
  const os::FileDescriptor file = a_file();
  ASSERT_TRUE(say(bad->seat, "a file", file.get()));
  EXPECT_TRUE(hear(bad->seat).has_ended);
  EXPECT_TRUE(hear(bad->relay).has_ended);
  EXPECT_TRUE(hear(its->seat).has_ended);
  EXPECT_TRUE(hear(its->relay).has_ended);
  EXPECT_TRUE(hear(its->presence).has_ended);
  ASSERT_TRUE(say(others->seat, "goes on"));
  EXPECT_EQ(hear(others->relay).text, "goes on");
  // The file is closed soon.
  ASSERT_TRUE(sim::eventually([&] {
    its = doors_.open(1);
    return its.has_value();
  }));
  ASSERT_TRUE(say(its->seat, "again"));
  EXPECT_EQ(hear(its->relay).text, "again");
}

// Attack: it lies behind what ends the connection.
TEST_F(DoorsTest, AnUnknownDescriptorIsFoundBehindAnotherMessage) {
  const os::FileDescriptor file = a_file();
  for (const bool closes : {false, true}) {
    std::optional<Doors::Connection> bad;
    ASSERT_TRUE(sim::eventually([&] { return (bad = doors_.open(1)).has_value(); }));
    const auto its = doors_.open(1);
    ASSERT_TRUE(its);
    if (!closes) {
      ASSERT_TRUE(say(bad->seat, std::string(wire::kMostMoverBytes + 1, '.')));
    }
    static_cast<void>(say(bad->seat, "a trap", file.get()));
    if (closes) bad->seat.reset();
    // All of the account's.
    EXPECT_TRUE(hear(its->seat).has_ended);
    EXPECT_TRUE(hear(its->presence).has_ended);
  }
}

// Closing the last descriptor of a large file takes seconds.
TEST_F(DoorsTest, FilesThatAreLargeOrMayGrowAreUnknown) {
  for (const os::FileDescriptor& file : {allocation(off_t{2} << 30), allocation(2 << 20, F_SEAL_SHRINK)}) {
    std::optional<Doors::Connection> bad;
    ASSERT_TRUE(sim::eventually([&] { return (bad = doors_.open(1)).has_value(); }));
    ASSERT_TRUE(say(bad->seat, "large", file.get()));
    EXPECT_TRUE(hear(bad->relay).has_ended);
  }
}

TEST_F(DoorsTest, SeveralDescriptorsAreUnknown) {
  auto bad = doors_.open(1);
  ASSERT_TRUE(bad);
  const os::FileDescriptor memory = allocation();
  const std::byte byte{};
  ASSERT_TRUE(send_with(bad->seat.get(), {&byte, 1}, {memory.get(), memory.get()}));
  EXPECT_TRUE(hear(bad->relay).has_ended);
}

// Attack: the doorkeeper's end waits for a stranger for ever.
TEST_F(DoorsTest, AnAccountKeepsOneDoorkeeperAtMost) {
  const NeverFlushed file;
  if (!file.exists()) GTEST_SKIP() << "needs root and /dev/fuse";
  auto bad = doors_.open(1);
  auto others = doors_.open(2);
  ASSERT_TRUE(bad && others);
  ASSERT_TRUE(say(bad->seat, "a trap", file.get()));
  EXPECT_TRUE(hear(bad->seat).has_ended);
  EXPECT_TRUE(hear(bad->relay).has_ended);
  ASSERT_TRUE(sim::eventually([&] { return file.flushes() == 1; }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(doors_.open(1));
    doors_.end_unused([](std::uint64_t account) { return account == 2; });
  }
  ASSERT_TRUE(say(others->seat, "goes on"));
  EXPECT_EQ(hear(others->relay).text, "goes on");
  EXPECT_EQ(file.flushes(), 1);
  EXPECT_EQ(doors_.ending(), 1u);
}

TEST_F(DoorsTest, AnAccountWithoutSeatsHasNoDoorkeeper) {
  auto made = doors_.open(1);
  ASSERT_TRUE(made);
  bool has_seat = true;
  const auto look = [&] { doors_.end_unused([&](std::uint64_t) { return has_seat; }); };
  look();
  has_seat = false;
  look();
  has_seat = true;
  look();
  has_seat = false;
  look();
  ASSERT_TRUE(say(made->seat, "still there"));
  EXPECT_EQ(hear(made->relay).text, "still there");
  look();
  EXPECT_TRUE(hear(made->seat).has_ended);
  ASSERT_TRUE(sim::eventually([&] {
    made = doors_.open(1);
    return made.has_value();
  }));
  ASSERT_TRUE(say(made->seat, "again"));
  EXPECT_EQ(hear(made->relay).text, "again");
}

}  // namespace
}  // namespace gpumux::mover

// SPDX-License-Identifier: Apache-2.0
// The states of chunks. Goal: only the changes of the header's picture are made, and every sum follows them. Method: a
// table of all changes, and one chunk's life.
#include "daemon/tenants/host_chunks.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpumux::daemon {
namespace {

using State = HostChunks::State;

constexpr std::uint64_t kChunks = 16;

struct HostChunksTest : ::testing::Test {
  HostSeats seats{1};
  HostShares shares{kChunks};
  HostChunks chunks{7, seats, shares};

  HostChunk& ready() {
    HostChunk& chunk = chunks.add();
    chunk.memory = os::FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    chunks.move(chunk, State::kReady);
    return chunk;
  }
  void lend(HostChunk& chunk, const HostSeat& seat, const Account& account) {
    chunk.borrower = seat;
    chunk.account = account;
    chunks.move(chunk, State::kLent);
  }
};

TEST_F(HostChunksTest, AChunkGoesOnlyTheWaysOfThePicture) {
  // Rows: from. Columns: to. Both in the order of the enum.
  const std::vector<std::vector<bool>> may = {
      {false, true, false, false, false, false},   // kMaking
      {false, false, true, false, false, true},    // kReady
      {false, false, false, true, true, true},     // kLent
      {false, false, true, false, true, true},     // kReturned
      {false, false, false, false, false, true},   // kLeaving
      {false, false, false, false, false, false},  // kUnmaking
  };
  for (std::size_t from = 0; from < may.size(); ++from) {
    for (std::size_t to = 0; to < may.size(); ++to)
      EXPECT_EQ(HostChunks::may_move(static_cast<State>(from), static_cast<State>(to)), may[from][to])
          << from << " to " << to;
  }
  HostChunk& chunk = ready();
  EXPECT_EQ(chunks.check_invariants(), "");
  chunks.move(chunk, State::kReturned);
  EXPECT_EQ(chunks.check_invariants(), "chunk 7 went from state 1 to 3");
}

TEST_F(HostChunksTest, TheSumsFollowEachChange) {
  const HostSeat seat{{1}, 0};
  const Account account = Account::of_user(1000);
  HostChunk& chunk = ready();
  lend(chunk, seat, account);
  EXPECT_EQ(chunks.count(State::kLent), 1u);
  EXPECT_EQ(seats.lent_to(seat), 1u);
  EXPECT_EQ(seats.lent_to(seat.tenant), 1u);
  EXPECT_EQ(shares.mapped_by(account), 1u);
  chunk.keepers.push_back(seat);
  chunks.move(chunk, State::kReturned);
  EXPECT_EQ(seats.lent_to(seat.tenant), 0u);
  EXPECT_EQ(shares.mapped_by(account), 0u);
  EXPECT_EQ(chunks.check_invariants(), "");
  chunks.move(chunk, State::kLeaving);
  EXPECT_EQ(shares.mapped_by(account), 1u) << "until no process has it mapped";
  EXPECT_EQ(chunks.check_invariants(), "");
  chunk.keepers.clear();
  EXPECT_NE(chunks.check_invariants(), "") << "it has no reason to leave slowly";
  chunk.memory.reset();
  chunks.move(chunk, State::kUnmaking);
  EXPECT_EQ(shares.mapped_by(account), 0u);
  EXPECT_EQ(chunks.count(), 1u) << "its memory is not back yet";
  EXPECT_EQ(chunks.check_invariants(), "");
  chunks.remove(chunk);
  EXPECT_EQ(chunks.count(), 0u);
  EXPECT_EQ(chunks.find(7), nullptr);
}

// The order decides which chunk is lent or dropped next.
TEST_F(HostChunksTest, EachStateHasItsChunksInTheOrderInWhichTheyCame) {
  HostChunk& one = ready();
  HostChunk& two = ready();
  HostChunk& three = ready();
  EXPECT_EQ(chunks.in(State::kReady), (HostChunks::List{&one, &two, &three}));
  for (HostChunk* const chunk : {&two, &three, &one}) lend(*chunk, {{1}, 0}, {});
  for (HostChunk* const chunk : {&three, &one, &two}) chunks.move(*chunk, State::kReturned);
  EXPECT_TRUE(chunks.in(State::kReady).empty());
  EXPECT_EQ(chunks.in(State::kReturned), (HostChunks::List{&three, &one, &two}));
  lend(three, {{1}, 0}, {});
  chunks.move(three, State::kReturned);
  EXPECT_EQ(chunks.in(State::kReturned), (HostChunks::List{&one, &two, &three}));
}

TEST_F(HostChunksTest, NoChunkIsRemovedWhileItIsThere) {
  chunks.remove(ready());
  EXPECT_NE(chunks.check_invariants(), "");
}

}  // namespace
}  // namespace gpumux::daemon

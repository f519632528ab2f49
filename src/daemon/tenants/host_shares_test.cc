// SPDX-License-Identifier: Apache-2.0
// How accounts share host memory. Goal: no account takes from others memory that it has no use for, or their share.
// Method: attackers that ask for as long as they get something.
#include "daemon/tenants/host_shares.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/tenants/host_memory_test_support.h"
#include "os/pidfd.h"

namespace gpumux::daemon {
namespace {

using HostSharesTest = HostMemoryTest;

// Attack: a tenant without a seat, and one with next to nothing on its GPU, ask for as long as they get something.
TEST_F(HostSharesTest, ASeatBorrowsNoMoreThanItHasAndAChunk) {
  const Account account = Account::of_user(1000);
  const auto borrow_all = [&](const HostSeat& seat) {
    std::uint64_t lent = 0;
    for (got.clear();; got.clear()) {
      memory.wanted(seat, 1, "one", account);
      while (got.empty()) loop.run_one();
      if (got.front().loan.bytes == 0) return lent;
      lent += got.front().loan.bytes;
    }
  };
  EXPECT_EQ(borrow_all({{1}, 0}), 0u);
  memory.has({{1}, 0}, 1);
  EXPECT_EQ(borrow_all({{1}, 0}), 2 * memory.chunk_bytes());
  memory.has({{1}, 1}, 3 * memory.chunk_bytes());
  EXPECT_EQ(borrow_all({{1}, 1}), 4 * memory.chunk_bytes()) << "each seat for itself";
  EXPECT_EQ(borrow_all({{1}, 2}), 0u);
  EXPECT_TRUE(shorts.empty()) << "there is enough, so others may keep their copies";
  EXPECT_EQ(memory.beyond({1}), 0u);
  // The tenant has no use for loans of memory that it freed since, and of a seat that it closed.
  memory.has({{1}, 1}, memory.chunk_bytes());
  EXPECT_EQ(memory.beyond({1}), 2 * memory.chunk_bytes());
  EXPECT_EQ(memory.useless(), 2 * memory.chunk_bytes());
  memory.closed({{1}, 0});
  EXPECT_EQ(memory.beyond({1}), 4 * memory.chunk_bytes());
  EXPECT_EQ(memory.useless(), 4 * memory.chunk_bytes());
  EXPECT_EQ(borrow_all({{1}, 0}), 0u);
}

// Requests that wait count, too: a loop does not get more by being quick.
TEST_F(HostSharesTest, RequestsThatWaitCountAsBorrowed) {
  begin_again();
  memory.has({{1}, 0}, memory.chunk_bytes());
  for (int i = 0; i < 10; ++i) memory.wanted({{1}, 0}, 1, "one", Account::of_user(1000));
  EXPECT_EQ(memory.awaited(), 2 * memory.chunk_bytes());
  EXPECT_EQ(got.size(), 8u);
  rest();
  EXPECT_EQ(memory.lent(), 2 * memory.chunk_bytes());
}

TEST_F(HostSharesTest, RequestsEndWithTheirSeat) {
  begin_again();
  want({{1}, 0}, "one");
  want({{1}, 1}, "one");
  memory.closed({{1}, 0});
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got.front().loan.bytes, 0u);
  EXPECT_EQ(memory.awaited(), memory.chunk_bytes());
  rest();
  EXPECT_EQ(memory.lent(), memory.chunk_bytes());
}

// Attack: one account borrows all that there is, says that it has as much, and goes on asking.
TEST_F(HostSharesTest, AnAccountThatHasItsShareComesAfterOthersThatWait) {
  const std::vector<std::uint64_t> taken = ask_all(1, "greedy");
  EXPECT_EQ(taken.size() * memory.chunk_bytes(), memory.lendable()) << "nobody else wants it";
  // An account that has nothing begins at once, with what is reserved.
  const Got first = ask(2, "modest");
  ASSERT_NE(first.loan.bytes, 0u);
  got.clear();
  want({{2}, 0}, "modest");
  EXPECT_TRUE(got.empty()) << "it is owed some";
  EXPECT_EQ(memory.beyond({1}), kBudget / 2) << "which the first one is to give back";  // it has 15 chunks, and may 7
  EXPECT_EQ(memory.beyond({2}), 0u);
  const std::uint64_t waiting = memory.awaited();
  for (const std::uint64_t tenant : {1u, 3u}) want({{tenant}, 0}, "greedy");
  EXPECT_EQ(memory.awaited(), waiting) << "nobody is asked for copies for its sake";
  // The first chunk that comes back fills the reserve.
  give_back(1, {taken[0], taken[1]}, false);
  while (got.empty()) loop.run_one();
  EXPECT_EQ(got.front().loan.seat.tenant.value, 2u) << "that was first, and the greedy one could have had it as it was";
  EXPECT_NE(got.front().loan.bytes, 0u);
  // No account is behind any longer: now it may have all there is.
  memory.returned({1}, taken[2], false);
  want({{3}, 0}, "greedy");
  EXPECT_TRUE(eventually_lent(3));
  // Up to its share the modest one is served first each time.
  for (std::size_t i = 3; memory.lent_to({2}) < memory.lendable() / 2 / memory.chunk_bytes() * memory.chunk_bytes();
       ++i) {
    ASSERT_LT(i, taken.size());
    got.clear();
    want({{2}, 0}, "modest");
    want({{1}, 0}, "greedy");
    memory.returned({1}, taken[i], false);
    ASSERT_TRUE(eventually_lent(2));
  }
  EXPECT_EQ(memory.beyond({1}), 0u) << "nobody waits that has less than its share";
}

// A process that does nothing until it is killed.
class OtherProcess {
 public:
  OtherProcess() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
  }
  ~OtherProcess() { kill(); }
  os::FileDescriptor pidfd() const {
    auto pidfd = os::open_pidfd(pid_);
    return pidfd ? std::move(*pidfd) : os::FileDescriptor();
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
};

// Attack: a tenant borrows, ends its connection, keeps what it has mapped, and connects again.
TEST_F(HostSharesTest, WhatATenantHadCountsUntilItsProcessHasEnded) {
  OtherProcess process;
  ASSERT_EQ(ask_all(1, "one").size() * memory.chunk_bytes(), memory.lendable());
  EXPECT_EQ(memory.useless(), 0u);
  memory.gone({1}, process.pidfd());
  rest();
  EXPECT_EQ(memory.leaving(), memory.lendable());
  EXPECT_EQ(memory.useless(), memory.lendable());
  got.clear();
  want({{2}, 0}, "one");
  for (int i = 0; got.empty() && i < 100; ++i) memory.look();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got.front().loan.bytes, 0u);
  process.kill();
  EXPECT_NE(ask(2, "one").loan.bytes, 0u);
  EXPECT_EQ(memory.useless(), 0u);
}

// Attack: one account borrows all that it gets, and gives nothing back.
TEST_F(HostSharesTest, WhatIsReservedIsForAccountsThatHaveNotBegun) {
  EXPECT_EQ(ask_all(1, "greedy").size() * memory.chunk_bytes(), memory.lendable());
  ASSERT_LT(memory.lendable(), kBudget);
  EXPECT_EQ(ask(2, "greedy").loan.bytes, 0u) << "it has begun already, with any tenant";
  EXPECT_NE(ask(3, "modest").loan.bytes, 0u);
  EXPECT_LE(memory.taken(), kBudget);
}

// A chunk that a seat gives back and keeps mapped cannot be taken from it at once: other accounts do not begin with it.
TEST_F(HostSharesTest, WhatIsKeptMappedIsNotWhatIsReserved) {
  give_back(1, ask_all(1, "greedy"), true);
  // The same account in another trust domain: it waits until the first one has let go of a chunk.
  got.clear();
  memory.has({{2}, 0}, kBudget);
  memory.wanted({{2}, 0}, 1, "other", account_of("greedy"));
  rest();
  EXPECT_TRUE(got.empty());
  ASSERT_EQ(memory.leaving(), memory.chunk_bytes());
  EXPECT_NE(ask(3, "modest").loan.bytes, 0u);
  got.clear();
  memory.forgotten({{1}, 0});
  EXPECT_FALSE(eventually_lent(2)) << "the modest one has what that left";
  memory.returned({3}, memory.lent(), false);
}

// Attack: a tenant makes a chunk that it gives back smaller, so that the next borrower gets SIGBUS.
TEST_F(HostSharesTest, AChunkThatHasShrunkIsNotHandedOn) {
  if (!memory.files().why_not().empty()) GTEST_SKIP() << "memfds are sealed: " << memory.files().why_not();
  std::vector<os::FileDescriptor> lent;
  std::vector<std::uint64_t> ids;
  memory.on_lent([&](const HostLoan& loan, int fd) {
    if (fd < 0) return;
    lent.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    ids.push_back(loan.id);
  });
  want({{1}, 0}, "one");
  while (ids.empty()) loop.run_one();
  if (::ftruncate(lent[0].get(), 0) != 0) GTEST_SKIP() << "it is of the pool of huge pages, and sealed";
  memory.returned({1}, ids[0], false);
  want({{2}, 0}, "one");
  while (ids.size() < 2) loop.run_one();
  struct stat facts {};
  ASSERT_EQ(::fstat(lent[1].get(), &facts), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(facts.st_size), memory.chunk_bytes());
  EXPECT_NE(ids[1], ids[0]);
}

// Attack: the same, to begin again with a share that counts nothing.
TEST_F(HostSharesTest, WhatAProcessKeepsWhenItsConnectionEndsCountsForItsAccount) {
  OtherProcess process;
  static_cast<void>(ask_all(1, "greedy"));
  memory.gone({1}, process.pidfd());
  rest();
  got.clear();
  want({{2}, 0}, "greedy");
  want({{3}, 0}, "modest");
  EXPECT_EQ(memory.awaited(), memory.chunk_bytes()) << "the modest account's request comes first";
  process.kill();
  memory.look();
  EXPECT_TRUE(eventually_lent(3));
}

// Attack: a tenant gives chunks back, keeps them mapped, and never lets go of them.
TEST_F(HostSharesTest, WhatASeatDoesNotLetGoOfCountsForItsAccount) {
  give_back(1, ask_all(1, "greedy"), true);
  got.clear();
  for (int i = 0; i < 11; ++i) want({{2}, 0}, "modest");  // the first one gets what is reserved
  got.clear();
  ASSERT_EQ(memory.leaving(), 10 * memory.chunk_bytes());
  want({{1}, 0}, "greedy");
  EXPECT_TRUE(got.empty()) << "it has more than its share, and the modest account waits";
}

// An honest process that has lost its connection says what it has: that is counted already.
TEST_F(HostSharesTest, WhatAProcessComesBackWithCountsOnce) {
  OtherProcess process;
  begin_again();
  for (int i = 0; i < 6; ++i) static_cast<void>(ask(1, "one"));
  memory.gone({1}, process.pidfd());
  memory.uses({{2}, 0}, 6 * memory.chunk_bytes(), true);
  for (int i = 0; i < 10; ++i) memory.look();  // that is not expected back any more
  EXPECT_EQ(ask_all(3, "one").size(), 9u) << "of 16, and one is reserved";
}

// Attack: a tenant gives memory back, and keeps a descriptor or a mapping of it.
TEST_F(HostSharesTest, WhatLeavesIsTheMachinesAgainWhoeverHasIt) {
  std::vector<os::FileDescriptor> stolen;
  std::vector<std::uint64_t> ids;
  memory.on_lent([&](const HostLoan& loan, int fd) {
    if (fd < 0) return;
    stolen.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    ids.push_back(loan.id);
  });
  want({{1}, 0}, "");
  want({{1}, 0}, "");
  while (ids.size() < 2) loop.run_one();
  const auto blocks = [&](std::size_t i) {
    struct stat facts {};
    EXPECT_EQ(::fstat(stolen[i].get(), &facts), 0);
    return facts.st_blocks;
  };
  EXPECT_GT(blocks(0), 0);
  memory.returned({1}, ids[0], false);
  rest();
  EXPECT_EQ(blocks(0), 0);
  EXPECT_GT(blocks(1), 0);
  // By a tenant that ends, too.
  OtherProcess process;
  memory.gone({1}, process.pidfd());
  rest();
  EXPECT_GT(blocks(1), 0) << "it may be an honest one that has lost its connection, and its data";
  process.kill();
  memory.look();
  rest();
  EXPECT_EQ(blocks(1), 0);
}

}  // namespace
}  // namespace gpumux::daemon

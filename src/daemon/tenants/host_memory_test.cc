// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data. Goal: no tenant sees a stranger's data, the budget holds, and every tenant hears when
// it is used up. A chunk that is kept mapped is lent again as it is, and counts until all have let go of it. A tenant
// that lies about it harms only itself. Method: a borrower writes to its loans and gives them back, and the next
// borrower looks at them. Each seat's mappings are a table of the test's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "daemon/peers/trust_domain.h"
#include "daemon/tenants/host_memory_test_support.h"

namespace gpumux::daemon {
namespace {

TEST_F(HostMemoryTest, OnlyWhoIsOpenToThemSeesWhatOthersHaveLeft) {
  const Got first = ask(1, "one");
  EXPECT_EQ(first.before, 0u);
  memory.returned({1}, first.loan.id, false);
  const Got second = ask(2, "one");
  EXPECT_EQ(second.before, 1u) << "it is handed on as it is";
  memory.returned({2}, second.loan.id, false);
  // All that one account can have goes through a stranger's hands, and through those of one that is not known.
  for (const auto& [tenant, domain] : {std::pair{3u, "two"}, {4u, ""}}) {
    std::vector<HostLoan> loans;
    for (Got next = ask(tenant, domain); next.loan.bytes != 0; next = ask(tenant, domain)) {
      EXPECT_EQ(next.before, 0u);
      loans.push_back(next.loan);
    }
    EXPECT_EQ(loans.size() * memory.chunk_bytes(), memory.lendable());
    for (const HostLoan& loan : loans) memory.returned({tenant}, loan.id, false);
  }
}

// After a restart tenants come back with what the daemon before had lent them.
TEST_F(HostMemoryTest, WhatAnEarlierDaemonHasLentCounts) {
  begin_again();
  memory.uses({{1}, 0}, kBudget / 2, true);
  memory.uses({{1}, 0}, kBudget, false);  // with what it is lent now
  EXPECT_EQ(ask_all(2, "one").size() * memory.chunk_bytes(), memory.lendable() - kBudget / 2);
  memory.uses({{1}, 0}, kBudget / 4, false);
  EXPECT_EQ(ask_all(2, "one").size() * memory.chunk_bytes(), kBudget / 4);
  memory.gone({1});
  EXPECT_EQ(ask_all(2, "one").size() * memory.chunk_bytes(), kBudget / 4);
  EXPECT_EQ(memory.lent_to({2}), memory.lendable());
}

// Otherwise no seat could leave the GPU for the seats to which that memory belongs.
TEST_F(HostMemoryTest, WhatAnEarlierDaemonHasLentLeavesSomeOfTheBudget) {
  begin_again();
  for (const std::uint64_t tenant : {1u, 2u}) memory.uses({{tenant}, 0}, ~std::uint64_t{0}, true);
  EXPECT_EQ(ask_all(3, "one").size() * memory.chunk_bytes(), memory.lendable() - kBudget / 4 * 3);
  memory.gone({1});
  EXPECT_EQ(ask(3, "one").loan.bytes, 0u);
  memory.gone({2});
  EXPECT_NE(ask(3, "one").loan.bytes, 0u);
}

TEST_F(HostMemoryTest, WhatIsLeftByWhoIsGoneIsHandedOnToNobody) {
  static_cast<void>(ask(1, "one"));
  memory.gone({1});
  EXPECT_EQ(memory.lent(), 0u);
  for (Got next = ask(2, "one"); next.loan.bytes != 0; next = ask(2, "one")) EXPECT_EQ(next.before, 0u);
  EXPECT_EQ(memory.lent_to({2}), memory.lendable());
}

TEST_F(HostMemoryTest, WhereItIsShortEverybodyHearsOfIt) {
  std::vector<HostLoan> loans;
  for (Got next = ask(1, "one"); next.loan.bytes != 0; next = ask(1, "one")) loans.push_back(next.loan);
  EXPECT_EQ(shorts, std::vector<bool>{true});
  EXPECT_EQ(ask(2, "one").loan.bytes, 0u);
  memory.returned({1}, loans.back().id, false);
  EXPECT_NE(ask(2, "one").loan.bytes, 0u);
  memory.set_demand(kBudget / 2);
  EXPECT_EQ(shorts, (std::vector<bool>{true, false}));
  // And chunks that no seat needs any more go back to the machine.
  memory.gone({1});
  memory.gone({2});
  memory.set_demand(0);
  look_for_long();
  memory.look();
  rest();
  EXPECT_EQ(memory.ready(), 0u);
  EXPECT_EQ(memory.lent(), 0u);
}

// One program comes back while another one goes. The budget counts the memory in which the first one keeps copies, and
// the awaited bytes are reported.
TEST_F(HostMemoryTest, CopiesAreReckonedWithAndWhatIsWaitedForIsSaid) {
  begin_again();
  const std::uint64_t evicted = 4 * memory.chunk_bytes();
  const std::uint64_t copies = 8 * memory.chunk_bytes();
  memory.set_demand(evicted, copies);
  rest();
  EXPECT_GE(memory.ready(), evicted + copies);
  const std::uint64_t first = ask(1, "one").loan.id;
  EXPECT_EQ(waits, 0u);
  memory.set_demand(0);
  look_for_long();
  memory.look();
  rest();
  memory.set_demand(evicted, copies);
  // Each of them would have to be made first.
  want({{1}, 0}, "one");
  want({{2}, 0}, "one");
  EXPECT_EQ(waits, 2u);
  EXPECT_EQ(memory.awaited(), 2 * memory.chunk_bytes());
  EXPECT_TRUE(memory.awaits({1}));
  EXPECT_FALSE(memory.awaits({3}));
  memory.returned({1}, first, true);  // which the first one of them gets
  EXPECT_EQ(memory.awaited(), memory.chunk_bytes());
  EXPECT_FALSE(memory.awaits({1}));
  rest();
  EXPECT_EQ(memory.awaited(), 0u);
  EXPECT_EQ(waits, 2u);
  EXPECT_FALSE(memory.is_short());
  EXPECT_GE(memory.ready() + memory.lent(), evicted + copies) << "so that next time there is enough";
}

// The next switch may need again what the last one did.
TEST_F(HostMemoryTest, WhatWasNeededStaysForAWhileAndThenGoesBackToTheMachine) {
  rest();
  EXPECT_EQ(memory.ready(), kBudget);
  memory.set_demand(memory.chunk_bytes());
  look_for_long();
  EXPECT_EQ(memory.ready(), kBudget) << "it was needed not long ago";
  memory.look();
  rest();
  EXPECT_LT(memory.ready(), kBudget / 4 * 3) << "only as much as there is to evict, and a little more";
  EXPECT_GT(memory.ready(), memory.chunk_bytes());
  memory.set_demand(0);
  look_for_long();
  memory.look();
  rest();
  EXPECT_EQ(memory.taken(), 0u);
  EXPECT_EQ(memory.made().bytes, kBudget) << "nothing was made in order to go";
}

// Seats ask ahead, and so come to have more than is needed. When that comes back it counts as there.
TEST_F(HostMemoryTest, NothingIsMadeBesideWhatIsFree) {
  begin_again();
  const std::uint64_t before = memory.made().bytes;
  std::vector<std::uint64_t> lent;
  for (int i = 0; i < 12; ++i) lent.push_back(ask(1, "one").loan.id);
  give_back(1, lent, true);
  memory.set_demand(memory.chunk_bytes());
  rest();
  EXPECT_EQ(memory.made().bytes - before, 12 * memory.chunk_bytes()) << "of a budget of 16";
}

// A cold start, in small: three tenants fill a GPU, and what does not fit goes round. Each turn one tenant restores and
// keeps copies, and the one before it evicts as much; each asks ahead for more than it needs. Tenants that are open to
// each other hand chunks on. Strangers cannot, so each has its own.
TEST_F(HostMemoryTest, ThreeThatTakeTurnsMakeHostMemoryOnce) {
  constexpr std::size_t kMoves = 3;  // chunks that move at each switch
  for (const bool are_strangers : {false, true}) {
    begin_again();
    const std::uint64_t before = memory.made().bytes;
    const auto domain_of = [&](std::uint64_t tenant) {
      return are_strangers ? std::to_string(tenant) : std::string("one");
    };
    std::map<std::uint64_t, std::vector<std::uint64_t>> lent;
    const std::uint64_t evicted = kMoves * memory.chunk_bytes();
    const auto take_turns = [&](int rounds) {
      for (int turn = 0; turn < 3 * rounds; ++turn) {
        const std::uint64_t in = 1 + static_cast<std::uint64_t>(turn) % 3;
        const std::uint64_t out = 1 + static_cast<std::uint64_t>(turn + 2) % 3;
        memory.set_demand(evicted, evicted);
        got.clear();
        for (std::size_t i = 0; i <= kMoves; ++i) want({{out}, 0}, domain_of(out));
        // It has been restored, and gives up its copies.
        give_back(in, std::exchange(lent[in], {}), true);
        while (got.size() <= kMoves) {
          for (const Told& one : std::exchange(told, {})) memory.forgotten(one.seat);
          loop.run_one();
        }
        for (const Got& one : got) {
          ASSERT_NE(one.loan.bytes, 0u);
          lent[out].push_back(one.loan.id);
        }
        memory.look();
      }
    };
    take_turns(3);
    rest();
    const std::uint64_t made = memory.made().bytes - before;
    EXPECT_LE(made, kBudget) << (are_strangers ? "strangers" : "of one domain");
    take_turns(20);
    rest();
    EXPECT_EQ(memory.made().bytes - before, made) << (are_strangers ? "strangers" : "of one domain");
    for (const std::uint64_t tenant : {1u, 2u, 3u}) memory.gone({tenant});
  }
}

TEST_F(HostMemoryTest, WhatASeatHasKeptIsLentToItAsItIs) {
  const std::uint64_t id = ask(1, "one").loan.id;
  memory.returned({1}, id, true);
  Got next = ask(2, "one");
  EXPECT_EQ(next.loan.id, id);
  EXPECT_FALSE(next.was_kept) << "somebody else has it mapped";
  EXPECT_EQ(next.before, 1u);
  memory.returned({2}, id, true);
  // From here on it goes back and forth, and no seat needs the descriptor; one that is free but not kept is left.
  const std::uint64_t other = ask(3, "one").loan.id;
  EXPECT_EQ(other, id);
  EXPECT_NE(ask(3, "one").loan.id, id);
  give_back(3, {other, got.front().loan.id}, false);
  for (const std::uint64_t tenant : {1u, 2u, 1u, 2u}) {
    next = ask(tenant, "one");
    EXPECT_EQ(next.loan.id, id);
    EXPECT_TRUE(next.was_kept);
    memory.returned({tenant}, id, true);
  }
  // Another seat of the same process maps by itself.
  got.clear();
  want({{1}, 1}, "one");
  ASSERT_EQ(got.size(), 1u);
  EXPECT_FALSE(got.front().was_kept);
  EXPECT_TRUE(told.empty());
}

TEST_F(HostMemoryTest, WhatIsKeptCountsUntilEverybodyHasLetGoOfIt) {
  for (const std::uint64_t tenant : {1u, 2u}) give_back(tenant, ask_all(tenant, "one"), true);
  EXPECT_GE(memory.ready(), memory.lendable());
  memory.set_demand(0);
  rest();
  look_for_long();
  EXPECT_GE(memory.ready(), memory.lendable()) << "it is not needed any more, and not in a hurry";
  EXPECT_TRUE(told.empty());
  for (std::uint64_t chunks = 1; chunks <= memory.lendable() / memory.chunk_bytes(); ++chunks) {
    memory.look();
    EXPECT_EQ(memory.leaving(), chunks * memory.chunk_bytes()) << "mapped by two";
  }
  // Each has been asked for the first, and for the next ones only when it has answered.
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].ids.size(), 1u);
  memory.forgotten({{1}, 1});  // was never asked
  memory.forgotten({{9}, 0});  // no such seat
  memory.forgotten({{1}, 0});
  EXPECT_EQ(told.size(), 2u);
  memory.look();
  ASSERT_EQ(told.size(), 3u) << "one at a time";
  EXPECT_EQ(told[2].seat, (HostSeat{{1}, 0}));
  EXPECT_EQ(told[2].ids.size(), 1u);
  // A seat waits: the rest at once.
  memory.set_demand(kBudget);
  got.clear();
  want({{1}, 0}, "one");
  memory.forgotten({{1}, 0});
  ASSERT_EQ(told.size(), 4u);
  EXPECT_EQ(told[3].ids.size(), memory.lendable() / memory.chunk_bytes() - 2);
  memory.forgotten({{1}, 0});
  memory.forgotten({{1}, 0});  // has answered all
  rest();
  EXPECT_EQ(memory.leaving(), memory.lendable()) << "the second has not";
  // None of it is lent again: there is no room for anything before it has gone.
  EXPECT_TRUE(got.empty());
  memory.forgotten({{2}, 0});
  rest();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got.front().before, 0u);
  EXPECT_LE(memory.taken(), kBudget);
  memory.gone({2});
  rest();
  EXPECT_EQ(memory.leaving(), 0u);
  EXPECT_LE(memory.taken(), kBudget);
}

// A tenant's GPU context may still be writing to its loans; the chunks that it has only kept it had given back before.
TEST_F(HostMemoryTest, OfWhoIsGoneWhatWasOnLoanLeavesAndWhatWasKeptStays) {
  const std::vector<std::uint64_t> all = ask_all(1, "one");
  give_back(1, all, true);
  const std::vector<std::uint64_t> again = ask_all(2, "one");
  give_back(2, again, true);
  const std::uint64_t on_loan = ask(1, "one").loan.id;
  memory.gone({1});
  EXPECT_TRUE(told.empty()) << "nobody waits for it";
  memory.look();
  ASSERT_EQ(told.size(), 1u) << "the other one has it mapped too";
  EXPECT_EQ(told[0].seat, (HostSeat{{2}, 0}));
  EXPECT_EQ(told[0].ids, std::vector{on_loan});
  EXPECT_EQ(memory.leaving(), memory.chunk_bytes());
  std::size_t kept = 0;
  for (;;) {
    const Got next = ask(2, "one");
    if (!next.was_kept) break;
    EXPECT_NE(next.loan.id, on_loan);
    if (++kept == all.size() - 1) break;
  }
  EXPECT_EQ(kept, all.size() - 1);
  memory.forgotten({{2}, 0});
  const Got fresh = ask(2, "one");
  EXPECT_NE(fresh.loan.bytes, 0u);
  EXPECT_EQ(fresh.before, 0u);
}

// A tenant may be frozen soon: the chunks that it keeps go back to the machine, or to others, without it.
TEST_F(HostMemoryTest, WhoIsToKeepNothingLetsGoAtOnce) {
  std::vector<std::uint64_t> all = ask_all(1, "one");
  give_back(1, {all.begin(), all.begin() + 3}, true);
  const std::uint64_t others = ask(2, "one").loan.id;
  EXPECT_FALSE(memory.is_forgetting({1}));
  memory.set_keeps({1}, false);
  EXPECT_TRUE(memory.is_forgetting({1}));
  // The tenant is letting go of these chunks, so it is lent none of them as a chunk that it has kept.
  got.clear();
  want({{1}, 0}, "one");
  EXPECT_TRUE(got.empty());
  std::set<std::uint64_t> asked;
  while (memory.is_forgetting({1})) {
    for (const Told& one : std::exchange(told, {})) asked.insert(one.ids.begin(), one.ids.end());
    memory.forgotten({{1}, 0});
  }
  EXPECT_EQ(asked, (std::set<std::uint64_t>{all.begin(), all.begin() + 3})) << "also what another one has by now";
  EXPECT_TRUE(asked.contains(others));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(asked.contains(got.front().loan.id));
  EXPECT_FALSE(got.front().was_kept);
  // Nor does the tenant keep a chunk that it gives back from now on. Without demand, all of it leaves.
  memory.returned({1}, all.back(), true);
  EXPECT_TRUE(memory.is_forgetting({1}));
  memory.forgotten({{1}, 0});
  EXPECT_FALSE(memory.is_forgetting({1}));
  memory.set_demand(0);
  rest();
  EXPECT_EQ(memory.leaving(), 0u) << "nobody has to be waited for";
  // As before, when it goes on.
  memory.set_demand(kBudget);
  memory.set_keeps({1}, true);
  memory.returned({1}, all[4], true);
  EXPECT_FALSE(memory.is_forgetting({1}));
  EXPECT_TRUE(ask(1, "one").was_kept);
}

TEST_F(HostMemoryTest, WhoDoesNotAnswerIsNotWaitedFor) {
  give_back(1, ask_all(1, "one"), true);
  shorts.clear();
  // A stranger wants what the silent one has mapped, and not only what is reserved.
  EXPECT_NE(ask(2, "two").loan.bytes, 0u);
  got.clear();
  want({{2}, 0}, "two");
  rest();
  EXPECT_TRUE(got.empty()) << "that should take a moment";
  EXPECT_EQ(told.size(), 1u);
  for (int i = 0; got.empty() && i < 100; ++i) memory.look();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got.front().loan.bytes, 0u);
  EXPECT_EQ(told.size(), 1u) << "there is one message for it, however much it keeps";
  EXPECT_EQ(memory.leaving(), memory.lendable()) << "it counts";
  memory.gone({1});
  EXPECT_NE(ask(2, "two").loan.bytes, 0u);
}

// Tenants do and say anything. The test checks the budget. A seat gets a chunk without a descriptor only if it has said
// that it keeps it. Data goes to no stranger. A seat that is told to forget a chunk has it. Every chunk is counted in
// its state.
TEST_F(HostMemoryTest, WhateverTenantsSayTheBudgetHolds) {
  const char* const text = std::getenv("GPUMUX_TEST_SEED");
  const unsigned seed = text != nullptr ? static_cast<unsigned>(std::atoi(text)) : std::random_device()();
  std::printf("seed: GPUMUX_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  constexpr std::uint64_t kTenants = 5;
  struct Seat {
    std::set<std::uint64_t> loans, keeps, told;
  };
  std::map<std::uint64_t, Seat> seats;
  const auto domain_of = [](std::uint64_t tenant) { return tenant % 2 == 0 ? "even" : tenant == 5 ? "" : "odd"; };
  for (int round = 0; round < 6000; ++round) {
    const std::uint64_t tenant = 1 + random() % kTenants;
    Seat& seat = seats[tenant];
    const auto some = [&](const std::set<std::uint64_t>& ids) {
      return ids.empty() || random() % 8 == 0
                 ? random()
                 : *std::next(ids.begin(), static_cast<std::ptrdiff_t>(random() % ids.size()));
    };
    switch (random() % 10) {
      case 0:
      case 1:
      case 2: want({{tenant}, 0}, domain_of(tenant)); break;
      case 3:
      case 4:
      case 5: {
        const std::uint64_t id = some(seat.loans);
        const bool kept = random() % 4 != 0;
        if (seat.loans.erase(id) != 0 && kept) seat.keeps.insert(id);
        memory.returned({tenant}, id, kept);
        break;
      }
      case 6:
      case 7:
        for (const std::uint64_t id : std::exchange(seat.told, {})) seat.keeps.erase(id);
        memory.forgotten({{tenant}, 0});
        break;
      case 8:
        if (random() % 10 == 0) {
          seats.erase(tenant);
          memory.gone({tenant});
        } else if (random() % 4 == 0) {
          memory.set_keeps({tenant}, random() % 2 == 0);
        } else {
          memory.look();
        }
        break;
      default: memory.set_demand(random() % 3 == 0 ? 0 : random() % kBudget); break;
    }
    while (loop.poll_one() != 0 || (random() % 4 == 0 && loop.run_one_for(std::chrono::microseconds(200)) != 0)) {
    }
    for (const Told& one : std::exchange(told, {})) {
      Seat& asked = seats[one.seat.tenant.value];
      EXPECT_TRUE(asked.told.empty()) << "has not answered yet";
      for (const std::uint64_t id : one.ids) {
        EXPECT_EQ(asked.keeps.count(id), 1u);
        asked.told.insert(id);
      }
    }
    for (const Got& one : std::exchange(got, {})) {
      if (one.loan.bytes == 0) continue;
      const std::uint64_t borrower = one.loan.seat.tenant.value;
      Seat& lucky = seats[borrower];
      EXPECT_EQ(lucky.keeps.erase(one.loan.id), one.was_kept ? 1u : 0u);
      EXPECT_TRUE(lucky.loans.insert(one.loan.id).second);
      if (one.before != 0) {
        EXPECT_STREQ(domain_of(one.before), domain_of(borrower));
      }
      for (const auto& [id, other] : seats) EXPECT_TRUE(id == borrower || other.loans.count(one.loan.id) == 0);
    }
    ASSERT_LE(memory.taken(), kBudget);
    ASSERT_EQ(memory.check_invariants(), "") << "round " << round;
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  for (std::uint64_t tenant = 1; tenant <= kTenants; ++tenant) memory.gone({tenant});
  memory.set_demand(0);
  look_for_long();
  memory.look();
  rest();
  EXPECT_EQ(memory.taken(), 0u);
}

TEST(TrustDomain, IsOfAUserInItsNamespaces) {
  const std::string own = trust_domain(::getpid(), 0);
  EXPECT_FALSE(own.empty());
  EXPECT_EQ(trust_domain(::getpid(), 0), own);
  EXPECT_NE(trust_domain(::getpid(), 1), own);
  EXPECT_EQ(trust_domain(-1, 0), "");
}

// Asks of a child that has gone elsewhere by `leave`; none: it may not.
std::optional<bool> is_where_we_are_after(bool (*leave)()) {
  int ready[2], end[2];
  EXPECT_EQ(::pipe2(ready, O_CLOEXEC) + ::pipe2(end, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(end[1]);
    char word = leave() ? 'y' : 'n';
    if (::write(ready[1], &word, 1) != 1 || ::read(end[0], &word, 1) != 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(end[0]);
  char word = 'n';
  EXPECT_EQ(::read(ready[0], &word, 1), 1);
  const bool is = is_where_we_are(child);
  ::close(end[1]);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  return word == 'y' ? std::optional(is) : std::nullopt;
}

TEST(TrustDomain, ContainersAreNotTheMachine) {
  EXPECT_TRUE(is_where_we_are(::getpid()));
  EXPECT_FALSE(is_where_we_are(0));
  EXPECT_EQ(is_where_we_are_after([] { return true; }), true);
  EXPECT_NE(is_where_we_are_after([] { return ::chroot("/tmp") == 0 && ::chdir("/") == 0; }), true);
  EXPECT_NE(is_where_we_are_after([] { return ::unshare(CLONE_NEWUSER) == 0; }), true);
  // A service's mounts are its own, and it is of the machine.
  EXPECT_NE(is_where_we_are_after([] { return ::unshare(CLONE_NEWNS) == 0; }), false);
}

}  // namespace
}  // namespace gpumux::daemon

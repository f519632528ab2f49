// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data. Goal: nobody sees what a stranger has left, the budget holds, and where it is used up
// everybody hears of it. Method: loans are written to and given back, and looked at by whoever gets them next.
#include "daemon/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "daemon/trust_domain.h"

namespace gpumux::daemon {
namespace {

constexpr std::uint64_t kBudget = std::uint64_t{64} << 20;

class HostMemoryTest : public testing::Test {
 protected:
  struct Got {
    HostLoan loan;
    std::uint64_t before = 0;  // what its first word was
  };

  HostMemoryTest() {
    memory.on_lent([this](const HostLoan& loan, int fd) {
      Got now{loan, 0};
      if (loan.bytes != 0) {
        void* const mapped = ::mmap(nullptr, loan.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ASSERT_NE(mapped, MAP_FAILED);
        now.before = std::exchange(*static_cast<std::uint64_t*>(mapped), loan.tenant.value);
        ::munmap(mapped, loan.bytes);
      }
      got.push_back(now);
    });
    memory.on_short([this](bool is_short) { shorts.push_back(is_short); });
    memory.set_demand(kBudget);
  }
  ~HostMemoryTest() override { pool.join(); }

  Got ask(std::uint64_t tenant, std::string_view domain) {
    got.clear();
    memory.wanted({tenant}, 0, 1, domain);
    while (got.empty()) loop.run_one();
    return got.front();
  }
  // All jobs are over.
  void rest() {
    while (loop.run_one_for(std::chrono::milliseconds(300)) != 0) {
    }
  }

  boost::asio::io_context loop;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> stays{loop.get_executor()};
  boost::asio::thread_pool pool{2};
  HostMemory memory{loop, pool, kBudget};
  std::vector<Got> got;
  std::vector<bool> shorts;
};

TEST_F(HostMemoryTest, OnlyWhoIsOpenToThemSeesWhatOthersHaveLeft) {
  const Got first = ask(1, "one");
  EXPECT_EQ(first.before, 0u);
  memory.returned({1}, first.loan.id);
  const Got second = ask(2, "one");
  EXPECT_EQ(second.before, 1u) << "it is handed on as it is";
  memory.returned({2}, second.loan.id);
  // All of the budget goes through a stranger's hands, and through those of one that is not known.
  for (const auto& [tenant, domain] : {std::pair{3u, "two"}, {4u, ""}}) {
    std::vector<HostLoan> loans;
    for (Got next = ask(tenant, domain); next.loan.bytes != 0; next = ask(tenant, domain)) {
      EXPECT_EQ(next.before, 0u);
      loans.push_back(next.loan);
    }
    EXPECT_EQ(loans.size() * memory.chunk_bytes(), kBudget);
    for (const HostLoan& loan : loans) memory.returned({tenant}, loan.id);
  }
}

TEST_F(HostMemoryTest, WhatIsLeftByWhoIsGoneIsHandedOnToNobody) {
  static_cast<void>(ask(1, "one"));
  memory.gone({1});
  EXPECT_EQ(memory.lent(), 0u);
  for (Got next = ask(2, "one"); next.loan.bytes != 0; next = ask(2, "one")) EXPECT_EQ(next.before, 0u);
  EXPECT_EQ(memory.lent_to({2}), kBudget);
}

TEST_F(HostMemoryTest, WhereItIsShortEverybodyHearsOfIt) {
  std::vector<HostLoan> loans;
  for (Got next = ask(1, "one"); next.loan.bytes != 0; next = ask(1, "one")) loans.push_back(next.loan);
  EXPECT_EQ(shorts, std::vector<bool>{true});
  EXPECT_EQ(ask(2, "one").loan.bytes, 0u);
  memory.returned({1}, loans.back().id);
  EXPECT_NE(ask(2, "one").loan.bytes, 0u);
  memory.set_demand(kBudget / 2);
  EXPECT_EQ(shorts, (std::vector<bool>{true, false}));
  // And what nobody needs any more goes back to the machine.
  memory.gone({1});
  memory.gone({2});
  memory.set_demand(0);
  rest();
  EXPECT_EQ(memory.ready(), 0u);
  EXPECT_EQ(memory.lent(), 0u);
}

TEST(TrustDomain, IsOfAUserInItsNamespaces) {
  const std::string own = trust_domain(::getpid(), 0);
  EXPECT_FALSE(own.empty());
  EXPECT_EQ(trust_domain(::getpid(), 0), own);
  EXPECT_NE(trust_domain(::getpid(), 1), own);
  EXPECT_EQ(trust_domain(-1, 0), "");
}

}  // namespace
}  // namespace gpumux::daemon

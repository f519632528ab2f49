// SPDX-License-Identifier: Apache-2.0
// For tests of host memory: an event loop, a pool of two threads, a budget of 16 chunks, and tenants that are numbers.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/tenants/host_memory.h"

namespace gpumux::daemon {

inline constexpr std::uint64_t kBudget = std::uint64_t{64} << 20;

class HostMemoryTest : public ::testing::Test {
 protected:
  struct Got {
    HostLoan loan;
    std::uint64_t before = 0;  // its first word before
    bool was_kept = false;     // it came without a descriptor
  };

  HostMemoryTest() {
    memory.on_lent([this](const HostLoan& loan, int fd) {
      Got now{loan, 0, loan.bytes != 0 && fd < 0};
      if (fd >= 0) {
        void* const mapped = ::mmap(nullptr, loan.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ASSERT_NE(mapped, MAP_FAILED);
        now.before = std::exchange(*static_cast<std::uint64_t*>(mapped), loan.seat.tenant.value);
        ::munmap(mapped, loan.bytes);
      }
      got.push_back(now);
    });
    memory.on_forget([this](const HostSeat& seat, std::span<const std::uint64_t> ids) {
      told.push_back({seat, {ids.begin(), ids.end()}});
    });
    memory.on_short([this](bool is_short) { shorts.push_back(is_short); });
    memory.on_awaited([this] { ++waits; });
    memory.set_demand(kBudget);
  }
  ~HostMemoryTest() override { pool.join(); }
  void TearDown() override { EXPECT_EQ(memory.check_invariants(), ""); }

  // A seat that has as much as the budget. Domains are of users of their own.
  void want(const HostSeat& seat, std::string_view domain) {
    memory.has(seat, kBudget);
    memory.wanted(seat, 1, domain, account_of(domain));
  }
  static Account account_of(std::string_view domain) {
    return Account::of_user(static_cast<uid_t>(std::hash<std::string_view>()(domain)));
  }
  Got ask(std::uint64_t tenant, std::string_view domain) {
    got.clear();
    want({{tenant}, 0}, domain);
    while (got.empty()) loop.run_one();
    return got.front();
  }
  std::vector<std::uint64_t> ask_all(std::uint64_t tenant, std::string_view domain) {
    std::vector<std::uint64_t> ids;
    for (Got next = ask(tenant, domain); next.loan.bytes != 0; next = ask(tenant, domain)) ids.push_back(next.loan.id);
    return ids;
  }
  void give_back(std::uint64_t tenant, const std::vector<std::uint64_t>& ids, bool kept) {
    for (const std::uint64_t id : ids) memory.returned({tenant}, id, kept);
  }
  // Runs all jobs, and the jobs that follow from them. Chunks that are made only to be unmade would go on for ever.
  void rest() {
    for (int jobs = 0; memory.is_making(); ++jobs) {
      ASSERT_LT(jobs, 2000) << "host memory is made and unmade, and nobody has asked for anything";
      loop.run_one();
    }
  }

  // Until something has been lent, to that tenant.
  bool eventually_lent(std::uint64_t tenant) {
    const auto is_its = [tenant](const Got& one) {
      return one.loan.seat.tenant.value == tenant && one.loan.bytes != 0;
    };
    while (memory.is_making() && std::none_of(got.begin(), got.end(), is_its)) loop.run_one();
    return std::any_of(got.begin(), got.end(), is_its);
  }
  // The next look is the first that forgets the earlier need.
  void look_for_long() {
    for (std::size_t looks = 0; looks + 1 < kKeptLooks; ++looks) memory.look();
  }
  // As after a restart: nothing has been made yet.
  void begin_again() {
    memory.set_demand(0);
    rest();
    look_for_long();
    memory.look();
    rest();
    ASSERT_EQ(memory.taken(), 0u);
    memory.set_counts_earlier(true);
  }

  struct Told {
    HostSeat seat;
    std::vector<std::uint64_t> ids;
  };

  boost::asio::io_context loop;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> stays{loop.get_executor()};
  boost::asio::thread_pool pool{2};
  HostMemory memory{loop, pool, kBudget};
  std::vector<Got> got;
  std::vector<Told> told;
  std::vector<bool> shorts;
  std::size_t waits = 0;
};

}  // namespace gpumux::daemon

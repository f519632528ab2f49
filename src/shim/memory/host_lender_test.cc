// SPDX-License-Identifier: Apache-2.0
// Host memory as a seat has it. Goal: memory that goes to and fro between seats is registered by each of them once, and
// is right bit for bit. A seat that does not have it cannot touch it. When the daemon recalls it, or is gone, it is
// unmapped.
//
// Method: two seats, each with a pager of its own on the simulated driver, as two processes would be. Between them is a
// little daemon of the test's, which lends memfds and knows which seat has kept which. Calls of the driver are counted,
// and mappings looked for in /proc/self/maps.
#include "shim/memory/host_lender.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "pager/pager_test_support.h"
#include "tests/unit/new_descriptors.h"

namespace gpumux::shim {
namespace {

using pager::JobState;
using pager::kMebibyte;

constexpr std::uint64_t kChunk = 64 * kMebibyte;
constexpr std::uint64_t kData = 48 * kMebibyte;
constexpr std::uint32_t kSeats = 2;

class LentTest : public pager::PagerTest, public HostLender::Port {
 protected:
  struct Chunk {
    os::FileDescriptor memory;
    std::set<std::uint32_t> keepers;
    bool is_free = true;
  };
  struct Seat {
    Seat(LentTest& test, std::uint32_t slot) : lender(test, slot) {
      pager::Options options = test.options_;
      options.host_memory = &lender;
      pager = std::make_unique<pager::Pager>(pager::faulty_driver(), options);
    }
    HostLender lender;
    std::unique_ptr<pager::Pager> pager;
    cuda::CUdeviceptr data = 0;
  };

  void SetUp() override {
    PagerTest::SetUp();
    for (std::uint32_t slot = 0; slot < kSeats; ++slot) {
      seats_.push_back(std::make_unique<Seat>(*this, slot));
      EXPECT_CUDA(seats_[slot]->pager->allocate(context_, kData, pager::Placement::kResident, &seats_[slot]->data));
      write(seats_[slot]->data, random_words(kData, slot));
    }
  }
  void TearDown() override {
    for (auto& seat : seats_) {
      EXPECT_STREQ(seat->pager->check(), nullptr);
      EXPECT_STREQ(seat->lender.check(), nullptr);
    }
    seats_.clear();
    PagerTest::TearDown();
  }

  // HostLender::Port
  bool ask_for_host(std::uint32_t slot, std::uint64_t) override {
    const auto free = std::find_if(chunks_.begin(), chunks_.end(), [](auto& chunk) { return chunk.second.is_free; });
    if (free == chunks_.end()) {
      seats_[slot]->lender.on_lent({.slot = slot}, {});
      return true;
    }
    Chunk& chunk = free->second;
    chunk.is_free = false;
    const bool has = chunk.keepers.erase(slot) != 0;
    os::FileDescriptor memory(has ? -1 : ::fcntl(chunk.memory.get(), F_DUPFD_CLOEXEC, 0));
    seats_[slot]->lender.on_lent({.slot = slot, .id = free->first, .bytes = kChunk}, std::move(memory));
    return true;
  }
  void return_host(std::uint64_t id, bool kept) override {
    EXPECT_FALSE(chunks_.at(id).is_free);
    chunks_.at(id).is_free = true;
    returned_kept_.push_back(kept);
    if (kept) chunks_.at(id).keepers.insert(at_work_);
  }
  void forgot_host(std::uint32_t slot) override { forgot_.push_back(slot); }
  void unregister_host(std::uint32_t slot, const std::byte* address, std::uint64_t bytes) override {
    seats_[slot]->pager->unregister_host(address, bytes);
  }

  void make_chunk(std::uint64_t id) {
    Chunk& chunk = chunks_[id];
    chunk.memory = os::FileDescriptor(::memfd_create("lender-test", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(chunk.memory.get(), static_cast<off_t>(kChunk)), 0);
  }
  // A turn is over: all of the seat's memory goes, comes back, and its host memory is given up.
  void turn(std::uint32_t slot) {
    Seat& seat = *seats_[slot];
    at_work_ = slot;
    std::swap(pager_, seat.pager);
    seat.lender.want(kData);
    EXPECT_EQ(evict(), JobState::kDone);
    EXPECT_EQ(restore(), JobState::kDone);
    EXPECT_EQ(read(seat.data, kData / 4), random_words(kData, slot));
    pager().shrink_host(UINT64_MAX);
    std::swap(pager_, seat.pager);
    EXPECT_EQ(seat.lender.give_up(UINT64_MAX), kChunk);
  }
  // Rights of each mapping of our memfds.
  static std::multiset<std::string> mappings() {
    std::multiset<std::string> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("lender-test") != std::string::npos) found.insert(line.substr(line.find(' ') + 1, 4));
    }
    return found;
  }
  static std::uint64_t registered() { return pager::the_faults()["cuMemHostRegister_v2"]->calls; }
  static std::uint64_t unregistered() { return pager::the_faults()["cuMemHostUnregister"]->calls; }

  std::vector<std::unique_ptr<Seat>> seats_;
  std::map<std::uint64_t, Chunk> chunks_;
  std::vector<bool> returned_kept_;
  std::vector<std::uint32_t> forgot_;
  std::uint32_t at_work_ = 0;
};

TEST_F(LentTest, HandingOnRegistersNothingTheSecondTime) {
  make_chunk(7);
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t slot = 0; slot < kSeats; ++slot) turn(slot);
    // 48 MiB in pieces of 32, in each of two.
    EXPECT_EQ(registered(), 4u) << "round " << round;
    EXPECT_EQ(unregistered(), 0u);
    EXPECT_EQ(mappings(), (std::multiset<std::string>{"---s", "---s"})) << "nobody has it now";
  }
  for (int i = 0; i < 2; ++i) seats_[0]->lender.want(kData);  // asks; and takes what has come
  EXPECT_EQ(seats_[0]->lender.unused_bytes(), kChunk);
  EXPECT_EQ(mappings(), (std::multiset<std::string>{"---s", "rw-s"}));
}

TEST_F(LentTest, MemoryThatTheProgramHasReplacedIsNotMapped) {
  make_chunk(7);
  const os::FileDescriptor programs(::memfd_create("lender-test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(programs.get(), static_cast<off_t>(kChunk)), 0);
  const std::vector<int> lent = new_descriptors([this] { seats_[0]->lender.want(kData); });
  ASSERT_EQ(lent.size(), 1u);
  ASSERT_EQ(::dup2(programs.get(), lent[0]), lent[0]) << "as large as what was lent";
  EXPECT_EQ(seats_[0]->lender.unused_bytes(), 0u);
  seats_[0]->lender.forget_one();  // takes what has come
  EXPECT_TRUE(mappings().empty());
  EXPECT_EQ(returned_kept_, std::vector<bool>{false});
  EXPECT_GE(::fcntl(lent[0], F_GETFD), 0) << "it is the program's";
  ::close(lent[0]);
}

TEST_F(LentTest, WhatIsToGoIsUnmapped) {
  make_chunk(7);
  for (std::uint32_t slot = 0; slot < kSeats; ++slot) turn(slot);
  chunks_.clear();
  wire::HostForget forget{.slot = 0, .count = 2, .ids = {6, 7}};  // of 6 it has never heard
  seats_[0]->lender.on_forget(forget);
  EXPECT_TRUE(forgot_.empty());
  while (seats_[0]->lender.forget_one()) {
  }
  EXPECT_EQ(forgot_, std::vector<std::uint32_t>{0}) << "one answer for all";
  EXPECT_EQ(unregistered(), 2u);
  EXPECT_EQ(mappings().size(), 1u);
  forget.slot = 1;
  seats_[1]->lender.on_forget(forget);
  while (seats_[1]->lender.forget_one()) {
  }
  EXPECT_EQ(forgot_, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(unregistered(), 4u);
  EXPECT_EQ(mappings().size(), 0u);
}

TEST_F(LentTest, WhatIsKeptGoesWithTheConnection) {
  make_chunk(7);
  make_chunk(8);
  for (int i = 0; i < 2; ++i) seats_[0]->lender.want(2 * kData);
  EXPECT_EQ(seats_[0]->lender.unused_bytes(), 2 * kChunk);
  EXPECT_EQ(seats_[0]->lender.give_up(1), kChunk);
  EXPECT_EQ(mappings(), (std::multiset<std::string>{"---s", "rw-s"}));
  seats_[0]->lender.on_forget({.slot = 0, .count = 1, .ids = {8}});
  seats_[0]->lender.on_lost();
  while (seats_[0]->lender.forget_one()) {
  }
  EXPECT_EQ(mappings(), std::multiset<std::string>{"rw-s"}) << "what is on loan stays";
  EXPECT_TRUE(forgot_.empty()) << "who asked is gone";
  // A new daemon may use any number, so what it says is kept is not what an earlier one has lent.
  seats_[0]->lender.on_lent({.slot = 0, .id = 7, .bytes = kChunk}, {});
  returned_kept_.clear();
  seats_[0]->lender.want(1);
  EXPECT_EQ(returned_kept_, std::vector<bool>{false}) << "it does not have what it was lent";
  EXPECT_EQ(seats_[0]->lender.give_up(UINT64_MAX), kChunk);
  EXPECT_EQ(returned_kept_.size(), 1u) << "nobody wants the orphan back";
  EXPECT_EQ(mappings().size(), 0u);
}

TEST_F(LentTest, WhoLeavesKeepsNothing) {
  make_chunk(7);
  make_chunk(8);
  make_chunk(9);
  Seat& seat = *seats_[0];
  for (int i = 0; i < 3; ++i) seat.lender.want(3 * kData);
  const auto in_use = seat.lender.lend(kData);
  ASSERT_TRUE(in_use);
  EXPECT_EQ(seat.lender.give_up(1), kChunk);
  EXPECT_EQ(mappings(), (std::multiset<std::string>{"---s", "rw-s", "rw-s"}));
  returned_kept_.clear();
  seat.lender.keep_nothing();
  while (seat.lender.forget_one()) {
  }
  EXPECT_EQ(mappings(), std::multiset<std::string>{"rw-s"}) << "but for what is in use";
  EXPECT_EQ(returned_kept_, std::vector<bool>{false});
  seat.lender.give_back(*in_use);
  EXPECT_EQ(seat.lender.give_up(1), kChunk);
  EXPECT_EQ(returned_kept_, (std::vector<bool>{false, false}));
  EXPECT_EQ(mappings().size(), 0u);
  // The daemon does not know yet.
  seat.lender.on_lent({.slot = 0, .id = 9, .bytes = kChunk}, {});
  chunks_[9].is_free = false;
  seat.lender.want(1);
  EXPECT_EQ(returned_kept_, (std::vector<bool>{false, false, false})) << "it does not have what it was lent";
}

}  // namespace
}  // namespace gpumux::shim

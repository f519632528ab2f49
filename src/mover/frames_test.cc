// SPDX-License-Identifier: Apache-2.0
// Goal: memory that one seat has left goes to the next seat of its trust domain, with that seat's content and nothing
// lost. It goes to no other seat, and none is kept that no seat comes for. Method: a worker that the test steps, seats
// that the test speaks for, the test's own clock, and the simulated GPU's count of free memory.
#include "mover/frames.h"

#include "mover/worker_test_support.h"

namespace gpumux::mover {
namespace {

class FramesTest : public WorkerTest {
 protected:
  static constexpr std::uint32_t kBlocks = 4;
  static constexpr std::uint64_t kBytes = kBlocks * kBlockBytes;
  static constexpr Domain kDomain = 7;

  base::TimePoint now() override { return time_; }

  static std::uint64_t free_bytes() {
    std::size_t free = 0, total = 0;
    EXPECT_CUDA(simulated_driver().cuMemGetInfo_v2(&free, &total));
    return free;
  }
  Answer save_to_keep(const os::FileDescriptor& seat, const Memory& memory, std::uint64_t chunk = 1) {
    const std::vector<MoverBlock> known(memory.bytes / kBlockBytes);
    say(seat,
        wire::MoverSave{
            .ticket = ++ticket_, .chunk = chunk, .blocks = static_cast<std::uint32_t>(known.size()), .may_keep = 1},
        known, exported(memory).get());
    auto answer = hear(seat);
    EXPECT_TRUE(answer);
    if (!answer) return {};
    EXPECT_EQ(answer->moved.result, MoverResult::kDone);
    return std::move(*answer);
  }
  void give(const os::FileDescriptor& seat, const Answer& saved, bool is_released = true) {
    say(seat, wire::MoverGiven{.ticket = saved.moved.ticket, .is_released = is_released ? 1u : 0u}, {});
    worker_->step(now());
  }
  // Asks for the content in memory that the mover keeps.
  void ask(const os::FileDescriptor& seat, const std::vector<MoverBlock>& blocks, std::uint64_t chunk = 1) {
    say(seat, wire::MoverLoad{.ticket = ++ticket_, .chunk = chunk, .blocks = static_cast<std::uint32_t>(blocks.size())},
        blocks);
  }
  Answer load_into_frame(const os::FileDescriptor& seat, const std::vector<MoverBlock>& blocks,
                         std::uint64_t chunk = 1) {
    ask(seat, blocks, chunk);
    auto answer = hear(seat);
    EXPECT_TRUE(answer);
    return answer ? std::move(*answer) : Answer{};
  }
  static Memory import(const os::FileDescriptor& descriptor, std::uint64_t bytes) {
    Memory memory{.bytes = bytes};
    const cuda::CUmemAccessDesc own{{cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0}, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_CUDA(simulated_driver().cuMemImportFromShareableHandle(
        &memory.handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get())),
        cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EXPECT_CUDA(simulated_driver().cuMemAddressReserve(&memory.address, bytes, 0, 0, 0));
    EXPECT_CUDA(simulated_driver().cuMemMap(memory.address, bytes, 0, memory.handle, 0));
    EXPECT_CUDA(simulated_driver().cuMemSetAccess(memory.address, bytes, &own, 1));
    return memory;
  }
  // A seat that has a chunk with this content in host memory, and waits for its turn.
  Answer put_away(const os::FileDescriptor& seat, const std::vector<std::uint32_t>& content, std::uint64_t chunk = 1) {
    Memory memory = make(static_cast<std::uint32_t>(content.size() * 4 / kBlockBytes));
    write(memory, content);
    Answer saved = save(seat, memory, {}, chunk);
    release(memory);
    return saved;
  }
  void step_until_quiet() {
    EXPECT_TRUE(sim::eventually([&] {
      const auto next = worker_->step(now());
      return !next || *next >= Frames::kPatience;
    }));
  }

  base::TimePoint time_ = sim::now();
};

// After the mover was started again, too: a seat names the content that it waits for.
TEST_F(FramesTest, ASeatThatNamesWhatItHasAwayIsAwaited) {
  const os::FileDescriptor giver = connect(1, kDomain);
  os::FileDescriptor taker = connect(2, kDomain);
  const Answer away = put_away(taker, words(kBytes, 2));
  taker = connect(2, kDomain);
  worker_->step(now());
  Memory memory = make(kBlocks);
  write(memory, words(kBytes, 1));
  EXPECT_EQ(save_to_keep(giver, memory).moved.is_kept, 0u);
  say(taker, wire::MoverNames{.chunk = 1, .blocks = kBlocks}, away.blocks);
  say(taker, wire::MoverNames{}, {});
  worker_->step(now());
  EXPECT_EQ(save_to_keep(giver, memory).moved.is_kept, 1u);
  release(memory);
}

TEST_F(FramesTest, MemoryGoesToTheNextSeatOfItsDomain) {
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain);
  const auto mine = words(kBytes, 1), its = words(kBytes, 2);
  const Answer away = put_away(taker, its);
  Memory memory = make(kBlocks);
  write(memory, mine);
  const std::uint64_t before = free_bytes();
  const Answer saved = save_to_keep(giver, memory);
  ASSERT_EQ(saved.moved.is_kept, 1u);
  release(memory);
  EXPECT_EQ(free_bytes(), before) << "kept, and not freed";
  give(giver, saved);
  const Answer loaded = load_into_frame(taker, away.blocks);
  ASSERT_EQ(loaded.moved.result, MoverResult::kDone);
  ASSERT_TRUE(loaded.memory);
  EXPECT_EQ(worker_->frames(), 0u);
  Memory taken = import(loaded.memory, kBytes);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(read(taken), its);

  // And back, by the descriptor that came along. The first seat's content has lost nothing.
  say(taker, wire::MoverForget{.chunk = 1, .blocks = kBlocks, .are_copies = 1}, away.blocks);
  say(taker, wire::MoverSave{.ticket = ++ticket_, .chunk = 1, .blocks = kBlocks, .may_keep = 1}, away.blocks,
      loaded.memory.get());
  const auto again = hear(taker);
  ASSERT_TRUE(again);
  ASSERT_EQ(again->moved.is_kept, 1u);
  EXPECT_EQ(again->moved.clean, kBytes);
  release(taken);
  give(taker, *again);
  const Answer back = load_into_frame(giver, saved.blocks);
  ASSERT_TRUE(back.memory);
  taken = import(back.memory, kBytes);
  EXPECT_EQ(read(taken), mine);
  release(taken);
  EXPECT_EQ(free_bytes(), before + kBytes);
}

TEST_F(FramesTest, MemoryGoesToNoOtherDomain) {
  const os::FileDescriptor giver = connect(1, kDomain), friendly = connect(2, kDomain), other = connect(3, kDomain + 1),
                           none = connect(4);
  const Answer its = put_away(other, words(kBytes, 1));
  const Answer theirs = put_away(none, words(kBytes, 2));
  Memory memory = make(kBlocks);
  write(memory, words(kBytes, 3));
  EXPECT_EQ(save_to_keep(giver, memory, 1).moved.is_kept, 0u) << "no seat of its domain waits";
  put_away(friendly, words(kBytes, 4));
  for (const auto& [seat, away] : {std::pair(&other, &its), {&none, &theirs}}) {
    Memory next = make(kBlocks);
    const std::uint64_t before = free_bytes();
    const Answer saved = save_to_keep(giver, next, 10 + ticket_);
    ASSERT_EQ(saved.moved.is_kept, 1u);
    release(next);
    give(giver, saved);
    const Answer refused = load_into_frame(*seat, away->blocks);
    EXPECT_EQ(refused.moved.result, MoverResult::kNoFrame);
    EXPECT_FALSE(refused.memory);
    // The seat makes its memory now. The frame has made way for it.
    EXPECT_EQ(worker_->frames(), 0u);
    EXPECT_EQ(free_bytes(), before + kBytes);
  }
  release(memory);
}

TEST_F(FramesTest, OnlyAwaitedMemoryIsKept) {
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain);
  Memory memory = make(kBlocks), smaller = make(kBlocks - 1);
  EXPECT_EQ(save_to_keep(giver, memory, 1).moved.is_kept, 0u) << "its own chunks do not count";
  EXPECT_EQ(save_to_keep(giver, memory, 2).moved.is_kept, 0u);
  const Answer away = put_away(taker, words(kBytes, 1));
  EXPECT_EQ(save(giver, memory, {}, 3).moved.is_kept, 0u) << "the seat has not offered it";
  EXPECT_EQ(save_to_keep(giver, smaller, 4).moved.is_kept, 0u) << "of another size";
  EXPECT_EQ(save_to_keep(giver, memory, 5).moved.is_kept, 1u);
  EXPECT_EQ(save_to_keep(giver, memory, 6).moved.is_kept, 0u) << "one chunk waits, and one frame is there";
  // The taker has its chunk on the GPU again.
  say(taker, wire::MoverForget{.chunk = 1, .blocks = kBlocks, .are_copies = 1}, away.blocks);
  step_until_quiet();
  EXPECT_EQ(save_to_keep(giver, memory, 7).moved.is_kept, 0u);
  release(memory);
  release(smaller);
}

TEST_F(FramesTest, FramesThatNoSeatComesForAreFreed) {
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain);
  const Answer away = put_away(taker, words(kBytes, 1));
  Memory memory = make(kBlocks);
  const std::uint64_t before = free_bytes();
  const Answer saved = save_to_keep(giver, memory);
  ASSERT_EQ(saved.moved.is_kept, 1u);
  release(memory);
  give(giver, saved);
  step_until_quiet();
  EXPECT_EQ(worker_->frames(), 1u);
  EXPECT_EQ(worker_->step(now()), Frames::kPatience) << "it looks again by itself";
  time_ += Frames::kPatience - base::Duration(1);
  worker_->step(now());
  EXPECT_EQ(worker_->frames(), 1u);
  time_ += base::Duration(1);
  EXPECT_FALSE(worker_->step(now()));
  EXPECT_EQ(worker_->frames(), 0u);
  EXPECT_EQ(free_bytes(), before + kBytes);
}

TEST_F(FramesTest, FramesStayWhileMemoryOfTheirDomainMoves) {
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain), other = connect(3, kDomain + 1);
  const Answer away = put_away(taker, words(kBytes, 1));
  Memory memory = make(kBlocks), next = make(kBlocks);
  const Answer saved = save_to_keep(giver, memory, 1);
  ASSERT_EQ(saved.moved.is_kept, 1u);
  release(memory);
  give(giver, saved);
  // Another domain's does not count.
  for (const auto& [seat, stays] : {std::pair(&giver, 1u), {&other, 0u}}) {
    say(*seat, wire::MoverSave{.ticket = ++ticket_, .chunk = 2, .blocks = kBlocks}, std::vector<MoverBlock>(kBlocks),
        exported(next).get());
    time_ += Frames::kPatience;
    worker_->step(now());  // it hears the save, which takes several steps
    EXPECT_EQ(worker_->frames(), stays);
    ASSERT_TRUE(hear(*seat));
  }
  release(next);
}

TEST_F(FramesTest, FramesMakeWayForOtherMemory) {
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain), other = connect(3);
  put_away(taker, words(kBytes, 1), 1);
  put_away(taker, words(kBytes, 2), 2);
  const Answer small = put_away(taker, words(kBlockBytes, 3), 3);
  const std::uint64_t before = free_bytes();
  for (std::uint64_t chunk = 1; chunk <= 2; ++chunk) {
    Memory memory = make(kBlocks);
    const Answer saved = save_to_keep(giver, memory, chunk);
    ASSERT_EQ(saved.moved.is_kept, 1u);
    release(memory);
    give(giver, saved);
  }
  ASSERT_EQ(worker_->frames(), 2u);
  EXPECT_EQ(free_bytes(), before - 2 * kBytes);
  // Of another size than any frame: as many go as that takes.
  EXPECT_EQ(load_into_frame(taker, small.blocks, 3).moved.result, MoverResult::kNoFrame);
  EXPECT_EQ(worker_->frames(), 1u);
  // The driver has refused a seat memory.
  say(other, wire::MoverMakeWay{.bytes = kBlockBytes}, {});
  step_until_quiet();
  EXPECT_EQ(worker_->frames(), 0u);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(FramesTest, TheTakerHearsOfOtherSizes) {
  constexpr std::uint32_t kSmall = base::kLeastFrameBytes / kBlockBytes;
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain), other = connect(3, kDomain + 1);
  put_away(taker, std::vector<std::uint32_t>(base::kLeastFrameBytes / 4, 5), 1);
  const Answer away = put_away(taker, words(kBlockBytes, 2), 2);
  Memory memory = make(kSmall);
  const Answer saved = save_to_keep(giver, memory);
  ASSERT_EQ(saved.moved.is_kept, 1u);
  EXPECT_EQ(saved.moved.frames, 0u) << "not given yet";
  release(memory);
  give(giver, saved);
  Memory block = make(1);
  EXPECT_EQ(save(taker, block, {}, 3).moved.frames, base::frame_size(base::kLeastFrameBytes));
  EXPECT_EQ(save(other, block).moved.frames, 0u);
  EXPECT_EQ(load_into_frame(taker, away.blocks, 2).moved.frames, 0u) << "it has made way";
  release(block);
}

// The giver's program runs again: what it writes must not be lost, and nothing is loaded there.
TEST_F(FramesTest, AGiverThatGoesOnKeepsItsMemory) {
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain);
  const Answer away = put_away(taker, words(kBytes, 1));
  Memory memory = make(kBlocks);
  const Answer saved = save_to_keep(giver, memory);
  ASSERT_EQ(saved.moved.is_kept, 1u);
  EXPECT_EQ(load_into_frame(taker, away.blocks).moved.result, MoverResult::kNoFrame) << "not given yet";
  const auto written = words(kBytes, 2);
  write(memory, written);
  give(giver, saved, false);
  EXPECT_EQ(load_into_frame(taker, away.blocks).moved.result, MoverResult::kNoFrame);
  EXPECT_EQ(worker_->frames(), 0u);
  EXPECT_EQ(read(memory), written);
  // It says so of a frame that is no more, or never was.
  give(giver, saved);
  say(taker, wire::MoverGiven{.ticket = saved.moved.ticket, .is_released = 1}, {});
  step_until_quiet();
  EXPECT_EQ(worker_->frames(), 0u);
  release(memory);
}

TEST_F(FramesTest, AKilledGiverOrTakerCostsNothing) {
  os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain);
  const auto its = words(kBytes, 1);
  const Answer away = put_away(taker, its);
  const std::uint64_t before = free_bytes();
  // Killed before it says what becomes of its memory.
  Memory memory = make(kBlocks);
  ASSERT_EQ(save_to_keep(giver, memory).moved.is_kept, 1u);
  release(memory);
  giver.reset();
  EXPECT_TRUE(sim::eventually([&] {
    worker_->step(now());
    return worker_->seats() == 1;
  }));
  EXPECT_EQ(worker_->frames(), 0u);
  EXPECT_EQ(free_bytes(), before);
  // Killed when it has given it: that is as good as before.
  giver = connect(3, kDomain);
  memory = make(kBlocks);
  const Answer saved = save_to_keep(giver, memory);
  ASSERT_EQ(saved.moved.is_kept, 1u);
  release(memory);
  give(giver, saved);
  giver.reset();
  // The taker is killed while the mover copies.
  ask(taker, away.blocks);
  worker_->step(now());
  EXPECT_EQ(worker_->frames(), 0u);
  EXPECT_LT(free_bytes(), before);
  taker.reset();
  EXPECT_TRUE(sim::eventually([&] {
    worker_->step(now());
    return worker_->seats() == 0;
  }));
  EXPECT_EQ(free_bytes(), before);
  // The same process, with another connection: its content is where it was.
  taker = connect(2, kDomain);
  Memory own = make(kBlocks);
  ASSERT_EQ(load(taker, own, away.blocks).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(own), its);
  release(own);
}

TEST_F(FramesTest, AMoverThatEndsFreesItsFrames) {
  const os::FileDescriptor giver = connect(1, kDomain), taker = connect(2, kDomain);
  const auto mine = words(kBytes, 1);
  put_away(taker, words(kBytes, 2));
  const std::uint64_t before = free_bytes();
  Memory memory = make(kBlocks);
  write(memory, mine);
  const Answer saved = save_to_keep(giver, memory);
  ASSERT_EQ(saved.moved.is_kept, 1u);
  release(memory);
  give(giver, saved);
  ASSERT_EQ(worker_->frames(), 1u);
  worker_.reset();
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(books_->bytes_of(1), kBytes) << "the content is where it was";
}

}  // namespace
}  // namespace gpumux::mover

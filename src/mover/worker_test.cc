// SPDX-License-Identifier: Apache-2.0
#include "mover/worker_test_support.h"

namespace gpumux::mover {
namespace {

using Kind = MoverBlock::Kind;

TEST_F(WorkerTest, WhatIsSavedIsLoaded) {
  const os::FileDescriptor seat = connect(1);
  Memory memory = make(4);
  auto content = words(memory.bytes, 1);
  std::fill(content.begin() + 2 * (kBlockBytes / 4), content.begin() + 3 * (kBlockBytes / 4), 17u);
  write(memory, content);
  const Answer saved = save(seat, memory);
  ASSERT_EQ(saved.moved.result, MoverResult::kDone);
  EXPECT_EQ(saved.moved.copied, 3 * kBlockBytes);
  EXPECT_EQ(saved.moved.constant, kBlockBytes);
  ASSERT_EQ(saved.blocks.size(), 4u);
  EXPECT_EQ(saved.blocks[2].kind, Kind::kConstant);
  EXPECT_EQ(saved.blocks[2].value, 17u);
  EXPECT_EQ(books_->bytes_of(1), 3 * kBlockBytes);
  release(memory);

  Memory again = make(4);
  const Answer loaded = load(seat, again, saved.blocks);
  ASSERT_EQ(loaded.moved.result, MoverResult::kDone);
  EXPECT_EQ(read(again), content);
  // It is held until the seat says that it has it: until then nothing else counts.
  EXPECT_EQ(books_->state_of(saved.blocks[0].value), Books::State::kHeld);
  say(seat, wire::MoverForget{.chunk = 1, .blocks = 4, .are_copies = 1}, saved.blocks);
  EXPECT_TRUE(sim::eventually([&] {
    worker_->step(sim::now());
    return books_->state_of(saved.blocks[0].value) == Books::State::kClean;
  }));

  // Saved once more, only the block that has changed is copied.
  content[5] ^= 1;
  write(again, content);
  const Answer second = save(seat, again, saved.blocks);
  ASSERT_EQ(second.moved.result, MoverResult::kDone);
  EXPECT_EQ(second.moved.copied, kBlockBytes);
  EXPECT_EQ(second.moved.clean, 2 * kBlockBytes);
  EXPECT_EQ(books_->state_of(second.blocks[1].value), Books::State::kHeld);
  release(again);
  Memory third = make(4);
  ASSERT_EQ(load(seat, third, second.blocks).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(third), content);

  say(seat, wire::MoverForget{.chunk = 1, .blocks = 4}, second.blocks);
  EXPECT_TRUE(sim::eventually([&] {
    worker_->step(sim::now());
    return host_->used_bytes() == 0;
  }));
  EXPECT_EQ(books_->bytes_of(1), 0u);
  release(third);
}

TEST_F(WorkerTest, ASeatReachesItsOwnSlotsOnly) {
  const os::FileDescriptor seat = connect(1);
  const os::FileDescriptor other = connect(2);
  Memory memory = make(2);
  const auto content = words(memory.bytes, 2);
  write(memory, content);
  const Answer saved = save(seat, memory);
  ASSERT_EQ(saved.moved.result, MoverResult::kDone);

  Memory stolen = make(2);
  EXPECT_EQ(load(other, stolen, saved.blocks).moved.result, MoverResult::kLost);
  EXPECT_EQ(load(other, stolen, {{Kind::kSlot, 1u << 30}, {Kind::kSlot, kSlots}}).moved.result, MoverResult::kLost);
  say(other, wire::MoverForget{.chunk = 1, .blocks = 2}, saved.blocks);
  say(other, wire::MoverForget{.chunk = 1, .blocks = 2, .are_copies = 1}, saved.blocks);
  // A save that names them does not write there, nor does it count as theirs.
  write(stolen, words(stolen.bytes, 3));
  const Answer theirs = save(other, stolen, saved.blocks);
  ASSERT_EQ(theirs.moved.result, MoverResult::kDone);
  EXPECT_EQ(theirs.moved.copied, stolen.bytes);
  EXPECT_NE(theirs.blocks[0].value, saved.blocks[0].value);

  Memory again = make(2);
  ASSERT_EQ(load(seat, again, saved.blocks).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(again), content);
  for (Memory* const one : {&memory, &stolen, &again}) release(*one);
}

// It was done away with, and belongs to another chunk of the same seat by now: a stale name must not overwrite it.
TEST_F(WorkerTest, AStaleNameReachesNothing) {
  const os::FileDescriptor seat = connect(1);
  Memory memory = make(2);
  const auto content = words(memory.bytes, 7);
  write(memory, content);
  const Answer saved = save(seat, memory, {}, 1);
  ASSERT_EQ(saved.moved.result, MoverResult::kDone);
  Memory other = make(2);
  write(other, words(other.bytes, 8));
  const Answer theirs = save(seat, other, saved.blocks, 2);
  ASSERT_EQ(theirs.moved.result, MoverResult::kDone);
  EXPECT_EQ(theirs.moved.copied, other.bytes);
  EXPECT_EQ(load(seat, other, saved.blocks, 2).moved.result, MoverResult::kLost);
  // Nor in another order.
  EXPECT_EQ(load(seat, other, {saved.blocks[1], saved.blocks[0]}, 1).moved.result, MoverResult::kLost);
  ASSERT_EQ(load(seat, other, saved.blocks, 1).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(other), content);
  release(memory);
  release(other);
}

// The earlier connection is closed, and the content is still the seat's.
TEST_F(WorkerTest, ASeatThatIsConnectedAgain) {
  const os::FileDescriptor first = connect(1);
  Memory memory = make(1);
  const auto content = words(memory.bytes, 7);
  write(memory, content);
  const Answer saved = save(first, memory);
  ASSERT_EQ(saved.moved.result, MoverResult::kDone);
  const os::FileDescriptor second = connect(1);
  worker_->step(sim::now());
  EXPECT_EQ(worker_->seats(), 1u);
  std::byte byte;
  EXPECT_EQ(::recv(first.get(), &byte, 1, MSG_DONTWAIT), 0);
  write(memory, words(memory.bytes, 8));
  ASSERT_EQ(load(second, memory, saved.blocks).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(memory), content);
  release(memory);
}

// The test is the seat's doorkeeper.
TEST_F(WorkerTest, ACopyCountsIfItsSeatIsThereWhenItIsOver) {
  auto ends = connect_by_doorkeeper(1);
  const os::FileDescriptor& relay = ends.first;
  os::FileDescriptor& presence = ends.second;
  Memory memory = make(1);
  write(memory, words(memory.bytes, 9));
  const auto ask = [&](std::uint64_t ticket) {
    const std::vector<MoverBlock> blocks(1);
    say(relay, wire::MoverSave{.ticket = ticket, .chunk = ticket, .blocks = 1}, blocks, exported(memory).get());
  };
  std::byte question[8];
  const auto hear_question = [&] {
    base::Result<os::Received> heard;
    ASSERT_TRUE(sim::eventually([&] {
      worker_->step(sim::now());
      heard = os::receive_message(presence.get(), question);
      return heard.has_value();
    }));
    ASSERT_EQ(heard->bytes, sizeof question);
  };
  ask(1);
  hear_question();
  EXPECT_EQ(books_->bytes_of(1), 0u);
  worker_->step(sim::now());
  std::byte byte;
  EXPECT_EQ(::recv(relay.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT), -1);
  ASSERT_TRUE(os::send_message(presence.get(), question));
  EXPECT_EQ(hear(relay)->moved.result, MoverResult::kDone);
  EXPECT_EQ(books_->bytes_of(1), kBlockBytes);
  // The next one is copied, and its seat is gone by then.
  ask(2);
  hear_question();
  presence.reset();
  ASSERT_TRUE(sim::eventually([&] {
    worker_->step(sim::now());
    return worker_->seats() == 0;
  }));
  EXPECT_EQ(books_->bytes_of(1), kBlockBytes);
  release(memory);
}

// Attack: the account's doorkeeper waits for a stranger.
TEST_F(WorkerTest, ADoorkeeperThatDoesNotAnswerHasLostItsSeats) {
  const auto ends = connect_by_doorkeeper(1);
  const os::FileDescriptor& relay = ends.first;
  const os::FileDescriptor& presence = ends.second;
  Memory memory = make(1);
  write(memory, words(memory.bytes, 9));
  const std::vector<MoverBlock> blocks(1);
  say(relay, wire::MoverSave{.ticket = 1, .chunk = 1, .blocks = 1}, blocks, exported(memory).get());
  base::TimePoint now = sim::now();
  ASSERT_TRUE(sim::eventually([&] {
    worker_->step(now);
    std::byte byte;
    return ::recv(presence.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }));
  worker_->step(now + Worker::kPresencePatience - std::chrono::nanoseconds(1));
  EXPECT_EQ(worker_->seats(), 1u);
  worker_->step(now + Worker::kPresencePatience);
  EXPECT_EQ(worker_->seats(), 0u);
  EXPECT_EQ(books_->bytes_of(1), 0u);
  release(memory);
}

// Attack: a seat fills the queue, so that the others wait.
TEST_F(WorkerTest, SeatsAreServedInTurn) {
  const os::FileDescriptor greedy = connect(1);
  const os::FileDescriptor modest = connect(2);
  Memory memory = make(1);
  write(memory, words(memory.bytes, 9));
  constexpr std::uint64_t kMany = 40;
  const auto ask = [&](const os::FileDescriptor& seat, std::uint64_t ticket) {
    const std::vector<MoverBlock> blocks(1);
    say(seat, wire::MoverSave{.ticket = ticket, .chunk = ticket, .blocks = 1}, blocks, exported(memory).get());
  };
  for (std::uint64_t i = 0; i < kMany; ++i) ask(greedy, i + 1);
  worker_->step(sim::now());
  ask(modest, 1);
  std::size_t answered = 0;
  const auto count = [&] {
    std::byte answer[wire::kMostMoverBytes];
    while (::recv(greedy.get(), answer, sizeof answer, MSG_DONTWAIT) > 0) ++answered;
  };
  ASSERT_TRUE(sim::eventually([&] {
    worker_->step(sim::now());
    std::byte byte;
    if (::recv(modest.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return true;
    count();
    return false;
  }));
  // Some were mapped before it came, and some of these rounds begin at the same time.
  EXPECT_LE(answered, 3 * Worker::kMostMapped);
  EXPECT_TRUE(sim::eventually([&] {
    worker_->step(sim::now());
    count();
    return answered == kMany;
  }));
  release(memory);
}

TEST_F(WorkerTest, ASlotThatIsNamedTwiceIsUsedOnce) {
  const os::FileDescriptor seat = connect(1);
  Memory memory = make(2);
  write(memory, words(memory.bytes, 4));
  const Answer saved = save(seat, memory);
  ASSERT_EQ(saved.moved.result, MoverResult::kDone);
  const MoverBlock first = saved.blocks[0];
  Memory twice = make(2);
  EXPECT_EQ(load(seat, twice, {first, first}).moved.result, MoverResult::kLost);
  // Forgotten in the middle of its load, it stays until that is over.
  say(seat, wire::MoverLoad{.ticket = ++ticket_, .chunk = 1, .blocks = 2}, saved.blocks, exported(twice).get());
  worker_->step(sim::now());
  say(seat, wire::MoverForget{.chunk = 1, .blocks = 2}, saved.blocks);
  const auto loaded = hear(seat);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->moved.result, MoverResult::kDone);
  EXPECT_EQ(read(twice), read(memory));
  EXPECT_EQ(books_->bytes_of(1), twice.bytes);
  release(memory);
  release(twice);
}

TEST_F(WorkerTest, ASeatThatConnectsNamesItsSlots) {
  const os::FileDescriptor first = connect(1);
  const os::FileDescriptor other = connect(2);
  Memory memory = make(2);
  write(memory, words(memory.bytes, 4));
  const Answer named = save(first, memory);
  const Answer copies = save(first, memory, {}, 2);
  const Answer lost = save(first, memory, {}, 3);
  const Answer others = save(other, memory);
  ASSERT_EQ(lost.moved.result, MoverResult::kDone);
  const os::FileDescriptor second = connect(1);
  say(second, wire::MoverNames{.chunk = 1, .blocks = 2}, named.blocks);
  say(second, wire::MoverNames{.chunk = 2, .blocks = 2, .are_copies = 1}, copies.blocks);
  // Attack: slots of another chunk, and of another seat.
  say(second, wire::MoverNames{.chunk = 1, .blocks = 2}, lost.blocks);
  say(second, wire::MoverNames{.chunk = 1, .blocks = 2}, others.blocks);
  say(second, wire::MoverNames{}, {});
  worker_->step(sim::now());
  EXPECT_EQ(books_->bytes_of(1), 2 * memory.bytes);
  EXPECT_EQ(books_->bytes_of(2), memory.bytes);
  EXPECT_EQ(books_->state_of(named.blocks[0].value), Books::State::kHeld);
  EXPECT_EQ(books_->state_of(copies.blocks[0].value), Books::State::kClean);
  EXPECT_EQ(books_->state_of(lost.blocks[0].value), Books::State::kFree);
  Memory again = make(2);
  EXPECT_EQ(load(second, again, named.blocks).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(again), read(memory));
  // Attack: each end costs a look at all books.
  say(second, wire::MoverNames{}, {});
  EXPECT_FALSE(hear(second));  // it was closed
  release(memory);
  release(again);
}

TEST_F(WorkerTest, WithoutHostMemoryItWaits) {
  const os::FileDescriptor seat = connect(1);
  files_.most = 1;  // a chunk of 16 slots
  Memory memory = make(17);
  const auto content = words(memory.bytes, 5);
  write(memory, content);
  EXPECT_EQ(save(seat, memory).moved.result, MoverResult::kNoHost);
  EXPECT_EQ(host_->used_bytes(), 0u);
  say(seat, wire::MoverCancel{.ticket = ticket_}, {});
  EXPECT_EQ(hear(seat)->moved.result, MoverResult::kFailed);
  EXPECT_EQ(read(memory), content);
  EXPECT_EQ(save(seat, memory).moved.result, MoverResult::kNoHost);
  files_.most = 2;
  EXPECT_EQ(hear(seat)->moved.result, MoverResult::kDone);
  release(memory);
}

// A seat that saves one thing under many names takes nothing from others.
TEST_F(WorkerTest, ASeatHasNoMoreHostMemoryThanItMay) {
  worker_->bound(1, 4 * kBlockBytes);
  worker_->bound(2, 4 * kBlockBytes);
  const os::FileDescriptor greedy = connect(1);
  const os::FileDescriptor other = connect(2);
  Memory memory = make(2);
  write(memory, words(memory.bytes, 1));
  std::uint64_t saved = 0;
  for (std::uint64_t chunk = 1; chunk <= 8; ++chunk) {
    say(greedy, wire::MoverSave{.ticket = chunk, .chunk = chunk, .blocks = 2}, {{}, {}}, exported(memory).get());
    const auto answer = hear(greedy);
    ASSERT_TRUE(answer);
    saved += answer->moved.result == MoverResult::kDone;
    if (answer->moved.result == MoverResult::kNoHost) {
      say(greedy, wire::MoverCancel{.ticket = chunk}, {});
      EXPECT_TRUE(hear(greedy));
    }
  }
  EXPECT_EQ(saved, 2u);
  EXPECT_EQ(books_->bytes_of(1), 4 * kBlockBytes);
  Memory its = make(4);
  write(its, words(its.bytes, 2));
  EXPECT_EQ(save(other, its).moved.result, MoverResult::kDone);
  worker_->bound(1, 8 * kBlockBytes);
  say(greedy, wire::MoverSave{.ticket = 9, .chunk = 9, .blocks = 2}, {{}, {}}, exported(memory).get());
  EXPECT_TRUE(sim::eventually([&] {
    worker_->step(sim::now());
    return books_->bytes_of(1) == 6 * kBlockBytes;
  }));
  release(memory);
  release(its);
}

// A mapping that stays would keep the memory from all programs for as long as the mover lives.
TEST_F(WorkerTest, AMoverThatCannotLetGoOfMemoryHasToEnd) {
  for (const auto entry : {&cuda::Driver::cuMemUnmap, &cuda::Driver::cuMemAddressFree}) {
    cuda::Driver driver = simulated_driver();
    driver.*entry = [](cuda::CUdeviceptr, std::size_t) { return cuda::CUDA_ERROR_UNKNOWN; };
    books_.emplace(Books::open(books_file_.get(), kSlots, kHostChunkBytes / kBlockBytes).value());
    worker_.emplace(driver, 0, *host_, *books_);
    const auto seat = connect(1);
    Memory memory = make(2);
    EXPECT_FALSE(worker_->is_broken());
    say(seat, wire::MoverSave{.ticket = 1, .chunk = 1, .blocks = 2}, {{}, {}}, exported(memory).get());
    EXPECT_TRUE(hear(seat));
    EXPECT_TRUE(worker_->is_broken());
    release(memory);
    worker_.reset();  // it calls this driver to the end
  }
}

TEST_F(WorkerTest, HostileMessages) {
  const os::FileDescriptor other = connect(2);
  {
    const os::FileDescriptor seat = connect(1);
    ASSERT_TRUE(os::send_message(seat.get(), std::as_bytes(std::span("nonsense"))));
    EXPECT_FALSE(hear(seat));  // it was closed
  }
  EXPECT_TRUE(sim::eventually([&] {
    worker_->step(sim::now());
    return worker_->seats() == 1;
  }));
  // No memory, or what is none.
  say(other, wire::MoverSave{.ticket = 1, .blocks = 1}, {MoverBlock{}});
  EXPECT_EQ(hear(other)->moved.result, MoverResult::kFailed);
  say(other, wire::MoverSave{.ticket = 2, .blocks = 1}, {MoverBlock{}}, books_file_.get());
  EXPECT_EQ(hear(other)->moved.result, MoverResult::kFailed);
  // More blocks than the memory has; no block.
  Memory memory = make(1);
  say(other, wire::MoverSave{.ticket = 3, .blocks = 2}, {MoverBlock{}, MoverBlock{}}, exported(memory).get());
  EXPECT_EQ(hear(other)->moved.result, MoverResult::kFailed);
  say(other, wire::MoverSave{.ticket = 4, .blocks = 0}, {}, exported(memory).get());
  EXPECT_EQ(hear(other)->moved.result, MoverResult::kFailed);
  EXPECT_EQ(save(other, memory).moved.result, MoverResult::kDone);
  EXPECT_EQ(load(other, memory, {MoverBlock{static_cast<Kind>(77), 0}}).moved.result, MoverResult::kLost);
  release(memory);
}

// It does not read its answers. Others go on, and nothing grows.
TEST_F(WorkerTest, ASeatThatDoesNotListenIsNotHeard) {
  const os::FileDescriptor deaf = connect(1);
  const os::FileDescriptor seat = connect(2);
  Memory memory = make(1);
  alignas(8) std::byte buffer[wire::kMostMoverBytes];
  const std::vector<MoverBlock> blocks(wire::kMostMoverBlocks);
  const wire::MoverLoad wrong{.ticket = 1, .blocks = wire::kMostMoverBlocks};
  std::size_t sent = 0;
  const std::vector<MoverBlock> lies(wire::kMostMoverBlocks, MoverBlock{Kind::kSlot, kSlots});
  for (int turns = 0; turns < 100; ++turns) {
    while (os::send_message(deaf.get(), wire::encode_for_mover(wrong, lies, buffer))) ++sent;
    worker_->step(sim::now());
  }
  const std::size_t before = sent;
  for (int turns = 0; turns < 100; ++turns) {
    while (os::send_message(deaf.get(), wire::encode_for_mover(wrong, lies, buffer))) ++sent;
    worker_->step(sim::now());
  }
  EXPECT_EQ(sent, before);
  EXPECT_EQ(save(seat, memory).moved.result, MoverResult::kDone);
  release(memory);
}

TEST_F(WorkerTest, AnotherMoverKnowsWhatThisOneHasSaved) {
  os::FileDescriptor seat = connect(1);
  Memory memory = make(3);
  const auto content = words(memory.bytes, 6);
  write(memory, content);
  const Answer saved = save(seat, memory);
  ASSERT_EQ(saved.moved.result, MoverResult::kDone);
  release(memory);
  // Killed while it overwrote a slot: that one is lost, and free.
  books_->writing(saved.blocks[2].value);

  worker_.reset();
  const HostChunk chunk = files_.map(0, kHostChunkBytes);
  host_.reset();
  books_.emplace(Books::open(books_file_.get(), kSlots, kHostChunkBytes / kBlockBytes).value());
  keeper_.emplace(*books_);
  host_.emplace(simulated_driver(), files_, &*keeper_);
  ASSERT_TRUE(adopt(*host_, *books_, chunk));
  worker_.emplace(simulated_driver(), 0, *host_, *books_);
  EXPECT_EQ(host_->used_bytes(), 2 * kBlockBytes);

  seat = connect(1);
  Memory again = make(2);
  ASSERT_EQ(load(seat, again, {saved.blocks[0], saved.blocks[1]}).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(again), std::vector(content.begin(), content.begin() + 2 * (kBlockBytes / 4)));
  Memory all = make(3);
  EXPECT_EQ(load(seat, all, saved.blocks).moved.result, MoverResult::kLost);
  release(all);
  release(again);
}

}  // namespace
}  // namespace gpumux::mover

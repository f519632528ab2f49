// SPDX-License-Identifier: Apache-2.0
#include "mover/worker.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <random>

#include "os/unix_socket.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::mover {
namespace {

using cuda::CUresult;
using sim::simulated_driver;
using wire::MoverBlock;
using wire::MoverResult;
using Kind = MoverBlock::Kind;

// Host memory as the daemon gives it: files, by number.
class Files final : public pager::HostMemory {
 public:
  std::optional<pager::HostChunk> lend(std::uint64_t bytes) override {
    if (next_ == most) return std::nullopt;
    const int file = ::memfd_create("host", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(bytes)), 0);
    files_[next_] = file;
    return map(next_++, bytes);
  }
  void give_back(const pager::HostChunk& chunk) override {
    ::munmap(chunk.address, chunk.bytes);
    ++given_back;
  }
  // The same file, mapped once more: another mover's.
  pager::HostChunk map(std::uint64_t number, std::uint64_t bytes) {
    void* const room = ::mmap(nullptr, bytes + pager::kBlockBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto at =
        (reinterpret_cast<std::uintptr_t>(room) + pager::kBlockBytes - 1) / pager::kBlockBytes * pager::kBlockBytes;
    void* const memory =
        ::mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, files_[number], 0);
    return {static_cast<std::byte*>(memory), bytes, number};
  }
  ~Files() override {
    for (const auto& [number, file] : files_) ::close(file);
  }

  std::uint64_t most = UINT64_MAX;
  int given_back = 0;

 private:
  std::map<std::uint64_t, int> files_;
  std::uint64_t next_ = 0;
};

struct Answer {
  wire::MoverMoved moved;
  std::vector<MoverBlock> blocks;
};

class WorkerTest : public sim::SimTest {
 protected:
  static constexpr std::uint32_t kSlots = 64;

  void SetUp() override {
    SimTest::SetUp();
    ASSERT_EQ(::ftruncate(books_file_.get(), static_cast<off_t>(Books::bytes_for(kSlots))), 0);
    start();
  }
  void TearDown() override {
    stop();
    SimTest::TearDown();
  }
  // A mover, with the books and the host memory that the last one has left.
  void start() {
    books_.emplace(Books::open(books_file_.get(), kSlots, pager::kHostChunkBytes / pager::kBlockBytes).value());
    keeper_.emplace(*books_);
    host_.emplace(simulated_driver(), &files_, &*keeper_);
    worker_.emplace(simulated_driver(), 0, *host_, *books_);
  }
  void stop() {
    worker_.reset();
    host_.reset();
    keeper_.reset();
    books_.reset();
  }
  // A seat's end of its connection.
  os::FileDescriptor connect(SeatNumber seat) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    worker_->add(seat, os::FileDescriptor(ends[0]));
    return os::FileDescriptor(ends[1]);
  }

  struct Memory {
    cuda::CUmemGenericAllocationHandle handle = 0;
    cuda::CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
  };
  Memory make(std::uint32_t blocks) {
    Memory memory{.bytes = blocks * pager::kBlockBytes};
    cuda::CUmemAllocationProp properties{};
    properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const cuda::CUmemAccessDesc own{properties.location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_CUDA(simulated_driver().cuMemCreate(&memory.handle, memory.bytes, &properties, 0));
    EXPECT_CUDA(simulated_driver().cuMemAddressReserve(&memory.address, memory.bytes, 0, 0, 0));
    EXPECT_CUDA(simulated_driver().cuMemMap(memory.address, memory.bytes, 0, memory.handle, 0));
    EXPECT_CUDA(simulated_driver().cuMemSetAccess(memory.address, memory.bytes, &own, 1));
    return memory;
  }
  static void release(Memory& memory) {
    EXPECT_CUDA(simulated_driver().cuMemUnmap(memory.address, memory.bytes));
    EXPECT_CUDA(simulated_driver().cuMemAddressFree(memory.address, memory.bytes));
    EXPECT_CUDA(simulated_driver().cuMemRelease(memory.handle));
    memory = {};
  }
  static os::FileDescriptor exported(const Memory& memory) {
    int fd = -1;
    EXPECT_CUDA(simulated_driver().cuMemExportToShareableHandle(&fd, memory.handle,
                                                                cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return os::FileDescriptor(fd);
  }
  static std::vector<std::uint32_t> words(std::uint64_t bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint32_t> made(bytes / 4);
    for (std::uint32_t& word : made) word = static_cast<std::uint32_t>(random());
    return made;
  }
  static void write(const Memory& memory, const std::vector<std::uint32_t>& content) {
    EXPECT_CUDA(simulated_driver().cuMemcpyHtoD_v2(memory.address, content.data(), content.size() * 4));
  }
  static std::vector<std::uint32_t> read(const Memory& memory) {
    std::vector<std::uint32_t> content(memory.bytes / 4);
    EXPECT_CUDA(simulated_driver().cuMemcpyDtoH_v2(content.data(), memory.address, memory.bytes));
    return content;
  }

  template <class Message>
  void say(const os::FileDescriptor& seat, const Message& message, const std::vector<MoverBlock>& blocks, int fd = -1) {
    alignas(8) std::byte buffer[wire::kMostMoverBytes];
    ASSERT_TRUE(os::send_message(seat.get(), wire::encode_for_mover(message, blocks, buffer), fd));
  }
  std::optional<Answer> hear(const os::FileDescriptor& seat) {
    alignas(8) std::byte buffer[wire::kMostMoverBytes];
    std::optional<Answer> answer;
    EXPECT_TRUE(sim::eventually([&] {
      worker_->step(sim::now());
      const auto received = os::receive_message(seat.get(), buffer);
      if (!received) return false;
      if (received->bytes == 0) return true;  // it was closed
      const auto message = wire::decode_from_mover(std::span(buffer, received->bytes));
      EXPECT_TRUE(message);
      answer = Answer{message->message, {message->blocks.begin(), message->blocks.end()}};
      return true;
    }));
    return answer;
  }
  Answer save(const os::FileDescriptor& seat, const Memory& memory, std::vector<MoverBlock> known = {},
              std::uint64_t chunk = 1) {
    known.resize(memory.bytes / pager::kBlockBytes);
    say(seat, wire::MoverSave{.ticket = ++ticket_, .chunk = chunk, .blocks = static_cast<std::uint32_t>(known.size())},
        known, exported(memory).get());
    const auto answer = hear(seat);
    EXPECT_TRUE(answer);
    EXPECT_EQ(answer.value_or(Answer{}).moved.ticket, ticket_);
    return answer.value_or(Answer{});
  }
  Answer load(const os::FileDescriptor& seat, const Memory& memory, const std::vector<MoverBlock>& blocks,
              std::uint64_t chunk = 1) {
    say(seat, wire::MoverLoad{.ticket = ++ticket_, .chunk = chunk, .blocks = static_cast<std::uint32_t>(blocks.size())},
        blocks, exported(memory).get());
    return hear(seat).value_or(Answer{});
  }

  os::FileDescriptor books_file_{::memfd_create("books", MFD_CLOEXEC)};
  Files files_;
  std::optional<Books> books_;
  std::optional<BookKeeper> keeper_;
  std::optional<pager::HostSlots> host_;
  std::optional<Worker> worker_;
  std::uint64_t ticket_ = 0;
};

TEST_F(WorkerTest, WhatIsSavedIsLoaded) {
  const os::FileDescriptor seat = connect(1);
  Memory memory = make(4);
  auto content = words(memory.bytes, 1);
  std::fill(content.begin() + 2 * (pager::kBlockBytes / 4), content.begin() + 3 * (pager::kBlockBytes / 4), 17u);
  write(memory, content);
  const Answer saved = save(seat, memory);
  ASSERT_EQ(saved.moved.result, MoverResult::kDone);
  EXPECT_EQ(saved.moved.copied, 3 * pager::kBlockBytes);
  EXPECT_EQ(saved.moved.constant, pager::kBlockBytes);
  ASSERT_EQ(saved.blocks.size(), 4u);
  EXPECT_EQ(saved.blocks[2].kind, Kind::kConstant);
  EXPECT_EQ(saved.blocks[2].value, 17u);
  EXPECT_EQ(books_->bytes_of(1), 3 * pager::kBlockBytes);
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
  EXPECT_EQ(second.moved.copied, pager::kBlockBytes);
  EXPECT_EQ(second.moved.clean, 2 * pager::kBlockBytes);
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
  const pager::HostChunk chunk = files_.map(0, pager::kHostChunkBytes);
  host_.reset();
  books_.emplace(Books::open(books_file_.get(), kSlots, pager::kHostChunkBytes / pager::kBlockBytes).value());
  keeper_.emplace(*books_);
  host_.emplace(simulated_driver(), &files_, &*keeper_);
  ASSERT_TRUE(adopt(*host_, *books_, chunk));
  worker_.emplace(simulated_driver(), 0, *host_, *books_);
  EXPECT_EQ(host_->used_bytes(), 2 * pager::kBlockBytes);

  seat = connect(1);
  Memory again = make(2);
  ASSERT_EQ(load(seat, again, {saved.blocks[0], saved.blocks[1]}).moved.result, MoverResult::kDone);
  EXPECT_EQ(read(again), std::vector(content.begin(), content.begin() + 2 * (pager::kBlockBytes / 4)));
  Memory all = make(3);
  EXPECT_EQ(load(seat, all, saved.blocks).moved.result, MoverResult::kLost);
  release(all);
  release(again);
}

}  // namespace
}  // namespace gpumux::mover

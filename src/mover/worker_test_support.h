// SPDX-License-Identifier: Apache-2.0
// For the worker's tests: a worker that the test steps, with books and host memory that outlive it, and seats that the
// test speaks for.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <random>
#include <utility>

#include "mover/worker.h"
#include "os/unix_socket.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::mover {

using sim::simulated_driver;
using wire::MoverBlock;
using wire::MoverResult;

inline constexpr std::uint64_t kHostChunkBytes = 32 * kMebibyte;

// Host memory as the daemon gives it: files, by number.
class Files final : public HostMemory {
 public:
  std::optional<HostChunk> lend() override {
    if (next_ == most) return std::nullopt;
    const int file = ::memfd_create("host", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, kHostChunkBytes), 0);
    files_[next_] = file;
    return map(next_++, kHostChunkBytes);
  }
  void give_back(const HostChunk& chunk) override {
    ::munmap(chunk.address, chunk.bytes);
    ++given_back;
  }
  // The same file, mapped once more: another mover's.
  HostChunk map(std::uint64_t number, std::uint64_t bytes) {
    void* const room = ::mmap(nullptr, bytes + kBlockBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto at = (reinterpret_cast<std::uintptr_t>(room) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
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
  os::FileDescriptor memory;
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
    books_.emplace(Books::open(books_file_.get(), kSlots, kHostChunkBytes / kBlockBytes).value());
    keeper_.emplace(*books_);
    host_.emplace(simulated_driver(), files_, &*keeper_);
    worker_.emplace(simulated_driver(), 0, *host_, *books_);
  }
  void stop() {
    worker_.reset();
    host_.reset();
    keeper_.reset();
    books_.reset();
  }
  // A seat's end of its connection.
  os::FileDescriptor connect(SeatNumber seat, Domain domain = 0) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    worker_->add(seat, os::FileDescriptor(ends[0]), domain);
    return os::FileDescriptor(ends[1]);
  }

  // The doorkeeper's ends of a relay and of its presence.
  std::pair<os::FileDescriptor, os::FileDescriptor> connect_by_doorkeeper(SeatNumber seat) {
    int relays[2];
    int presences[2];
    for (int* const ends : {relays, presences})
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    worker_->add(seat, os::FileDescriptor(relays[0]), 0, os::FileDescriptor(presences[0]));
    return {os::FileDescriptor(relays[1]), os::FileDescriptor(presences[1])};
  }

  struct Memory {
    cuda::CUmemGenericAllocationHandle handle = 0;
    cuda::CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
  };
  Memory make(std::uint32_t blocks) {
    Memory memory{.bytes = blocks * kBlockBytes};
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
      worker_->step(now());
      auto received = os::receive_message(seat.get(), buffer);
      if (!received) return false;
      if (received->bytes == 0) return true;  // it was closed
      const auto message = wire::decode_from_mover(std::span(buffer, received->bytes));
      EXPECT_TRUE(message);
      answer = Answer{message->message, {message->blocks.begin(), message->blocks.end()}, std::move(received->fd)};
      return true;
    }));
    return answer;
  }
  Answer save(const os::FileDescriptor& seat, const Memory& memory, std::vector<MoverBlock> known = {},
              std::uint64_t chunk = 1) {
    known.resize(memory.bytes / kBlockBytes);
    say(seat, wire::MoverSave{.ticket = ++ticket_, .chunk = chunk, .blocks = static_cast<std::uint32_t>(known.size())},
        known, exported(memory).get());
    auto answer = hear(seat);
    EXPECT_TRUE(answer);
    if (!answer) return {};
    EXPECT_EQ(answer->moved.ticket, ticket_);
    return std::move(*answer);
  }
  Answer load(const os::FileDescriptor& seat, const Memory& memory, const std::vector<MoverBlock>& blocks,
              std::uint64_t chunk = 1) {
    say(seat, wire::MoverLoad{.ticket = ++ticket_, .chunk = chunk, .blocks = static_cast<std::uint32_t>(blocks.size())},
        blocks, exported(memory).get());
    auto answer = hear(seat);
    EXPECT_TRUE(answer);
    return answer ? std::move(*answer) : Answer{};
  }

  virtual base::TimePoint now() { return sim::now(); }

  os::FileDescriptor books_file_{::memfd_create("books", MFD_CLOEXEC)};
  Files files_;
  std::optional<Books> books_;
  std::optional<BookKeeper> keeper_;
  std::optional<HostSlots> host_;
  std::optional<Worker> worker_;
  std::uint64_t ticket_ = 0;
};

}  // namespace gpumux::mover

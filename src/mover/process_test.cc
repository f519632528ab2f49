// SPDX-License-Identifier: Apache-2.0
#include "mover/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "os/unix_socket.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"
#include "wire/encode.h"

namespace gpumux::mover {
namespace {

using sim::simulated_driver;

// The test is the daemon, and each seat.
class ProcessTest : public sim::SimTest {
 protected:
  static constexpr std::uint32_t kSlots = 64;
  static constexpr std::uint32_t kPerChunk = 4;

  void SetUp() override {
    SimTest::SetUp();
    ASSERT_EQ(::ftruncate(books_.get(), static_cast<off_t>(Books::bytes_for(kSlots))), 0);
    auto [ours, theirs] = pair();
    daemon_ = std::move(ours);
    thread_ = std::thread([this, connection = std::make_shared<os::FileDescriptor>(std::move(theirs))] {
      cuda::Driver driver = simulated_driver();
      driver.cuMemImportFromShareableHandle = [](cuda::CUmemGenericAllocationHandle* handle, void* file,
                                                 cuda::CUmemAllocationHandleType type) {
        stands_still_.wait(true);
        return simulated_driver().cuMemImportFromShareableHandle(handle, file, type);
      };
      Process process(driver, std::move(*connection), Doors::start().value());
      status_ = process.run();
    });
    say(wire::MoverDoor{}, os::bind_seqpacket(door_, 0600)->get());
  }
  void TearDown() override {
    end();
    SimTest::TearDown();
  }
  void end() {
    daemon_.reset();
    if (thread_.joinable()) thread_.join();
  }
  static std::pair<os::FileDescriptor, os::FileDescriptor> pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    return {os::FileDescriptor(ends[0]), os::FileDescriptor(ends[1])};
  }
  template <class Message>
  void say(const Message& message, int fd = -1) {
    ASSERT_TRUE(os::send_message(daemon_.get(), wire::encode(message).bytes(), fd));
  }
  os::FileDescriptor open_seat(SeatNumber number, int device = 0, std::uint64_t account = 0) {
    cuda::CUuuid uuid{};
    EXPECT_CUDA(simulated_driver().cuDeviceGetUuid(&uuid, device));
    wire::MoverSeat seat{.seat = number, .most = UINT64_MAX, .account = account, .connects = 1};
    std::memcpy(seat.gpu_uuid, &uuid, sizeof uuid);
    return ask_for(seat);
  }
  // The seat's end of the connection that the mover makes, or none.
  os::FileDescriptor ask_for(const wire::MoverSeat& seat) {
    say(seat);
    os::FileDescriptor connection;
    EXPECT_TRUE(sim::eventually([&] {
      auto [message, fd] = heard_with_descriptor();
      if (!message || !std::holds_alternative<wire::MoverConnected>(*message)) return false;
      EXPECT_EQ(std::get<wire::MoverConnected>(*message).seat, seat.seat);
      connection = std::move(fd);
      return true;
    }));
    return connection;
  }
  void give_host_memory(std::uint64_t number) {
    const os::FileDescriptor file(::memfd_create("host", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(file.get(), kPerChunk * kBlockBytes), 0);
    say(wire::MoverHost{.number = number, .bytes = kPerChunk * kBlockBytes}, file.get());
  }
  std::optional<wire::ToMoversDaemon> heard() { return heard_with_descriptor().first; }
  std::pair<std::optional<wire::ToMoversDaemon>, os::FileDescriptor> heard_with_descriptor() {
    std::byte buffer[base::kMaxMessageBytes];
    auto received = os::receive_message(daemon_.get(), buffer);
    if (!received || received->bytes == 0) return {};
    return {wire::decode_to_movers_daemon(std::span(buffer, received->bytes)).value(), std::move(received->fd)};
  }
  // The mover's next answer to the seat. Until it comes, the test gives the host memory that the mover asks for.
  std::optional<wire::MoverMoved> answer(const os::FileDescriptor& seat) {
    std::optional<wire::MoverMoved> answer;
    EXPECT_TRUE(sim::eventually([&] {
      if (const auto message = heard(); message && std::holds_alternative<wire::MoverHostWanted>(*message))
        give_host_memory(given_++);
      alignas(8) std::byte buffer[wire::kMostMoverBytes];
      const auto received = os::receive_message(seat.get(), buffer);
      if (!received) return false;
      if (received->bytes == 0) return true;
      const auto message = wire::decode_from_mover(std::span(buffer, received->bytes)).value().message;
      if (message.result == wire::MoverResult::kNoHost) return false;
      answer = message;
      return true;
    }));
    return answer;
  }
  static void ask_to_save(const os::FileDescriptor& seat, std::uint32_t blocks) {
    cuda::CUmemGenericAllocationHandle handle = 0;
    cuda::CUmemAllocationProp properties{};
    properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const std::uint64_t bytes = blocks * kBlockBytes;
    EXPECT_CUDA(simulated_driver().cuMemCreate(&handle, bytes, &properties, 0));
    // No block is constant.
    cuda::CUdeviceptr address = 0;
    const cuda::CUmemAccessDesc own{properties.location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_CUDA(simulated_driver().cuMemAddressReserve(&address, bytes, 0, 0, 0));
    EXPECT_CUDA(simulated_driver().cuMemMap(address, bytes, 0, handle, 0));
    EXPECT_CUDA(simulated_driver().cuMemSetAccess(address, bytes, &own, 1));
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const std::uint64_t words[2]{i + 1, 0};
      EXPECT_CUDA(simulated_driver().cuMemcpyHtoD_v2(address + i * kBlockBytes, words, sizeof words));
    }
    EXPECT_CUDA(simulated_driver().cuMemUnmap(address, bytes));
    EXPECT_CUDA(simulated_driver().cuMemAddressFree(address, bytes));
    int fd = -1;
    EXPECT_CUDA(simulated_driver().cuMemExportToShareableHandle(&fd, handle,
                                                                cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    const os::FileDescriptor memory(fd);
    alignas(8) std::byte buffer[wire::kMostMoverBytes];
    EXPECT_TRUE(os::send_message(seat.get(),
                                 wire::encode_for_mover(wire::MoverSave{.ticket = 1, .chunk = 1, .blocks = blocks},
                                                        std::vector<wire::MoverBlock>(blocks), buffer),
                                 memory.get()));
    EXPECT_CUDA(simulated_driver().cuMemRelease(handle));  // the descriptor keeps the memory
  }
  std::optional<wire::MoverMoved> save(const os::FileDescriptor& seat, std::uint32_t blocks) {
    ask_to_save(seat, blocks);
    return answer(seat);
  }

  // Asks, and waits for the answer.
  std::uint32_t still_gpus() {
    say(wire::MoverAsked{});
    std::optional<std::uint32_t> still;
    EXPECT_TRUE(sim::eventually([&] {
      const auto message = heard();
      if (message && std::holds_alternative<wire::MoverAnswered>(*message))
        still = std::get<wire::MoverAnswered>(*message).still_gpus;
      return still.has_value();
    }));
    return still.value_or(UINT32_MAX);
  }

  static inline std::atomic<bool> stands_still_{false};  // a worker that imports memory does
  const std::string door_ = "@gpumux-mover-test-" + std::to_string(::getpid());
  os::FileDescriptor books_{::memfd_create("books", MFD_CLOEXEC)};
  os::FileDescriptor daemon_;
  std::thread thread_;
  base::Status status_;
  std::uint64_t given_ = 0;
};

TEST_F(ProcessTest, ItAnswersTheDaemonAlsoWhileItStandsStillOnAGpu) {
  EXPECT_EQ(still_gpus(), 0u);
  say(wire::MoverBooks{.slots = kSlots, .slots_per_chunk = kPerChunk}, books_.get());
  const os::FileDescriptor seat = open_seat(7);
  EXPECT_TRUE(sim::eventually([this] { return still_gpus() == 0; }));
  stands_still_ = true;
  ask_to_save(seat, 6);
  // It stands still when it imports the memory. Until then it goes on.
  EXPECT_TRUE(sim::eventually([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return still_gpus() == 1;
  }));
  stands_still_ = false;
  stands_still_.notify_all();
  EXPECT_TRUE(sim::eventually([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return still_gpus() == 0;
  }));
}

TEST_F(ProcessTest, ItAsksForHostMemoryAndFreesWhatASeatHad) {
  say(wire::MoverBooks{.slots = kSlots, .slots_per_chunk = kPerChunk}, books_.get());
  const os::FileDescriptor seat = open_seat(7);
  const auto saved = save(seat, 6);
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->result, wire::MoverResult::kDone);
  EXPECT_EQ(saved->copied + saved->constant, 6 * kBlockBytes);
  const Books books = Books::open(books_.get(), kSlots, kPerChunk).value();
  EXPECT_EQ(books.bytes_of(7), saved->copied);
  say(wire::MoverSeatGone{.seat = 7});
  EXPECT_TRUE(sim::eventually([&] { return books.bytes_of(7) == 0; }));
}

TEST_F(ProcessTest, ItStaysForItsSeatsWhenTheDaemonIsGone) {
  say(wire::MoverBooks{.slots = kSlots, .slots_per_chunk = kPerChunk}, books_.get());
  for (; given_ < 4; ++given_) give_host_memory(given_);
  os::FileDescriptor seat = open_seat(1);
  ASSERT_TRUE(save(seat, 2));
  daemon_.reset();
  const auto saved = save(seat, 2);
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->result, wire::MoverResult::kDone);
  seat.reset();
  end();
  EXPECT_TRUE(status_);
}

TEST_F(ProcessTest, TheNextDaemonGetsAllThatTheLastOneGave) {
  say(wire::MoverBooks{.slots = kSlots, .slots_per_chunk = kPerChunk}, books_.get());
  give_host_memory(given_++);
  const os::FileDescriptor seat = open_seat(7);
  const auto saved = save(seat, 2);
  ASSERT_TRUE(saved);
  const std::uint64_t given = given_;
  daemon_ = std::move(*os::connect_seqpacket(door_));
  std::uint64_t chunks = 0;
  std::vector<std::uint64_t> seats;
  std::optional<Books> books;
  EXPECT_TRUE(sim::eventually([&] {
    std::byte buffer[base::kMaxMessageBytes];
    const auto received = os::receive_message(daemon_.get(), buffer);
    if (!received || received->bytes == 0) return false;
    const auto message = wire::decode_to_movers_daemon(std::span(buffer, received->bytes)).value();
    if (std::holds_alternative<wire::MoverBooks>(message))
      books.emplace(Books::open(received->fd.get(), kSlots, kPerChunk).value());
    if (const auto* const host = std::get_if<wire::MoverHost>(&message)) {
      EXPECT_EQ(host->bytes, kPerChunk * kBlockBytes);
      EXPECT_TRUE(received->fd);
      ++chunks;
    }
    if (const auto* const one = std::get_if<wire::MoverSeat>(&message)) seats.push_back(one->seat);
    return std::holds_alternative<wire::MoverReady>(message);
  }));
  EXPECT_EQ(chunks, given);
  EXPECT_EQ(seats, std::vector<std::uint64_t>{7});
  ASSERT_TRUE(books);
  EXPECT_EQ(books->bytes_of(7), saved->copied);
  // It serves this one as it did the last one.
  say(wire::MoverSeatGone{.seat = 7});
  EXPECT_TRUE(sim::eventually([&] { return books->bytes_of(7) == 0; }));
}

// Attack: the next daemon is stopped when it has connected. The workers do not wait for it.
TEST_F(ProcessTest, TheNextDaemonReadsNothing) {
  say(wire::MoverBooks{.slots = kSlots, .slots_per_chunk = kPerChunk}, books_.get());
  const os::FileDescriptor seat = open_seat(1);
  constexpr SeatNumber kSeats = 10'000;  // more than a socket holds
  for (SeatNumber number = 2; number < kSeats; ++number) {
    const auto one = wire::encode(wire::MoverSeat{.seat = number, .most = UINT64_MAX});
    ASSERT_TRUE(sim::eventually([&] { return os::send_message(daemon_.get(), one.bytes()).has_value(); }));
  }
  ASSERT_TRUE(save(seat, 1));  // all of these are heard
  const os::FileDescriptor last = std::move(daemon_);
  daemon_ = std::move(*os::connect_seqpacket(door_));
  ASSERT_TRUE(sim::eventually([&] {  // it has been accepted
    std::byte byte[64];
    return ::recv(last.get(), byte, sizeof byte, MSG_DONTWAIT) == 0;
  }));
  const auto start = sim::now();
  ask_to_save(seat, 2 * kPerChunk);
  alignas(8) std::byte buffer[wire::kMostMoverBytes];
  base::Result<os::Received> received;
  ASSERT_TRUE(sim::eventually([&] {
    received = os::receive_message(seat.get(), buffer);
    return received.has_value();
  }));
  EXPECT_EQ(wire::decode_from_mover(std::span(buffer, received->bytes))->message.result, wire::MoverResult::kNoHost);
  EXPECT_LT(sim::now() - start, std::chrono::seconds(5));
  // It reads on.
  std::size_t seats = 0;
  EXPECT_TRUE(sim::eventually([&] {
    const auto message = heard();
    if (message && std::holds_alternative<wire::MoverSeat>(*message)) ++seats;
    return message && std::holds_alternative<wire::MoverReady>(*message);
  }));
  EXPECT_EQ(seats, kSeats - 1);
  EXPECT_TRUE(answer(seat));
}

TEST_F(ProcessTest, AGpuThatIsNotThereHasNoSeat) {
  say(wire::MoverBooks{.slots = kSlots, .slots_per_chunk = kPerChunk}, books_.get());
  EXPECT_FALSE(ask_for({.seat = 1, .most = UINT64_MAX, .connects = 1}));
}

TEST_F(ProcessTest, ADaemonThatTalksNonsenseIsLeft) {
  say(wire::MoverHost{.number = 0, .bytes = kBlockBytes});
  thread_.join();
  EXPECT_FALSE(status_);
}

}  // namespace
}  // namespace gpumux::mover

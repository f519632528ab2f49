// SPDX-License-Identifier: Apache-2.0
// The pager thread's reports, message by message. Goal: the daemon knows at each moment how much memory the seat has.
// Method: the process's real tenant on the simulated driver. The test itself is the daemon at the other end, and waits
// for the messages that it should get.
#include "shim/memory/pager_thread.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <future>
#include <numeric>
#include <optional>

#include "os/futex.h"
#include "os/runtime_dir.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "pager/pager_test_support.h"
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"
#include "shim/process/real_driver.h"
#include "shim/tenant/tenant.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::shim {

constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

void load_real_driver() {
  g_driver = pager::faulty_driver();
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

using namespace cuda;
using pager::kMebibyte;

constexpr int kPatienceMs = 60'000;  // until something that never comes is called missing
constexpr std::uint64_t kBlock = 2 * kMebibyte;
constexpr std::size_t kBlocks = 12;
constexpr std::uint64_t kAll = kBlocks * kBlock;

// One daemon's end of the only connection. Messages that no test waits for are read and ignored. The seat is
// connected to a mover.
class DaemonEnd {
 public:
  explicit DaemonEnd(const std::string& path) : listening_(*os::listen_seqpacket(path, 0600, 4)) { mover_.start(); }
  ~DaemonEnd() {
    if (page_ != nullptr) ::munmap(page_, wire::kLeasePageBytes);
  }

  // The next message of this kind that is as it should be.
  template <class Message, class Predicate>
  Message expect(Predicate is_it) {
    for (;;) {
      const auto message = receive();
      if (!message) return {};
      if (const auto* const found = std::get_if<Message>(&*message); found != nullptr && is_it(*found)) return *found;
    }
  }
  template <class Message>
  Message expect() {
    return expect<Message>([](const Message&) { return true; });
  }
  // This much of its memory is there, and nothing moves. (While the last of it is being restored it counts as there.)
  wire::Memory expect_resident(std::uint64_t bytes) {
    return expect<wire::Memory>([&](const wire::Memory& memory) {
      return memory.resident == bytes && (memory.flags & wire::kMemoryBusy) == 0;
    });
  }

  template <class Message>
  void send(const Message& message, int fd = -1) {
    ASSERT_TRUE(os::send_message(socket_.get(), wire::encode(message).bytes(), fd));
  }
  void give_room(std::uint64_t room, std::uint32_t ticket = 0) {
    room_ = room;
    send(wire::Room{
        .slot = 0, .sequence = ++sequence_, .room = room, .commitment = 2 * kAll, .total = 4 * kAll, .ticket = ticket});
  }
  void grant() { store(++epoch_, wire::kGranted | wire::kExclusive); }
  void revoke() {
    store(epoch_, 0);
    send(wire::Revoke{.slot = 0, .epoch = epoch_});
    expect<wire::Drained>();
  }
  // A seat reports its memory, and gets this room.
  void open_seat(std::uint64_t room) {
    const auto open = expect<wire::SeatOpen>();
    sequence_ = 0;
    send(wire::SeatOpened{.slot = 0, .gpu_index = 0});
    if (open.has_mover == 0) send(wire::MoverOpened{.slot = 0, .number = 1}, mover_.connect(1).get());
    give_room(room);
  }
  std::uint64_t epoch() const { return epoch_; }
  // The daemon is gone, and another one there.
  void break_off() { socket_.reset(); }

 private:
  std::optional<wire::TenantMessage> receive() {
    for (;;) {
      std::array<pollfd, 2> waiting{{{listening_.get(), POLLIN, 0}, {socket_ ? socket_.get() : -1, POLLIN, 0}}};
      if (::poll(waiting.data(), waiting.size(), kPatienceMs) <= 0) {
        ADD_FAILURE() << "it never comes";
        return std::nullopt;
      }
      if ((waiting[0].revents & POLLIN) != 0)
        socket_ = os::FileDescriptor(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if ((waiting[1].revents & (POLLIN | POLLHUP)) == 0) continue;
      std::array<std::byte, base::kMaxMessageBytes> buffer;
      auto received = os::receive_message(socket_.get(), buffer);
      if (!received || received->bytes == 0) {
        ADD_FAILURE() << "the tenant has gone";
        return std::nullopt;
      }
      const auto message = wire::decode_from_tenant(std::span(buffer).first(received->bytes));
      if (!message) {
        ADD_FAILURE() << message.error().message();
        return std::nullopt;
      }
      if (std::holds_alternative<wire::Hello>(*message)) welcome(received->fd.get());
      // Asked before it had heard of its room: the answer is the same.
      if (const auto* const wanted = std::get_if<wire::RoomWanted>(&*message)) give_room(room_, wanted->ticket);
      return *message;
    }
  }
  void welcome(int page) {
    if (page_ == nullptr) {
      page_ = static_cast<wire::LeasePage*>(
          ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0));
    }
    send(wire::Welcome{.protocol = wire::kProtocolVersion, .tenant = 1});
  }
  void store(std::uint64_t epoch, std::uint32_t flags) {
    wire::LeaseSlot& words = page_->slots[0];
    words.epoch.store(epoch, std::memory_order_relaxed);
    word_sequence_ += wire::kSequenceOne;
    words.word.store(flags | word_sequence_, std::memory_order_release);
    os::futex_wake(words.word, os::FutexScope::kShared);
  }

  const os::FileDescriptor listening_;
  os::FileDescriptor socket_;
  wire::LeasePage* page_ = nullptr;
  std::uint32_t sequence_ = 0;
  std::uint64_t room_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint32_t word_sequence_ = 0;
  pager::HostFiles files_;
  const os::FileDescriptor books_ = pager::TestMover::make_books();
  pager::TestMover mover_{pager::faulty_mover_driver(), files_, books_.get()};
};

// One tenant for the whole process, as in a program; so one test, in parts that follow each other.
TEST(PagerThread, TellsWhatItHas) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::setenv("GPUMUX_RUNTIME_DIR", directory.path().c_str(), 1), 0);
  ASSERT_EQ(::setenv("GPUMUX_ON_DAEMON_LOSS", "wait", 1), 0);
  ASSERT_EQ(::setenv("GPUMUX_VERIFY", "1", 1), 0);
  ASSERT_EQ(::unsetenv("GPUMUX_DISABLE"), 0);
  ASSERT_TRUE(std::filesystem::create_directory(directory.file(os::kTenantDir)));
  const std::string path = directory.file(os::kTenantSocket);
  DaemonEnd daemon(path);
  ASSERT_EQ(driver().cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  std::array<CUdeviceptr, kBlocks> blocks{};
  const auto in_program = [&](auto work) {
    return std::async(std::launch::async, [context, work] {
      ASSERT_EQ(driver().cuCtxSetCurrent(context), CUDA_SUCCESS);
      work();
      ASSERT_EQ(driver().cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    });
  };

  // Born evicted: there is a seat, and neither lease nor room.
  auto allocating = in_program([&blocks] {
    for (CUdeviceptr& block : blocks) ASSERT_EQ(hooks::cuMemAlloc_v2(&block, kBlock), CUDA_SUCCESS);
  });
  daemon.open_seat(0);
  daemon.expect<wire::Memory>([](const wire::Memory& memory) { return memory.evicted == kAll; });
  allocating.get();

  // It goes as far as its room allows, in several steps, and then there is nothing to be done: that is told.
  daemon.give_room(kAll - kBlock);
  EXPECT_EQ(daemon.expect_resident(kAll - kBlock).evicted, kBlock);
  daemon.give_room(kAll);
  EXPECT_EQ(daemon.expect_resident(kAll).evicted, 0u);

  // Blocks of which no two words are alike: they have to be copied.
  const auto write = [&](std::uint32_t more) {
    daemon.grant();
    in_program([&blocks, more] {
      std::vector<std::uint32_t> words(kBlock / 4);
      for (const CUdeviceptr block : blocks) {
        std::iota(words.begin(), words.end(), static_cast<std::uint32_t>(block) + more);
        ASSERT_EQ(submit(at_stream(nullptr, StreamVariant::kLegacy), driver().cuMemcpyHtoD_v2, block,
                         static_cast<const void*>(words.data()), kBlock),
                  CUDA_SUCCESS);
      }
    }).get();
    daemon.revoke();
  };
  write(0);
  const auto evict_and_restore = [&daemon] {
    daemon.give_room(0);
    daemon.expect<wire::Memory>([](const wire::Memory& memory) { return memory.evicted == kAll; });
    daemon.give_room(kAll);
    return daemon.expect_resident(kAll);
  };
  EXPECT_EQ(evict_and_restore().host_clean, kAll) << "it keeps copies of what does not change";
  // A hash kernel that does not run leaves the results of before, which are wrong now. A person is told.
  daemon.give_room(kAll - kBlock);
  daemon.expect_resident(kAll - kBlock);
  daemon.give_room(kAll);
  daemon.expect_resident(kAll);
  write(1);
  pager::the_faults()["cuLaunchKernel"]->fail_all(CUDA_SUCCESS);
  daemon.give_room(kAll - kBlock);
  daemon.expect<wire::Note>([](const wire::Note& note) {
    return note.severity == wire::Severity::kError && wire::text_of(note.text).find("GPUMUX_VERIFY") == 0;
  });
  pager::clear_faults();
  daemon.give_room(kAll);
  daemon.expect_resident(kAll);
  write(0);
  // The next daemon: the connection to the mover is still there.
  daemon.break_off();
  daemon.open_seat(kAll);
  EXPECT_EQ(evict_and_restore().host_clean, kAll);

  daemon.grant();
  in_program([&blocks] {
    std::vector<std::uint32_t> expected(kBlock / 4);
    std::vector<std::uint32_t> words(kBlock / 4);
    for (const CUdeviceptr block : blocks) {
      std::iota(expected.begin(), expected.end(), static_cast<std::uint32_t>(block));
      ASSERT_EQ(driver().cuMemcpyDtoH_v2(words.data(), block, kBlock), CUDA_SUCCESS);
      ASSERT_EQ(words, expected);
    }
  }).get();

  // The driver fails to bring it back, at every try. The program has its lease, and waits; it is not left waiting.
  daemon.revoke();
  daemon.give_room(0);
  daemon.expect<wire::Memory>([](const wire::Memory& memory) { return memory.evicted == kAll; });
  constexpr base::Duration kGiveUpAfter = std::chrono::milliseconds(300);
  tenant()->memories().pager_thread().give_up_after(kGiveUpAfter);
  pager::Fault& copies = *pager::the_faults()["cuMemcpyHtoDAsync_v2"];
  copies.clear();
  copies.fail_all(CUDA_ERROR_UNKNOWN);
  const base::TimePoint failing_since = os::now();
  daemon.give_room(kAll);
  daemon.grant();
  auto waiting = in_program([&blocks] {
    std::uint32_t word = 0;
    EXPECT_NE(submit(at_stream(nullptr, StreamVariant::kLegacy), driver().cuMemcpyDtoH_v2, static_cast<void*>(&word),
                     blocks[0], sizeof word),
              CUDA_SUCCESS);
  });
  daemon.expect<wire::Note>([](const wire::Note& note) { return note.severity == wire::Severity::kError; });
  ASSERT_EQ(waiting.wait_for(std::chrono::milliseconds(kPatienceMs)), std::future_status::ready);
  EXPECT_GE(os::now() - failing_since, kGiveUpAfter) << "it is tried for so long";
  EXPECT_GT(copies.calls, 1u);
  pager::clear_faults();

  for (const CUdeviceptr block : blocks) EXPECT_EQ(hooks::cuMemFree_v2(block), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpumux::shim

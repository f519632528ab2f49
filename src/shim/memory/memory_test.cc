// SPDX-License-Identifier: Apache-2.0
// Goal: whatever room the daemon gives and takes, and whatever the driver refuses, a program reads what it has written,
// gets memory or CUDA_ERROR_OUT_OF_MEMORY, and gets on; and the seat never has more than its bounds allow.
//
// Method: the process's real tenant (agent, drainer, mover, gate, pager) on the simulated driver, whose kernels and
// copies fault on memory that is not there. A daemon grants, revokes and changes the room as fast as it can, lends host
// memory in its moods, and checks each report against the bounds that it has set. Threads allocate, free, write, copy,
// capture, replay and verify meanwhile. GPUMUX_TEST_SEED repeats a run (as far as threads allow), GPUMUX_TEST_ROOMS
// and GPUMUX_TEST_LEASES say how many changes of room and leases it lasts.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <deque>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

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
  g_driver.cuCtxSynchronize = [] {
    ADD_FAILURE() << "a context was synchronised, which breaks captures that begin meanwhile";
    return pager::faulty_driver().cuCtxSynchronize();
  };
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

using namespace std::chrono_literals;
using namespace cuda;
using pager::kMebibyte;

base::TimePoint now() { return os::SystemClock().now(); }

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

unsigned seed() {
  static const unsigned value = [] {
    const auto chosen = static_cast<unsigned>(from_environment("GPUMUX_TEST_SEED", std::random_device()()));
    std::printf("seed: GPUMUX_TEST_SEED=%u\n", chosen);
    return chosen;
  }();
  return value;
}

// What the simulated GPU has for one process, beside its context.
constexpr std::uint64_t kCapacity = 48 * kMebibyte;
constexpr std::uint64_t kCommitment = 44 * kMebibyte;
constexpr std::uint64_t kHostBudget = 256 * kMebibyte;

enum class Phase { kIdle, kHolding, kRevoked, kDrained };

// Whether the driver is sure to be without memory for as long as it takes to claim it, while the room stays. Beside
// what a sanitizer takes it was not in one of three runs.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeetsClaims = false;
#else
constexpr bool kMeetsClaims = true;
#endif

class RoomDaemon {
 public:
  explicit RoomDaemon(const std::string& path) : path_(path), random_(seed()) {
    thread_ = std::thread([this] { run(); });
  }
  ~RoomDaemon() {
    stopping_ = true;
    thread_.join();
    if (page_ != nullptr) ::munmap(page_, wire::kLeasePageBytes);
  }

  // Grants what is asked for and gives all the room there is, and does nothing else.
  void calm(bool is) { calm_ = is; }

  // Under a sanitizer, or on a busy machine, memory moves too slowly for these moods.
  void slow_down() { slowness_ = std::min(2 * slowness_, 64u); }

  std::string complaints() {
    const std::lock_guard lock(mutex_);
    return complaints_;
  }
  std::uint64_t rooms() const { return rooms_; }
  std::uint64_t grants() const { return grants_; }
  std::uint64_t reports() const { return reports_; }
  std::uint64_t refusals() const { return refusals_; }
  std::uint64_t lent_again() const { return lent_again_; }
  std::uint64_t forgotten() const { return forgotten_; }
  std::uint64_t claims() const { return claims_; }
  wire::Memory last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  void complain(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (complaints_.size() < 4000) complaints_ += what + "\n";
  }
  unsigned dice(unsigned sides) { return static_cast<unsigned>(random_() % sides); }

  void run() {
    auto listening = os::listen_seqpacket(path_, 0600, 4);
    if (!listening) return complain(listening.error().message());
    while (!stopping_) {
      std::array<pollfd, 2> waiting{{{listening->get(), POLLIN, 0}, {socket_ ? socket_.get() : -1, POLLIN, 0}}};
      const timespec wait{0, 50'000};
      ::ppoll(waiting.data(), waiting.size(), &wait, nullptr);
      if ((waiting[0].revents & POLLIN) != 0) {
        socket_ = os::FileDescriptor(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        is_open_ = false;
      }
      if ((waiting[1].revents & (POLLIN | POLLHUP)) != 0) receive();
      if (!socket_ || !is_open_) continue;
      if (now() >= next_whim_) act();
      if (!calm_ && now() >= next_room_) change_room();
      // Gone for a moment: everything is kept, and told to the next connection.
      if (!calm_ && dice(20'000) == 0) socket_.reset();
    }
  }

  void receive() {
    std::array<std::byte, base::kMaxMessageBytes> buffer;
    while (socket_) {
      auto received = os::receive_message(socket_.get(), buffer);
      if (!received && received.error().system_errno == EAGAIN) return;
      if (!received || received->bytes == 0) return socket_.reset();
      const auto message = wire::decode_from_tenant(std::span(buffer).first(received->bytes));
      if (!message) {
        complain(message.error().message());
        continue;
      }
      if (std::holds_alternative<wire::Hello>(*message)) {
        if (page_ == nullptr) {
          page_ = static_cast<wire::LeasePage*>(
              ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, received->fd.get(), 0));
        }
        lent_.clear();
        kept_.clear();
        told_ = 0;
        send(wire::Welcome{.protocol = wire::kProtocolVersion, .tenant = 1});
        continue;
      }
      std::visit([this](const auto& m) { on(m); }, *message);
    }
  }

  template <class Message>
  void send(const Message& message, int fd = -1) {
    if (socket_ && !os::send_message(socket_.get(), wire::encode(message).bytes(), fd)) socket_.reset();
  }

  // ---- memory

  void give_room(std::uint64_t room, std::uint32_t refused = 0) {
    // What was in force may still be until the new one is acknowledged.
    ++sequence_;
    given_.push_back({sequence_, room});
    ++rooms_;
    send(wire::Room{.slot = 0,
                    .sequence = sequence_,
                    .room = room,
                    .commitment = kCommitment,
                    .total = kCapacity,
                    .ticket = ticket_,
                    .refused = refused});
  }

  // In bursts that nothing can follow, and between them long enough that memory moves.
  void change_room() {
    next_room_ = now() + std::chrono::microseconds(dice(10) != 0 ? 0 : slowness_ * dice(30'000));
    switch (dice(4)) {
      case 0: return give_room(0);
      case 1: return give_room(kCapacity);
      default: return give_room(dice(kCapacity / kMebibyte) * kMebibyte);
    }
  }

  void on(const wire::Memory& memory) {
    ++reports_;
    std::uint64_t on_gpu = memory.resident;
    for (const std::uint64_t bytes : memory.unpageable) on_gpu += bytes;
    // The most that it may have: by a bound since the one that was in force the last time, or what it had then.
    std::uint64_t most = had_;
    for (const Given& given : given_) most = std::max(most, given.room);
    while (!given_.empty() && given_.front().sequence < memory.room_sequence) given_.pop_front();
    if (memory.room_sequence != 0 && on_gpu > most) {
      complain("has " + std::to_string(on_gpu) + " where it may have " + std::to_string(most));
    }
    if (memory.room_sequence != 0 && memory.allocated > kCommitment) complain("has allocated more than it may");
    if (memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kPool)] != 0) complain("a pool is the driver's");
    had_ = on_gpu;
    // All has moved that had to.
    const bool is_settled = memory.room_sequence == sequence_ && !given_.empty() && on_gpu <= given_.back().room;
    if (phase_ == Phase::kDrained && is_settled && !calm_) next_whim_ = now();
    if (memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kOther)] != 0) ++claims_;
    const std::lock_guard lock(mutex_);
    last_ = memory;
  }

  void on(const wire::RoomWanted& wanted) {
    if (wanted.ticket == 0) complain("a wish without a ticket");
    ticket_ = wanted.ticket;
    const bool refuse = wanted.room > kCapacity || wanted.commitment > kCommitment;
    refusals_ += refuse ? 1 : 0;
    give_room(refuse ? kCapacity : std::max(wanted.room, kCapacity / 2), refuse ? 1 : 0);
  }

  void on(const wire::HostWanted& wanted) {
    if (wanted.bytes == 0 || wanted.bytes > wire::kMaxHostChunkBytes) complain("an odd wish for host memory");
    constexpr std::uint64_t kBytes = 32 * kMebibyte;
    if (!calm_ && dice(4) == 0) return send(wire::HostLent{.slot = wanted.slot});
    if (!kept_.empty() && (dice(4) != 0 || (host_chunks() + 1) * kBytes > kHostBudget)) {
      const std::uint64_t id = *kept_.begin();
      kept_.erase(kept_.begin());
      lent_.insert(id);
      ++lent_again_;
      return send(wire::HostLent{.slot = wanted.slot, .id = id, .bytes = kBytes});
    }
    if ((host_chunks() + 1) * kBytes > kHostBudget) return send(wire::HostLent{.slot = wanted.slot});
    const os::FileDescriptor memory(::memfd_create("host", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(kBytes)), 0);
    lent_.insert(++last_id_);
    send(wire::HostLent{.slot = wanted.slot, .id = last_id_, .bytes = kBytes}, memory.get());
  }
  void on(const wire::HostReturned& returned) {
    if (returned.id == 0 || returned.id > last_id_) complain("returns what it was not lent");
    if (lent_.erase(returned.id) == 0) return;  // of an earlier connection
    if (returned.kept == 0) complain("does not keep host memory, or has not got what it has kept");
    kept_.insert(returned.id);
    if (told_ == 0 && dice(4) == 0) forget();
  }
  void forget() {
    wire::HostForget message{.slot = 0};
    while (!kept_.empty() && message.count < 1 + dice(4)) {
      message.ids[message.count++] = *kept_.begin();
      kept_.erase(kept_.begin());
    }
    told_ = message.count;
    send(message);
  }
  void on(const wire::HostForgotten&) {
    if (std::exchange(told_, 0) == 0) complain("forgets what it was not told to");
    ++forgotten_;
  }
  std::uint64_t host_chunks() const { return lent_.size() + kept_.size() + told_; }

  // ---- leases

  void on(const wire::SeatOpen& open) {
    if (open.slot != 0) complain("another slot");
    wanted_ = false;
    switch (open.state) {
      case wire::SeatState::kHolding: phase_ = Phase::kHolding; break;
      case wire::SeatState::kDraining: phase_ = Phase::kRevoked; break;
      default: phase_ = Phase::kIdle;
    }
    is_open_ = true;
    // This connection counts from anew. What was given before may still be in force.
    std::uint64_t most = had_;
    for (const Given& given : given_) most = std::max(most, given.room);
    had_ = most;
    given_.clear();
    sequence_ = 0;
    ticket_ = 0;
    send(wire::SeatOpened{.slot = 0, .gpu_index = 0});
    give_room(kCapacity);
  }
  void on(const wire::Request&) { wanted_ = true; }
  void on(const wire::Drained& drained) {
    if (drained.epoch != epoch_) return;
    if (drained.poisoned != 0) complain("the context is poisoned");
    phase_ = Phase::kDrained;
    if (!calm_ && dice(2) == 0) give_room(0);
    // Long enough to be evicted in, as a rule.
    next_whim_ = now() + std::chrono::microseconds(dice(3) == 0 ? dice(2000) : slowness_ * dice(60'000));
  }
  template <class Other>
  void on(const Other&) {}

  void act() {
    wire::LeaseSlot& words = page_->slots[0];
    next_whim_ = now() + std::chrono::microseconds(dice(3000));
    switch (phase_) {
      case Phase::kIdle:
      case Phase::kDrained:
        if (!wanted_ && dice(20) != 0) break;
        wanted_ = false;
        phase_ = Phase::kHolding;
        ++grants_;
        words.epoch.store(++epoch_, std::memory_order_relaxed);
        store(wire::kGranted | wire::kExclusive);
        break;
      case Phase::kHolding:
        if (calm_) {
          give_room(kCapacity);
          break;
        }
        if (dice(3) == 0) words.word.fetch_or(wire::kContended);
        if (dice(3) != 0) break;
        store(0);
        phase_ = Phase::kRevoked;
        send(wire::Revoke{.slot = 0, .epoch = epoch_});
        if (dice(4) == 0) send(wire::PrepareSwapOut{.slot = 0, .epoch = epoch_, .bytes = kCapacity});
        if (dice(8) == 0) {
          send(wire::HostSpare{.bytes = dice(2) == 0 ? ~std::uint64_t{0} : dice(64) * kMebibyte,
                               .awaited = dice(2) * dice(64) * kMebibyte});
        }
        break;
      case Phase::kRevoked:
        if (dice(4) != 0) break;
        phase_ = Phase::kHolding;
        words.epoch.store(++epoch_, std::memory_order_relaxed);
        store(wire::kGranted | wire::kExclusive);
        send(wire::Reopen{.slot = 0, .epoch = epoch_});
        break;
    }
  }

  void store(std::uint32_t flags) {
    word_sequence_ += wire::kSequenceOne;
    page_->slots[0].word.store(flags | word_sequence_, std::memory_order_release);
    os::futex_wake(page_->slots[0].word, os::FutexScope::kShared);
  }

  struct Given {
    std::uint32_t sequence;
    std::uint64_t room;
  };

  const std::string path_;
  std::mt19937 random_;
  os::FileDescriptor socket_;
  wire::LeasePage* page_ = nullptr;
  bool is_open_ = false;
  bool wanted_ = false;
  Phase phase_ = Phase::kIdle;
  std::uint64_t epoch_ = 0;
  std::uint32_t word_sequence_ = 0;
  base::TimePoint next_whim_{};
  base::TimePoint next_room_{};
  std::uint32_t sequence_ = 0;
  std::uint32_t ticket_ = 0;
  std::deque<Given> given_;
  std::uint64_t had_ = 0;
  std::set<std::uint64_t> lent_, kept_;  // host memory, on this connection
  std::uint64_t told_ = 0;               // so many chunks are to be forgotten
  std::uint64_t last_id_ = 0;
  std::atomic<std::uint64_t> lent_again_{0}, forgotten_{0}, claims_{0};
  std::atomic<std::uint64_t> rooms_{0}, grants_{0}, reports_{0}, refusals_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> calm_{false};
  std::atomic<unsigned> slowness_{1};
  std::mutex mutex_;
  std::string complaints_;
  wire::Memory last_;
  std::thread thread_;
};

// ---- the program

template <auto Member, class... Arguments>
CUresult gated(CUstream stream, Arguments... arguments) {
  return submit(Entry::cuMemcpy, at_stream(stream, StreamVariant::kLegacy), driver().*Member, arguments...);
}

class Program {
 public:
  Program(CUcontext context, CUmodule module, unsigned thread_seed) : context_(context), random_(thread_seed) {
    EXPECT_EQ(simulated().cuCtxSetCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(simulated().cuModuleGetFunction(&increment_, module, "gpumux_increment"), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~Program() {
    while (!live_.empty()) free_one();
    EXPECT_EQ(hooks::cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
  }

  void step() {
    const unsigned what = pick(12);
    if (live_.empty() || what < 3) return pick(3) == 0 ? create() : allocate();
    const std::size_t i = pick(static_cast<unsigned>(live_.size()));
    Live& live = live_[i];
    switch (what) {
      case 3: return free_one();
      case 4:
      case 5: return write(live);
      case 6: return replay(live);
      case 7: return look(live);
      case 8: return verify(live);
      case 9: return live.handle != 0 ? move(live) : increment(live);
      default: return increment(live);
    }
  }
  void verify_all() {
    for (Live& live : live_) verify(live);
  }

  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> verified{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> created{0};  // handles

 private:
  struct Live {
    CUdeviceptr address = 0;
    std::vector<std::uint32_t> words;
    bool is_in_order = false;                 // from a pool
    CUmemGenericAllocationHandle handle = 0;  // mapped by the program itself
    bool exportable = false;

    std::size_t bytes() const { return words.size() * 4; }
  };
  static const Driver& simulated() { return pager::simulated_driver(); }
  unsigned pick(unsigned below) { return static_cast<unsigned>(random_() % below); }

  void allocate() {
    if (live_.size() >= 12) return free_one();
    const std::uint64_t words = 1 + pick(pick(2) == 0 ? 20'000 : 700'000);
    CUdeviceptr address = 0;
    const bool is_in_order = pick(3) == 0;
    const CUresult result = again([&] {
      return is_in_order ? hooks::cuMemAllocAsync(&address, words * 4, stream_)
                         : hooks::cuMemAlloc_v2(&address, words * 4);
    });
    if (result != CUDA_SUCCESS) {
      EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
      refused.fetch_add(1);
      return free_one();
    }
    live_.push_back({.address = address, .words = std::vector<std::uint32_t>(words), .is_in_order = is_in_order});
    write(live_.back());
  }
  void free_one() {
    if (live_.empty()) return;
    const std::size_t i = pick(static_cast<unsigned>(live_.size()));
    if (pick(3) == 0) verify(live_[i]);
    if (live_[i].handle != 0) {
      const bool early = pick(2) == 0;  // mapped memory lives on
      if (early) {
        EXPECT_EQ(hooks::cuMemRelease(live_[i].handle), CUDA_SUCCESS);
      }
      unmap(live_[i]);
      if (!early) {
        EXPECT_EQ(hooks::cuMemRelease(live_[i].handle), CUDA_SUCCESS);
      }
    } else if (live_[i].is_in_order && pick(4) != 0) {
      // In the order of the stream: behind increments that may still run, while others look for memory.
      EXPECT_EQ(hooks::cuMemFreeAsync(live_[i].address, stream_), CUDA_SUCCESS);
    } else {
      EXPECT_EQ(hooks::cuMemFree_v2(live_[i].address), CUDA_SUCCESS);
    }
    if (pick(20) == 0) change_pool();
    std::swap(live_[i], live_.back());
    live_.pop_back();
  }
  void change_pool() {
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(driver().cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    std::uint64_t threshold = pick(2) == 0 ? 0 : UINT64_MAX;
    EXPECT_EQ(hooks::cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
    EXPECT_EQ(hooks::cuMemPoolTrimTo(pool, pick(8) * kMebibyte), CUDA_SUCCESS);
    synchronised(Anywhere());
  }
  // The driver may refuse any call for reasons of its own (this test's). The program is told, and then nothing has
  // changed: it is made again.
  template <class Call>
  static CUresult again(Call call) {
    CUresult result = call();
    for (int i = 0; i < 100 && result == CUDA_ERROR_UNKNOWN; ++i) result = call();
    return result;
  }
  // What a program does that maps its memory by itself.
  template <class Call>
  static void insist(Call call) {
    EXPECT_EQ(again(call), CUDA_SUCCESS);
  }
  void create() {
    if (live_.size() >= 12) return free_one();
    const std::size_t bytes = 2 * kMebibyte * (1 + pick(3));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const bool exportable = pick(5) == 0;
    if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = hooks::cuMemCreate(&handle, bytes, &properties, 0);
    if (result != CUDA_SUCCESS) {
      EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
      refused.fetch_add(1);
      return free_one();
    }
    live_.push_back({.words = std::vector<std::uint32_t>(bytes / 4), .handle = handle, .exportable = exportable});
    map(live_.back());
    write(live_.back());
    created.fetch_add(1);
  }
  void map(Live& live) {
    insist([&] { return hooks::cuMemAddressReserve(&live.address, live.bytes(), 0, 0, 0); });
    insist([&] { return hooks::cuMemMap(live.address, live.bytes(), 0, live.handle, 0); });
    const CUmemAccessDesc rights{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    insist([&] { return hooks::cuMemSetAccess(live.address, live.bytes(), &rights, 1); });
  }
  void unmap(Live& live) {
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    insist([&] { return hooks::cuMemUnmap(live.address, live.bytes()); });
    insist([&] { return hooks::cuMemAddressFree(live.address, live.bytes()); });
  }
  void move(Live& live) {
    unmap(live);
    map(live);
  }
  void write(Live& live) {
    // The copy is on another stream than what still runs.
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    if (pick(3) == 0) {
      std::fill(live.words.begin(), live.words.end(), pick(3));
    } else {
      for (std::uint32_t& word : live.words) word = static_cast<std::uint32_t>(random_());
    }
    EXPECT_EQ((gated<&Driver::cuMemcpyHtoD_v2>(nullptr, live.address, static_cast<const void*>(live.words.data()),
                                               live.words.size() * 4)),
              CUDA_SUCCESS);
  }
  CUresult launch(CUdeviceptr data, std::uint64_t count) {
    void* parameters[] = {&data, &count};
    return gated<&Driver::cuLaunchKernel>(stream_, increment_, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream_, parameters,
                                          static_cast<void**>(nullptr));
  }
  void increment(Live& live) {
    const std::uint64_t count = 1 + pick(static_cast<unsigned>(live.words.size()));
    EXPECT_EQ(launch(live.address, count), CUDA_SUCCESS);
    for (std::uint64_t i = 0; i < count; ++i) ++live.words[i];
    if (pick(2) == 0) {
      EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    }
  }
  // A graph that copies: its addresses are looked up while it is made.
  void replay(Live& live) {
    const std::uint64_t count = std::min<std::uint64_t>(live.words.size(), 1000);
    std::vector<std::uint32_t> copied(count);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_EQ(hooks::cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(launch(live.address, count), CUDA_SUCCESS);
    insist([&] {
      return gated<&Driver::cuMemcpyDtoHAsync_v2>(stream_, static_cast<void*>(copied.data()), live.address, count * 4,
                                                  stream_);
    });
    ASSERT_EQ(hooks::cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ((gated<&Driver::cuGraphLaunch>(stream_, exec, stream_)), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (copied[i] != ++live.words[i]) {
        ADD_FAILURE() << "a graph read " << copied[i] << " and not " << live.words[i];
        break;
      }
    }
    EXPECT_EQ(driver().cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  // The same answers as a 580.159 driver's, whether the memory is there or not.
  void look_at_mapping(const Live& live) {
    const CUdeviceptr inner = live.address + live.bytes() - 4;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    EXPECT_EQ(hooks::cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inner), CUDA_SUCCESS);
    EXPECT_EQ(hooks::cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inner), CUDA_SUCCESS);
    EXPECT_EQ(start, live.address);
    EXPECT_EQ(size, live.bytes());
    EXPECT_EQ(hooks::cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inner), CUDA_SUCCESS);
    EXPECT_EQ(start, inner);
    int value = 1;
    EXPECT_EQ(hooks::cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inner),
              CUDA_SUCCESS);
    EXPECT_EQ(value, 0);
    EXPECT_EQ(hooks::cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inner), CUDA_ERROR_NOT_SUPPORTED);
    unsigned long long flags = 0;
    const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    EXPECT_EQ(hooks::cuMemGetAccess(&flags, &here, inner), CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    // What is taken is taken, and mappings are whole.
    const CUmemAccessDesc rights{here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUmemAccessDesc strange{{CU_MEM_LOCATION_TYPE_DEVICE, 77}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const std::size_t bytes = live.bytes();
    EXPECT_EQ(hooks::cuMemMap(live.address, bytes, 0, live.handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemMap(live.address, bytes + 2 * kMebibyte, 0, live.handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(hooks::cuMemMap(live.address, bytes, 2 * kMebibyte, live.handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(hooks::cuMemAddressFree(live.address, bytes), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemUnmap(live.address + kMebibyte, bytes), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemUnmap(live.address, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemSetAccess(live.address, bytes / 2, &rights, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemSetAccess(live.address, bytes, &strange, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemFree_v2(live.address), CUDA_ERROR_INVALID_VALUE);
    CUmemGenericAllocationHandle same = 0;
    EXPECT_EQ(hooks::cuMemRetainAllocationHandle(&same, reinterpret_cast<void*>(inner)), CUDA_SUCCESS);
    EXPECT_EQ(same, live.handle);
    EXPECT_EQ(hooks::cuMemRelease(same), CUDA_SUCCESS);
    CUmemAllocationProp properties{};
    EXPECT_EQ(hooks::cuMemGetAllocationPropertiesFromHandle(&properties, live.handle), CUDA_SUCCESS);
    EXPECT_EQ(properties.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    int fd = -1;
    const CUresult exported =
        hooks::cuMemExportToShareableHandle(&fd, live.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    EXPECT_EQ(exported, live.exportable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
        << "what nobody asked for when it was created cannot be had later";
    if (exported == CUDA_SUCCESS) ::close(fd);
  }
  // Answered whether it is there or not.
  void look(const Live& live) {
    if (live.handle != 0) look_at_mapping(live);
    CUdeviceptr base = 0;
    std::size_t size = 0;
    EXPECT_EQ(hooks::cuMemGetAddressRange_v2(&base, &size, live.address + 2), CUDA_SUCCESS);
    EXPECT_EQ(base, live.address);
    EXPECT_EQ(size, live.words.size() * 4);
    CUcontext context = nullptr;
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(hooks::cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, live.address), CUDA_SUCCESS);
    EXPECT_EQ(context, live.is_in_order || live.handle != 0 ? nullptr : context_);
    EXPECT_EQ(hooks::cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, live.address), CUDA_SUCCESS);
    EXPECT_EQ(pool != nullptr, live.is_in_order);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(hooks::cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, kCapacity);
  }
  void verify(Live& live) {
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    std::vector<std::uint32_t> words(live.words.size());
    EXPECT_EQ(
        (gated<&Driver::cuMemcpyDtoH_v2>(nullptr, static_cast<void*>(words.data()), live.address, words.size() * 4)),
        CUDA_SUCCESS);
    const auto [read, written] = std::mismatch(words.begin(), words.end(), live.words.begin());
    EXPECT_TRUE(read == words.end()) << "word " << (read - words.begin()) << " of " << words.size() << " is " << *read
                                     << ", written was " << *written;
    verified.fetch_add(1);
  }

  const CUcontext context_;
  std::mt19937 random_;
  CUfunction increment_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<Live> live_;
};

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::setenv("GPUMUX_RUNTIME_DIR", directory_.path().c_str(), 1), 0);
    ASSERT_EQ(::setenv("GPUMUX_ON_DAEMON_LOSS", "wait", 1), 0);
    ASSERT_EQ(::unsetenv("GPUMUX_DISABLE"), 0);
    ASSERT_TRUE(std::filesystem::create_directory(directory_.file(os::kTenantDir)));
  }
  void TearDown() override { pager::clear_faults(); }
  const TemporaryDirectory directory_;
  const std::string socket_ = directory_.file(os::kTenantSocket);
};

// One tenant for the whole process, as in a program; so one test for everything that happens to it.
TEST_F(MemoryTest, WhatIsReadIsWhatWasWrittenWhateverRoomThereIs) {
  RoomDaemon daemon(socket_);
  ASSERT_EQ(driver().cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuModuleLoadData(&module, ::kGpumuxSimKernelsPtx), CUDA_SUCCESS);

  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) programs.push_back(std::make_unique<Program>(context, module, seed() + i + 1));
  for (auto& program : programs) {
    threads.emplace_back([&program, &stop, context] {
      ASSERT_EQ(driver().cuCtxSetCurrent(context), CUDA_SUCCESS);
      while (!stop) {
        program->step();
        program->steps.fetch_add(1);
      }
      program->verify_all();
    });
  }
  const std::uint64_t rooms = from_environment("GPUMUX_TEST_ROOMS", 3000);
  const std::uint64_t leases = from_environment("GPUMUX_TEST_LEASES", 0);
  std::array<std::uint64_t, 3> before{};
  std::mt19937 random(seed());
  const base::TimePoint end = now() + 200s;
  const auto has_moved = [&] {
    return daemon.last().moved_out != 0 && daemon.last().moved_in != 0 && daemon.lent_again() != 0 &&
           daemon.forgotten() != 0 && (daemon.claims() != 0 || !kMeetsClaims);
  };
  for (unsigned round = 0; daemon.complaints().empty() && !HasFailure(); ++round) {
    if (daemon.rooms() >= rooms && daemon.grants() >= leases && (has_moved() || now() > end)) break;
    if (round % 8 == 7 && !has_moved()) daemon.slow_down();
    // In every second round the driver refuses now and then what the pager asks.
    for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemHostRegister_v2",
                             "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}) {
      pager::Fault& fault = *pager::the_faults()[name];
      fault.code = std::string_view(name) == "cuMemCreate" ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
      fault.per_million = round % 2 == 0 ? 0 : 3000;
    }
    // And in some it has nothing at all, for longer than anybody believes the daemon that there is something.
    if (round % 8 == 5) pager::the_faults()["cuMemCreate"]->per_million = 1'000'000;
    std::this_thread::sleep_for(round % 8 == 5 ? 700ms : 100ms);
    // On a busy machine that takes longer, the first time.
    const base::TimePoint believed = now() + 10s;
    while (round % 8 == 5 && kMeetsClaims && daemon.claims() == 0 && now() < believed)
      std::this_thread::sleep_for(10ms);
    // Everybody gets on, if not while the room changes faster than memory moves, then when it stays.
    pager::clear_faults();
    daemon.calm(true);
    const base::TimePoint patience = now() + 60s;
    for (std::size_t i = 0; i < before.size(); ++i) {
      while (programs[i]->steps < before[i] + 5 && now() < patience) std::this_thread::sleep_for(1ms);
      ASSERT_GE(programs[i]->steps, before[i] + 5) << "thread " << i << " does not get on";
      before[i] = programs[i]->steps;
    }
    daemon.calm(false);
  }
  pager::clear_faults();
  daemon.calm(true);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(daemon.complaints(), "");
  const wire::Memory last = daemon.last();
  std::uint64_t verified = 0;
  std::uint64_t refused = 0;
  for (const auto& program : programs) {
    verified += program->verified;
    refused += program->refused;
  }
  std::printf(
      "%llu rooms, %llu grants, %llu reports, %llu refusals; %llu verified, %llu without memory; moved %llu MiB "
      "out, %llu in, saved %llu clean, %llu constant\n",
      static_cast<unsigned long long>(daemon.rooms()), static_cast<unsigned long long>(daemon.grants()),
      static_cast<unsigned long long>(daemon.reports()), static_cast<unsigned long long>(daemon.refusals()),
      static_cast<unsigned long long>(verified), static_cast<unsigned long long>(refused),
      static_cast<unsigned long long>(last.moved_out >> 20), static_cast<unsigned long long>(last.moved_in >> 20),
      static_cast<unsigned long long>(last.saved_clean >> 20),
      static_cast<unsigned long long>(last.saved_constant >> 20));
  EXPECT_GT(verified, 10u);
  for (const auto& program : programs) EXPECT_GT(program->created, 0u);
  EXPECT_GT(last.moved_out, 0u) << "nothing was ever evicted";
  EXPECT_GT(last.moved_in, 0u);
  EXPECT_GT(daemon.lent_again(), 0u);
  EXPECT_GT(daemon.forgotten(), 0u);
  if (kMeetsClaims) {
    EXPECT_GT(daemon.claims(), 0u) << "memory that the driver did not have was never claimed";
  }
  EXPECT_STREQ(tenant()->memories().of(0).pools.check(), nullptr);
  programs.clear();
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
  DeviceMemory& memory = tenant()->memories().of(0);
  tenant()->memories().pause(0);
  EXPECT_STREQ(memory.pools.check(), nullptr);
  EXPECT_EQ(memory.pools.reserved_bytes(), 0u);
  EXPECT_STREQ(memory.pager.check(), nullptr);
  EXPECT_EQ(memory.pager.bounds().committed(), 0u);
  EXPECT_EQ(memory.pager.evicted_bytes(), 0u);
  tenant()->memories().resume(0);
}

}  // namespace
}  // namespace gpumux::shim

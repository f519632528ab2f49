// SPDX-License-Identifier: Apache-2.0
// Goal: for any actions of the daemon at any time, no submission is made through a closed gate. Nothing runs after the
// tenant has said that it is drained, and every thread gets on.
//
// Method: the process's real tenant (agent, drainer, gate, seats) on the simulated driver, which breaks a capture that
// is looked at. A daemon grants, revokes, flips contention and goes away at random by seed. Threads
// submit, make and destroy streams and contexts, and capture. The daemon believes only what it was told, and checks it
// against the GPU at that moment:
//   - at each submission the seat's lease must be granted, or not yet reported closed;
//   - when Drained comes, the GPU must be idle.
// GPUMUX_TEST_SEED repeats a run (as far as threads allow).
#include "shim/tenant/tenant.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "os/futex.h"
#include "os/runtime_dir.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"
#include "shim/process/real_driver.h"
#include "sim/cuda/kernels.gen.h"
#include "sim/cuda/process.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::shim {

// In place of the real driver's, in this program.
constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

namespace {

using namespace std::chrono_literals;

// An answer may be old when it arrives: drains go wrong by what happens in between.
cuda::CUresult answer_late(cuda::CUresult result);

}  // namespace

void load_real_driver() {
  g_driver = sim::simulated_driver();
  sim::tap<&cuda::Driver::cuStreamQuery>(g_driver).answered = answer_late;
  sim::tap<&cuda::Driver::cuStreamIsCapturing>(g_driver).answered = answer_late;
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

unsigned seed() {
  static const unsigned value = [] {
    const char* text = std::getenv("GPUMUX_TEST_SEED");
    const unsigned chosen =
        text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : std::random_device()();
    std::printf("seed: GPUMUX_TEST_SEED=%u\n", chosen);
    return chosen;
  }();
  return value;
}

cuda::CUresult answer_late(cuda::CUresult result) {
  static thread_local std::mt19937 random(seed());
  if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  return result;
}

constexpr int kDevices = 2;

// The submissions to each device, in any stream, destroyed or not, that are not done.
class Work {
 public:
  // Around a submission to a stream of the current context, by the thread that makes it.
  void begin(int device) { at(device).entering.fetch_add(1); }
  void end(int device, cuda::CUstream stream) {
    const sim::Process& process = *sim::Process::get();
    const auto its = stream != nullptr ? process.streams.find(stream) : sim::thread_state().current()->legacy_stream();
    {
      const std::lock_guard lock(mutex_);
      auto& under_way = at(device).under_way;
      std::erase_if(under_way, [](const auto& submission) { return submission->done(); });
      under_way.push_back(its->tail());
    }
    at(device).entering.fetch_sub(1);
  }
  bool is_idle(int device) {
    if (at(device).entering != 0) return false;
    const std::lock_guard lock(mutex_);
    const auto& all = at(device).under_way;
    return std::all_of(all.begin(), all.end(), [](const auto& submission) { return submission->done(); });
  }

 private:
  struct Device {
    std::atomic<int> entering{0};
    std::vector<std::shared_ptr<sim::Completion>> under_way;
  };
  Device& at(int device) { return devices_[static_cast<std::size_t>(device)]; }

  std::mutex mutex_;
  std::array<Device, kDevices> devices_;
};
Work g_work;

// How long each test goes on.
base::Duration run_time() {
  const char* text = std::getenv("GPUMUX_TEST_SECONDS");
  return text != nullptr ? std::chrono::seconds(std::atoi(text)) : base::Duration(2s);
}

enum class Phase { kIdle, kHolding, kRevoked, kClosed, kDrained /* and revoked: may be opened again */ };

// The daemon's beliefs about one seat. The atomics are read by the submitting threads as well. (The lease page orders
// them. It is mapped twice here, so that ThreadSanitizer does not see it.)
constexpr std::size_t kThreads = 4;

struct SeatBelief {
  std::atomic<bool> open{false};
  std::atomic<int> device{0};
  Phase phase = Phase::kIdle;
  bool wanted = false;
  std::uint64_t epoch = 0;
  base::TimePoint next_whim{};
  std::atomic<bool> may_submit{false};
  std::uint32_t revokes_unseen = 0;
  std::atomic<std::uint64_t> granted{0}, drained{0}, reopened{0};
  // The daemon's newest question how much the seat has submitted, and the answers.
  std::uint32_t question = 0;
  std::uint64_t submitted_then = 0;
  std::atomic<std::uint64_t> measured{0}, answers{0};

  bool has_met_all() const { return granted > 10 && drained > 10 && reopened > 0 && answers > 0 && measured > 0; }
};

class WhimsicalDaemon {
 public:
  explicit WhimsicalDaemon(const std::string& path) : path_(path), random_(seed()) {
    thread_ = std::thread([this] { run(); });
  }
  ~WhimsicalDaemon() {
    stopping_ = true;
    thread_.join();
    if (page_ != nullptr) ::munmap(page_, wire::kLeasePageBytes);
  }

  // Grants what is asked for, and does nothing else (so that threads can end).
  void calm() { calm_ = true; }

  void check_submission(int device) {
    submitted_[static_cast<std::size_t>(device)].fetch_add(1);
    for (SeatBelief& seat : seats_) {
      if (!seat.open || seat.device != device || seat.may_submit.load()) continue;
      complain("a submission to device " + std::to_string(device) + " through a closed gate");
    }
  }

  std::string complaints() {
    const std::lock_guard lock(mutex_);
    return complaints_;
  }
  bool has_met_all() const {
    return std::all_of(seats_.begin(), seats_.end(), [](const SeatBelief& seat) { return seat.has_met_all(); });
  }
  const SeatBelief& seat(int slot) const { return seats_[static_cast<std::size_t>(slot)]; }
  std::uint64_t connections() const { return connections_; }

 private:
  void complain(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (complaints_.size() < 4000) complaints_ += what + "\n";
  }

  unsigned dice(unsigned sides) { return static_cast<unsigned>(random_() % sides); }

  void run() {
    while (!stopping_) {
      auto listening = os::listen_seqpacket(path_, 0600, 4);
      if (!listening) return complain(listening.error().message());
      const base::TimePoint end = os::now() + std::chrono::milliseconds(200 + dice(800));
      serve(*listening, end);
      // Gone for a moment: connection and socket.
      socket_.reset();
    }
  }

  void serve(const os::FileDescriptor& listening, base::TimePoint end) {
    while (!stopping_ && (calm_ || os::now() < end || !socket_)) {
      std::array<pollfd, 2> waiting{{{listening.get(), POLLIN, 0}, {socket_ ? socket_.get() : -1, POLLIN, 0}}};
      const timespec wait{0, 200'000};
      ::ppoll(waiting.data(), waiting.size(), &wait, nullptr);
      if ((waiting[0].revents & POLLIN) != 0) {
        socket_ = os::FileDescriptor(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        ++connections_;
        for (SeatBelief& seat : seats_) seat.open = false;
      }
      if ((waiting[1].revents & (POLLIN | POLLHUP)) != 0) receive();
      for (std::size_t slot = 0; slot < seats_.size(); ++slot) {
        if (socket_ && seats_[slot].open && os::now() >= seats_[slot].next_whim) act(slot);
      }
    }
  }

  void receive() {
    std::array<std::byte, base::kMaxMessageBytes> buffer;
    while (true) {
      auto received = os::receive_message(socket_.get(), buffer);
      if (!received && received.error().system_errno == EAGAIN) return;
      if (!received || received->bytes == 0) {
        socket_.reset();
        return;
      }
      const auto message = wire::decode_from_tenant(std::span(buffer).first(received->bytes));
      if (!message) {
        complain(message.error().message());
        continue;
      }
      if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
        if (page_ == nullptr) {
          page_ = static_cast<wire::LeasePage*>(
              ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, received->fd.get(), 0));
        }
        if (hello->protocol != wire::kProtocolVersion) complain("the protocol's version");
        send(wire::Welcome{.protocol = wire::kProtocolVersion, .tenant = 1});
        continue;
      }
      std::visit([this](const auto& m) { on(m); }, *message);
    }
  }

  template <class Message>
  void send(const Message& message) {
    if (!os::send_message(socket_.get(), wire::encode(message).bytes())) socket_.reset();
  }

  void on(const wire::SeatOpen& open) {
    SeatBelief& seat = seats_[open.slot];
    for (int device = 0; device < kDevices; ++device) {
      cuda::CUuuid uuid{};
      EXPECT_CUDA(driver().cuDeviceGetUuid_v2(&uuid, device));
      if (std::memcmp(&uuid, open.gpu_uuid, sizeof uuid) == 0) seat.device = device;
    }
    seat.wanted = false;
    seat.revokes_unseen = 0;
    switch (open.state) {
      case wire::SeatState::kNone:
      case wire::SeatState::kWaiting: seat.phase = Phase::kIdle; break;
      case wire::SeatState::kHolding:
        if (!seat.may_submit) complain("claims a lease that it does not have");
        seat.phase = Phase::kHolding;
        break;
      case wire::SeatState::kDraining: seat.phase = Phase::kRevoked; break;
    }
    seat.open = true;
    seat.next_whim = os::now();
    send(wire::SeatOpened{.slot = open.slot, .gpu_index = static_cast<std::uint32_t>(seat.device.load())});
  }
  void on(const wire::Request& request) { seats_[request.slot].wanted = true; }
  void on(const wire::RevokeSeen& seen) {
    SeatBelief& seat = seats_[seen.slot];
    if (seen.epoch != seat.epoch) return;
    if (seat.revokes_unseen == 0) return complain("answers a revocation that was not");
    --seat.revokes_unseen;
  }
  void on(const wire::GateClosed& closed) {
    SeatBelief& seat = seats_[closed.slot];
    if (closed.epoch != seat.epoch || seat.phase != Phase::kRevoked) return;
    seat.may_submit = false;
    seat.phase = Phase::kClosed;
  }
  void on(const wire::Drained& drained) {
    SeatBelief& seat = seats_[drained.slot];
    if (drained.epoch != seat.epoch) return;
    const bool asked = seat.phase == Phase::kRevoked || seat.phase == Phase::kClosed;
    if (!asked && seat.phase != Phase::kHolding) return;
    if (!g_work.is_idle(seat.device)) complain("said to be drained while the GPU works");
    seat.may_submit = false;
    seat.drained.fetch_add(1);
    seat.phase = asked ? Phase::kDrained : Phase::kIdle;
    seat.next_whim = os::now() + std::chrono::microseconds(dice(500));
  }
  // The count has all that threads had submitted by then, except what each is about to, and never falls.
  void on(const wire::Measured& measured) {
    if (measured.slot >= seats_.size()) return complain("measures a slot that it was not asked for");
    SeatBelief& seat = seats_[measured.slot];
    if (measured.question != seat.question) return;  // an older connection's
    if (measured.submissions + kThreads < seat.submitted_then) complain("counts too few submissions");
    if (measured.submissions < seat.measured) complain("counts fewer submissions than before");
    seat.measured = measured.submissions;
    seat.answers.fetch_add(1);
  }
  template <class Other>
  void on(const Other&) {}

  void act(std::size_t slot) {
    SeatBelief& seat = seats_[slot];
    wire::LeaseSlot& words = page_->slots[slot];
    const auto number = static_cast<std::uint32_t>(slot);
    seat.next_whim = os::now() + std::chrono::microseconds(dice(2000));
    if (dice(10) == 0) {
      seat.submitted_then = submitted_[static_cast<std::size_t>(seat.device.load())];
      send(wire::Measure{.slot = number, .question = ++seat.question});
    }
    switch (seat.phase) {
      case Phase::kIdle:
        if (seat.wanted || dice(50) == 0) grant(slot);
        break;
      case Phase::kHolding:
        if (calm_) break;
        if (dice(2) == 0) {
          if (dice(2) == 0) {
            words.word.fetch_or(wire::kContended);
          } else {
            words.word.fetch_and(~wire::kContended);
          }
          send(wire::Contention{
              .slot = number, .contended = 1, .idle_hold_ns = dice(300) * 1000, .in_flight_ns = dice(3) * 300'000});
        } else {
          seat.phase = Phase::kRevoked;
          revoke(slot);
          seat.next_whim = os::now() + std::chrono::microseconds(dice(2) == 0 ? dice(100) : dice(2000));
        }
        break;
      case Phase::kRevoked:
      case Phase::kClosed:
        if (dice(2) != 0) break;
        seat.reopened.fetch_add(1);
        reopen(slot);
        break;
      case Phase::kDrained:
        if (!calm_ && seat.wanted && dice(2) == 0) {
          seat.reopened.fetch_add(1);
          reopen(slot);
        } else {
          seat.phase = Phase::kIdle;
        }
        break;
    }
  }

  void revoke(std::size_t slot) {
    SeatBelief& seat = seats_[slot];
    store(slot, 0);
    ++seat.revokes_unseen;
    send(wire::Revoke{.slot = static_cast<std::uint32_t>(slot), .epoch = seat.epoch});
  }

  // The message names the revocation that is taken back; the lease goes on under a new epoch.
  void reopen(std::size_t slot) {
    SeatBelief& seat = seats_[slot];
    const std::uint64_t revoked = seat.epoch;
    seat.epoch = ++last_epoch_;
    seat.revokes_unseen = 0;
    seat.phase = Phase::kHolding;
    seat.may_submit = true;
    page_->slots[slot].epoch.store(seat.epoch, std::memory_order_relaxed);
    store(slot, wire::kGranted | wire::kExclusive | wire::kContended);
    send(wire::Reopen{.slot = static_cast<std::uint32_t>(slot), .epoch = revoked});
  }

  void grant(std::size_t slot) {
    SeatBelief& seat = seats_[slot];
    seat.wanted = false;
    seat.revokes_unseen = 0;
    seat.epoch = ++last_epoch_;
    seat.phase = Phase::kHolding;
    seat.may_submit = true;
    seat.granted.fetch_add(1);
    page_->slots[slot].epoch.store(seat.epoch, std::memory_order_relaxed);
    store(slot, wire::kGranted | wire::kExclusive | (dice(2) == 0 && !calm_ ? wire::kContended : 0));
  }

  void store(std::size_t slot, std::uint32_t flags) {
    sequence_ += wire::kSequenceOne;
    page_->slots[slot].word.store(flags | sequence_, std::memory_order_release);
    os::futex_wake(page_->slots[slot].word, os::FutexScope::kShared);
  }

  const std::string path_;
  std::mt19937 random_;
  os::FileDescriptor socket_;
  wire::LeasePage* page_ = nullptr;
  std::uint32_t sequence_ = 0;
  std::uint64_t last_epoch_ = 0;
  std::array<SeatBelief, kDevices> seats_;
  std::array<std::atomic<std::uint64_t>, kDevices> submitted_{};
  std::atomic<std::uint64_t> connections_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> calm_{false};
  std::mutex mutex_;
  std::string complaints_;
  std::thread thread_;
};

WhimsicalDaemon* g_daemon = nullptr;

// A program's kernel on one device.
struct Kernel {
  int device = 0;
  cuda::CUfunction function = nullptr;
};

// As the driver's, with the daemon looking on: behind the gate.
cuda::CUresult launch_watched(Kernel kernel, cuda::CUstream stream, void** parameters) {
  g_daemon->check_submission(kernel.device);
  g_work.begin(kernel.device);
  const cuda::CUresult result =
      driver().cuLaunchKernel(kernel.function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  g_work.end(kernel.device, stream);
  return result;
}

// The same into a capture: nothing is submitted.
cuda::CUresult launch_captured(Kernel kernel, cuda::CUstream stream, void** parameters) {
  return driver().cuLaunchKernel(kernel.function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

using Launch = cuda::CUresult (*)(Kernel, cuda::CUstream, void**);

cuda::CUresult launch(Kernel kernel, cuda::CUstream stream, Launch how = launch_watched) {
  std::uint64_t nanoseconds = 20'000;
  void* parameters[] = {&nanoseconds};
  return submit(at_stream(stream, cuda::StreamVariant::kLegacy), how, kernel, stream, static_cast<void**>(parameters));
}

void wait_for_streams(const std::vector<cuda::CUstream>& streams) {
  for (const cuda::CUstream stream : streams) {
    while (driver().cuStreamQuery(stream) == cuda::CUDA_ERROR_NOT_READY) std::this_thread::yield();
    synchronised();
  }
  synchronised();
}

// One program thread: submits to a few streams, and now and then does something to them.
void program_thread(int device, unsigned thread_seed, const std::atomic<bool>& stop,
                    std::atomic<std::uint64_t>& submissions) {
  std::mt19937 random(thread_seed);
  while (!stop) {
    cuda::CUcontext context = nullptr;
    ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, device), cuda::CUDA_SUCCESS);
    cuda::CUmodule module = nullptr;
    ASSERT_CUDA(driver().cuModuleLoadData(&module, kGpumuxSimKernelsPtx));
    Kernel kernel{device, nullptr};
    ASSERT_CUDA(driver().cuModuleGetFunction(&kernel.function, module, "gpumux_spin"));
    std::vector<cuda::CUstream> streams(3, nullptr);  // the first one is the legacy stream
    const auto make_stream = [&streams](std::size_t i) {
      // The legacy stream waits for stream 1, so a capture of that one silences both. It does not wait for stream 2.
      return driver().cuStreamCreate(&streams[i], i == 1 ? 0u : unsigned{cuda::CU_STREAM_NON_BLOCKING});
    };
    for (std::size_t i = 1; i < streams.size(); ++i) ASSERT_CUDA(make_stream(i));
    for (int step = 0; step < 400 && !stop; ++step) {
      const std::size_t which = random() % streams.size();
      ASSERT_CUDA(launch(kernel, streams[which]));
      submissions.fetch_add(1, std::memory_order_relaxed);
      switch (random() % 40) {
        case 0: wait_for_streams(streams); break;
        case 1:
          if (which == 0) break;
          ASSERT_EQ(hooks::cuStreamDestroy_v2(streams[which]), cuda::CUDA_SUCCESS);
          ASSERT_CUDA(make_stream(which));
          break;
        case 2:
        case 3: {
          if (which == 0) break;
          cuda::CUgraph graph = nullptr;
          const auto mode =
              random() % 2 == 0 ? cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
          ASSERT_CUDA(hooks::cuStreamBeginCapture_v2(streams[which], mode));
          for (int i = 0; i < 5; ++i) ASSERT_CUDA(launch(kernel, streams[which], launch_captured));
          ASSERT_CUDA(hooks::cuStreamEndCapture(streams[which], &graph)) << "something has looked at the capture";
          ASSERT_CUDA(driver().cuGraphDestroy(graph));
          break;
        }
        case 4: std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500)); break;
        default: break;
      }
    }
    wait_for_streams(streams);
    ASSERT_EQ(hooks::cuCtxDestroy_v2(context), cuda::CUDA_SUCCESS);
  }
}

// One tenant for the whole process, as in a program; so one test for everything that happens to it.
TEST(Tenant, NeverSubmitsWithoutALeaseAndNeverCallsAWorkingGpuDrained) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::setenv("GPUMUX_RUNTIME_DIR", directory.path().c_str(), 1), 0);
  ASSERT_EQ(::setenv("GPUMUX_ON_DAEMON_LOSS", "wait", 1), 0);
  ASSERT_EQ(::unsetenv("GPUMUX_DISABLE"), 0);
  ASSERT_TRUE(std::filesystem::create_directory(directory.file(os::kTenantDir)));
  const std::string socket = directory.file(os::kTenantSocket);
  {
    WhimsicalDaemon daemon(socket);
    g_daemon = &daemon;
    ASSERT_CUDA(driver().cuInit(0));
    std::atomic<bool> stop{false};
    std::array<std::atomic<std::uint64_t>, kThreads> submissions{};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < submissions.size(); ++i) {
      threads.emplace_back([&, i] { program_thread(static_cast<int>(i % 2), seed() + i + 1, stop, submissions[i]); });
    }
    std::array<std::uint64_t, kThreads> before{};
    const base::TimePoint end = os::now() + run_time();
    // A slow machine needs longer until all has happened that the test is about.
    const base::TimePoint latest_end = end + 60s;
    while (daemon.complaints().empty() && (os::now() < end || (os::now() < latest_end && !daemon.has_met_all()))) {
      // Every thread gets on, again and again; the bound is for a machine that is very busy.
      const base::TimePoint patience = os::now() + 30s;
      for (std::size_t i = 0; i < before.size(); ++i) {
        while (submissions[i] < before[i] + 20 && os::now() < patience) std::this_thread::sleep_for(1ms);
        ASSERT_GE(submissions[i], before[i] + 20) << "thread " << i << " does not get on";
        before[i] = submissions[i];
      }
    }
    stop = true;
    daemon.calm();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(daemon.complaints(), "");
    for (int slot = 0; slot < kDevices; ++slot) {
      const SeatBelief& seat = daemon.seat(slot);
      std::printf("slot %d: %llu grants, %llu drained, %llu reopened, %llu connections\n", slot,
                  static_cast<unsigned long long>(seat.granted), static_cast<unsigned long long>(seat.drained),
                  static_cast<unsigned long long>(seat.reopened),
                  static_cast<unsigned long long>(daemon.connections()));
      EXPECT_TRUE(seat.has_met_all()) << seat.answers << " answers, " << seat.measured << " submissions measured";
    }
  }
}

}  // namespace
}  // namespace gpumux::shim

// SPDX-License-Identifier: Apache-2.0
// Goal: a revoked seat's work is frozen when it has not drained in time, and goes on when it must; the daemon is told
// what is true, in the right order. Method: the real gate, seats, agent and drainer, on the simulated driver. The test
// plays the daemon and the kernel module: whether the module freezes, refuses or takes its time is the test's choice.
#include "shim/tenant/interrupter.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "client/lease_page_memory.h"
#include "cuda/resource_manager_abi.h"
#include "os/futex.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "shim/process/real_driver.h"
#include "shim/process/test_channels.h"
#include "shim/tenant/test_kernel_module.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::shim {

// In place of the real driver's, in this program.
constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

void load_real_driver() {
  g_driver = sim::simulated_driver();
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

using namespace std::chrono_literals;

constexpr int kPatienceMs = 20'000;  // far more than any step needs; a test that waits this long has failed

class NoPort final : public client::SeatPort {
 public:
  void on_connected(const wire::Welcome&, bool) override {}
  void announce_seats() override { is_connected = true; }
  void on_message(const wire::DaemonMessage&, os::FileDescriptor) override {}
  void on_second() override {}
  void on_closed_by_program(const std::string&) override {}
  void on_lost() override {}
  void on_ungated(const std::string&) override {}

  std::atomic<bool> is_connected{false};
};

class Complaints final : public Interrupter::Port {
 public:
  void cannot_interrupt(std::uint32_t slot, const std::string& why) override {
    EXPECT_EQ(slot, 0u);
    const std::lock_guard lock(mutex_);
    all_.push_back(why);
  }
  bool must_drain(std::uint32_t) override { return memory_must_leave; }
  bool may_fault(std::uint32_t) override { return uses_unified_memory; }
  void waits_frozen(std::uint32_t) override {}
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

  std::atomic<bool> memory_must_leave{false};
  std::atomic<bool> uses_unified_memory{false};

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

class InterrupterTest : public sim::SimTest {
 protected:
  static constexpr std::uint64_t kEpoch = 7;

  void SetUp() override {
    SimTest::SetUp();
    driver();  // is loaded
    bool opened = false;
    ASSERT_EQ(seats.open(0, opened), 0u);
    TestKernelModule::the_module = &module;
    module.gpu = gpu_id(driver(), 0);
    Seats::Locked(seats)[0].gpu_id = module.gpu;
    ASSERT_NE(module.gpu, 0u);
    stream_ = make_stream();
    work_.emplace(stream_);
    connect();
    ASSERT_TRUE(drainer.start());
    grant(kEpoch);
    submit();
  }
  void TearDown() override {
    interrupter.reset();
    EXPECT_FALSE(module.is_frozen) << "it is thawed when the interrupter ends";
    work_.reset();
    SimTest::TearDown();
  }

  // ---- the program

  // Work that lasts until `finish`.
  void submit() {
    gate::ThreadRecord* const thread = gate::this_thread();
    ASSERT_EQ(gate.pass(*thread, 0), gate::Passed::kHolding);
    seats.streams(0).note(context_, stream_);
    gate.leave(*thread, 0);
  }
  void finish() { work_->release(); }
  void make_channel() {
    make(kClient, 10, cuda::NV01_DEVICE_0);
    make(10, 11, cuda::NV20_SUBDEVICE_0);
    make(10, 20, 0xc86f);
  }

  // ---- the daemon

  void grant(std::uint64_t epoch) {
    page.page().slots[0].epoch.store(epoch);
    set_word(wire::kGranted | wire::kExclusive);  // not contended: the drainer does not look for idleness
  }
  void set_word(std::uint32_t bits) {
    std::atomic<std::uint32_t>& word = page.page().slots[0].word;
    word.store(bits | ((word.load() & wire::kSequenceMask) + wire::kSequenceOne));
    os::futex_wake(word, os::FutexScope::kShared);
  }
  // As the tenant does it when a Revoke comes. No thread looks between the page and the closing.
  void revoke(std::uint64_t epoch, std::optional<base::Duration> freeze_after) {
    {
      client::Agent::Announcement ordered(agent);
      Seats::Locked locked(seats);
      page.page().slots[0].epoch.store(epoch);
      set_word(0);
      locked[0].begin_closing(epoch, revoked_at_ = os::now(), freeze_after);
    }
    drainer.close_at_once(0, epoch);
    interrupter->wake(0);
  }
  std::optional<wire::TenantMessage> receive() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kPatienceMs) != 1) return std::nullopt;
    std::array<std::byte, base::kMaxMessageBytes> buffer;
    const auto received = os::receive_message(socket_.get(), buffer);
    if (!received || received->bytes == 0) return std::nullopt;
    const auto message = wire::decode_from_tenant(std::span(buffer).first(received->bytes));
    return message ? std::optional(*message) : std::nullopt;
  }
  // The next message, as text.
  std::string next() {
    const auto message = receive();
    if (!message) return "nothing";
    if (const auto* closed = std::get_if<wire::GateClosed>(&*message)) return "closed " + std::to_string(closed->epoch);
    if (const auto* drained = std::get_if<wire::Drained>(&*message))
      return (drained->frozen != 0 ? "frozen " : "drained ") + std::to_string(drained->epoch);
    if (std::holds_alternative<wire::Request>(*message)) return "request";
    if (std::holds_alternative<wire::Note>(*message)) return "note";
    return "something else";
  }
  // The next message but for requests, which the interrupter repeats.
  std::string next_answer() {
    std::string said = next();
    while (said == "request") said = next();
    return said;
  }
  void expect_frozen(std::uint64_t epoch) {
    EXPECT_EQ(next_answer(), "closed " + std::to_string(epoch));
    EXPECT_EQ(next(), "frozen " + std::to_string(epoch));
    EXPECT_EQ(next(), "request");
    EXPECT_TRUE(module.is_frozen);
    EXPECT_TRUE(interrupter->is_frozen(0));
  }
  // It has nothing more to say of the revocation than what was received.
  void expect_nothing_said() {
    agent.send(wire::Note{});
    EXPECT_EQ(next_answer(), "note");
  }
  bool is_thawed() const {
    return sim::eventually([this] { return !module.is_frozen && !interrupter->is_frozen(0); });
  }
  std::optional<Closing> closing() {
    Seats::Locked locked(seats);
    return locked[0].closing;
  }
  bool is_in(Closing::Phase phase) {
    return sim::eventually([&] {
      const auto seen = closing();
      return seen && seen->phase == phase;
    });
  }

  static constexpr std::uint32_t kClient = 0xc1d00001;
  TestKernelModule module;
  client::LeasePageMemory page = client::LeasePageMemory::make().value();
  gate::Gate gate{page.page(), [](void*, std::uint32_t) {}, nullptr};
  Seats& seats = new_seats();
  LockModes lock_modes{std::nullopt};
  NoPort port;
  Complaints complaints;
  TestChannels channels{&TestKernelModule::ioctl};

 private:
  // Seats that are open live as long as the process.
  static Seats& new_seats() {
    static auto& all = *new std::vector<Seats*>;
    return *all.emplace_back(new Seats(driver()));
  }
  void make(std::uint32_t parent, std::uint32_t number, std::uint32_t kind) {
    cuda::NVOS21_PARAMETERS call{};
    call.hRoot = kClient;
    call.hObjectParent = parent;
    call.hObjectNew = number;
    call.hClass = kind;
    channels.seen(file_.get(), cuda::kRmAlloc, &call, 0);
  }
  void connect() {
    ASSERT_TRUE(agent.start());
    pollfd waiting{listener_.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, kPatienceMs), 1);
    socket_ = os::FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const auto hello = receive();
    ASSERT_TRUE(hello && std::holds_alternative<wire::Hello>(*hello));
    ASSERT_TRUE(os::send_message(socket_.get(), wire::encode(wire::Welcome{.protocol = 1, .tenant = 1}).bytes()));
    ASSERT_TRUE(sim::eventually([this] { return port.is_connected.load(); }));
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_.file("tenants.sock");
  os::FileDescriptor listener_ = os::listen_seqpacket(path_, 0600, 8).value();
  os::FileDescriptor socket_;
  os::FileDescriptor file_{::memfd_create("module", MFD_CLOEXEC)};

 protected:
  client::Agent agent{{.socket_path = path_, .connect_timeout = 30s, .hello = {}, .page = &page}, port};
  Drainer drainer{gate, seats, lock_modes, agent};
  std::optional<Interrupter> interrupter{std::in_place, complaints, gate, seats, agent, drainer, channels};
  base::TimePoint revoked_at_{};

 private:
  cuda::CUstream stream_ = nullptr;
  std::optional<sim::HeldStream> work_;
};

TEST_F(InterrupterTest, FreezesWhatHasNotDrainedInTimeAndSaysSo) {
  make_channel();
  EXPECT_FALSE(interrupter->is_frozen(0));
  revoke(kEpoch, 30ms);
  expect_frozen(kEpoch);
  EXPECT_GE(module.frozen_at.load() - revoked_at_, 30ms);
  EXPECT_TRUE(is_in(Closing::Phase::kFrozen));
  EXPECT_TRUE(complaints.all().empty());
}

TEST_F(InterrupterTest, LeavesAloneWhatDrainsInTime) {
  make_channel();
  revoke(kEpoch, 1h);
  EXPECT_EQ(next(), "closed 7");
  finish();
  EXPECT_EQ(next(), "drained 7");
  {
    // Its time is over now.
    Seats::Locked locked(seats);
    locked[0].closing->freeze_after = 0ns;
  }
  interrupter->wake(0);
  expect_nothing_said();
  interrupter.reset();
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, LeavesAloneWhatIsToDrainHoweverLongItTakes) {
  make_channel();
  revoke(kEpoch, std::nullopt);
  EXPECT_EQ(next(), "closed 7");
  interrupter->wake(0);
  finish();
  EXPECT_EQ(next(), "drained 7");
  interrupter.reset();
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, ALeaseThatIsBackDuringTheFreezeThaws) {
  make_channel();
  module.is_slow = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return module.freezes == 1; }));
  grant(kEpoch + 1);  // as with a Reopen
  module.is_slow = false;
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
  submit();
}

TEST_F(InterrupterTest, WhatDrainsDuringTheFreezeIsThawed) {
  make_channel();
  module.is_slow = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return module.freezes == 1; }));
  finish();
  EXPECT_EQ(next(), "drained 7");
  module.is_slow = false;
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
}

TEST_F(InterrupterTest, ThawsWithTheNextGrant) {
  make_channel();
  for (std::uint64_t epoch = kEpoch; epoch < kEpoch + 3; ++epoch) {
    revoke(epoch, 1ms);
    expect_frozen(epoch);
    grant(epoch + 1);
    EXPECT_TRUE(is_thawed());
    submit();
  }
  EXPECT_EQ(module.freezes, 3);
  expect_nothing_said();
}

// A thread that holds one of our locks may wait for the frozen work itself. (Now and then the interrupter needs that
// lock, to ask for its lease again: if it is about to at that very moment, the test tries again.)
TEST_F(InterrupterTest, AGrantEnablesTheChannelsWhateverAThreadHolds) {
  make_channel();
  bool has_thawed = false;
  for (std::uint64_t epoch = kEpoch; epoch < kEpoch + 5 && !has_thawed; ++epoch) {
    revoke(epoch, 0ns);
    expect_frozen(epoch);
    {
      Seats::Locked held(seats);
      grant(epoch + 1);
      const base::TimePoint end = os::now() + 2s;
      while (module.is_frozen && os::now() < end) std::this_thread::yield();
      has_thawed = !module.is_frozen;
    }
    EXPECT_TRUE(is_thawed());
  }
  EXPECT_TRUE(has_thawed);
}

TEST_F(InterrupterTest, ThawsWhenTheSeatRunsUngated) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  gate.set_ungated(0);
  EXPECT_TRUE(is_thawed());
}

TEST_F(InterrupterTest, AsksForTheLeaseAgainAndAgain) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(), "request");
}

// A thread inside the gate, in a launch that finds no room in the queue, until it is ended.
class Launch {
 public:
  explicit Launch(gate::Gate& gate)
      : thread_([this, &gate] {
          gate::ThreadRecord* const thread = gate::this_thread();
          ASSERT_EQ(gate.pass(*thread, 0), gate::Passed::kHolding);
          is_inside_ = true;
          while (!may_leave_) std::this_thread::yield();
          gate.leave(*thread, 0);
        }) {
    while (!is_inside_) std::this_thread::yield();
  }
  ~Launch() { end(); }
  void end() {
    may_leave_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> may_leave_{false};
  std::thread thread_;
};

TEST_F(InterrupterTest, AThreadInsideTheGateDoesNotKeepItFromBeingFrozen) {
  make_channel();
  Launch launch(gate);
  revoke(kEpoch, 1ms);
  expect_frozen(kEpoch);
  launch.end();
  expect_nothing_said();
  grant(kEpoch + 1);
  EXPECT_TRUE(is_thawed());
}

// Others need not wait for the call, once it has worked: the gate counts as closed when it begins.
TEST_F(InterrupterTest, FromTheSecondTimeOnTheGateIsClosedWhenTheCallBegins) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  grant(kEpoch + 1);
  ASSERT_TRUE(is_thawed());
  Launch launch(gate);
  module.is_slow = true;
  revoke(kEpoch + 1, 0ns);
  EXPECT_EQ(next(), "closed 8");
  EXPECT_FALSE(module.is_frozen);
  module.is_slow = false;
  EXPECT_EQ(next(), "frozen 8");
  EXPECT_EQ(next(), "request");
  launch.end();
  grant(kEpoch + 2);
  EXPECT_TRUE(is_thawed());
}

// A grant came and went before the interrupter's thread saw it.
TEST_F(InterrupterTest, ARevocationWhileFrozenIsAnswered) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  revoke(kEpoch + 1, 1h);
  expect_frozen(kEpoch + 1);
  // The daemon asks once more whether it is alive.
  revoke(kEpoch + 1, 1h);
  expect_frozen(kEpoch + 1);
  EXPECT_EQ(module.freezes, 1);
  EXPECT_EQ(module.thaws, 0);
}

TEST_F(InterrupterTest, ARevocationThatIsADrainThaws) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  revoke(kEpoch, std::nullopt);
  EXPECT_EQ(next_answer(), "closed 7");
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
  finish();
  EXPECT_EQ(next_answer(), "drained 7");
}

// ---- memory

TEST_F(InterrupterTest, FrozenWorkDrainsWhenMemoryMustLeave) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  interrupter->let_drain(0);
  EXPECT_TRUE(is_thawed());
  EXPECT_TRUE(is_in(Closing::Phase::kDraining));
  expect_nothing_said();
  finish();
  EXPECT_EQ(next_answer(), "drained 7");
  EXPECT_EQ(module.freezes, 1);
}

TEST_F(InterrupterTest, WhatMustDrainIsNotFrozen) {
  make_channel();
  interrupter->let_drain(0);  // nothing is revoked
  revoke(kEpoch, 1h);
  EXPECT_EQ(next(), "closed 7");
  interrupter->let_drain(0);
  EXPECT_EQ(closing()->freeze_after, std::nullopt);
  finish();
  EXPECT_EQ(next(), "drained 7");
}

TEST_F(InterrupterTest, AWishToDrainDuringTheFreezeIsNotOverlooked) {
  make_channel();
  module.is_slow = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return module.freezes == 1; }));
  interrupter->let_drain(0);
  module.is_slow = false;
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
  finish();
  EXPECT_EQ(next(), "drained 7");
}

TEST_F(InterrupterTest, NothingIsFrozenWhileMemoryMustLeave) {
  make_channel();
  complaints.memory_must_leave = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  finish();
  EXPECT_EQ(next(), "drained 7");
  interrupter.reset();
  EXPECT_EQ(module.freezes, 0);
  EXPECT_TRUE(complaints.all().empty());
}

TEST_F(InterrupterTest, MemoryThatMustLeaveLaterIsFoundWithoutBeingTold) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  complaints.memory_must_leave = true;
  EXPECT_TRUE(is_thawed());
  finish();
  EXPECT_EQ(next_answer(), "drained 7");
}

// ---- refusals

TEST_F(InterrupterTest, ARefusalIsReportedAndTheWorkDrains) {
  make_channel();
  module.refuses_to_freeze = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  EXPECT_FALSE(interrupter->is_frozen(0));
  interrupter->wake(0);
  finish();
  EXPECT_EQ(next(), "drained 7");
  grant(kEpoch + 1);
  interrupter.reset();
  EXPECT_EQ(complaints.all(), std::vector<std::string>{"the driver refuses to disable its channels"});
  EXPECT_EQ(module.freezes, 1) << "once for a closing";
}

TEST_F(InterrupterTest, WithoutChannelsTheWorkDrains) {
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  finish();
  EXPECT_EQ(next(), "drained 7");
  make_channel();
  EXPECT_EQ(module.freezes, 0);
  EXPECT_EQ(complaints.all(), std::vector<std::string>{"none of its channels were seen"});
}

TEST_F(InterrupterTest, WithAProfilerTheWorkDrains) {
  ::setenv("CUDA_INJECTION64_PATH", "/nowhere/libprofiler.so", 1);
  interrupter.reset();
  interrupter.emplace(complaints, gate, seats, agent, drainer, channels);
  ::unsetenv("CUDA_INJECTION64_PATH");
  make_channel();
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  EXPECT_EQ(complaints.all().front(), "a profiler is loaded (CUDA_INJECTION64_PATH)");
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, WithUnifiedMemoryTheWorkDrains) {
  make_channel();
  complaints.uses_unified_memory = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  EXPECT_EQ(complaints.all().front(), "it uses unified memory");
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, AThawThatIsRefusedIsTriedUntilItIsDone) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  module.refuses_to_thaw = true;
  grant(kEpoch + 1);
  ASSERT_TRUE(sim::eventually([this] { return complaints.all().size() == 1; }));
  EXPECT_TRUE(interrupter->is_frozen(0));
  EXPECT_EQ(complaints.all().front(), "the driver refuses to enable its channels again");
  module.refuses_to_thaw = false;
  EXPECT_TRUE(is_thawed());
}

TEST_F(InterrupterTest, WhatIsStillFrozenIsThawedAtTheEnd) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  interrupter.reset();
  EXPECT_FALSE(module.is_frozen);
}

}  // namespace
}  // namespace gpumux::shim

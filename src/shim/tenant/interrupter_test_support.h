// SPDX-License-Identifier: Apache-2.0
// For tests: an interrupter with the real gate, seats, agent and drainer, on the simulated driver. The test plays the
// daemon and the kernel module.
#pragma once

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

#include "client/agent.h"
#include "client/lease_page_memory.h"
#include "cuda/resource_manager_abi.h"
#include "os/futex.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "shim/process/real_driver.h"
#include "shim/process/test_channels.h"
#include "shim/tenant/interrupter.h"
#include "shim/tenant/test_kernel_module.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::shim {

using namespace std::chrono_literals;

inline constexpr int kPatienceMs = 20'000;  // far more than any step needs; a test that waits this long has failed

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
  bool is_memory_away(std::uint32_t) override {
    if (memory_leaves_at_look > 0 && --memory_leaves_at_look == 0) memory_is_away = true;
    return memory_is_away;
  }
  bool may_fault(std::uint32_t) override { return uses_unified_memory; }
  void waits_frozen(std::uint32_t) override {}
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

  std::atomic<bool> memory_is_away{false};
  std::atomic<int> memory_leaves_at_look{0};  // the first, the second; 0: at none
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
  // As far as a short look can tell.
  bool stays_frozen() const {
    std::this_thread::sleep_for(5ms);
    return module.is_frozen && interrupter->is_frozen(0);
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

}  // namespace gpumux::shim

// SPDX-License-Identifier: Apache-2.0
// Runs that are held off the GPUs, as the daemon's parts do it together. Goal: a suspended run loses its leases and its
// place on the GPUs, and its later tenants get none. The daemon says when it may be frozen, or why not. A frozen tenant
// is told nothing, and no other tenant waits for it. Method: a translator with everything below it, and a clock of the
// test's own. Tenants answer as a library does until they are frozen, and then read nothing.
#include "daemon/tenants/run_suspension.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <memory>

#include "daemon/tenants/translate.h"
#include "daemon/test_support.h"
#include "server/loop/log.h"
#include "wire/lease_page.h"

namespace gpumux::daemon::testing {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kCapacity = 80 * kGiB;
constexpr uid_t kUser = 1000;

struct Machine;

// A program with one seat, whose work takes no time, and whose memory goes where it is told in one step.
class Program final : public Carrier {
 public:
  Program(Machine& machine, std::string run, uid_t uid = kUser);
  ~Program();

  bool send(std::span<const std::byte> message, int fd) override;
  void kill() override { killed = true; }

  template <class Message>
  void say(const Message& message) {
    deliver(wire::encode(message).bytes(), {});
  }
  void open_seat(std::uint8_t gpu = 0);
  void request() { say(wire::Request{.slot = 0}); }
  void report();
  void allocate(std::uint64_t gib) {
    resident += gib * kGiB;
    report();
  }
  // Reads what it was sent, and moves its memory. False: there was nothing to do.
  bool act();
  bool is_granted() const { return (word() & wire::kGranted) != 0; }
  std::uint32_t word() const { return page->slots[0].word.load(std::memory_order_acquire); }
  template <class Message>
  std::size_t count() const {
    std::size_t count = 0;
    for (const wire::DaemonMessage& message : seen) count += std::holds_alternative<Message>(message) ? 1u : 0u;
    return count;
  }

  Machine& machine;
  std::unique_ptr<Session> session;
  wire::LeasePage* page = nullptr;
  bool is_frozen = false;
  bool wants = true;  // the GPU again, when it has lost it
  bool drains = true;
  bool evicts = true;
  bool killed = false;
  std::uint64_t resident = 0, evicted = 0, unpageable = 0;
  std::uint64_t room = 0;
  std::uint32_t sequence = 0;
  wire::Contention contention{};
  std::deque<wire::DaemonMessage> inbox;
  std::vector<wire::DaemonMessage> seen;

 private:
  void deliver(std::span<const std::byte> bytes, os::FileDescriptor fd);
  void take(const wire::DaemonMessage& message);
  bool move();
};

struct Machine {
  explicit Machine(std::size_t count = 1, GpuSettings settings = {}) {
    server::set_log_level(server::LogLevel::kError);
    leases.apply(node::HostBudget{400 * kGiB, 0, 0});
    settings.reserve = 0;
    for (std::size_t i = 0; i < count; ++i) {
      GpuInfo info;
      info.uuid.bytes[0] = static_cast<std::uint8_t>(i);
      info.memory_total = kCapacity;
      leases.add_gpu(info, settings, "");
    }
    parts.suspension.on_changed([this](uid_t, const std::string& run) { changed.push_back(run); });
  }

  // All tenants read and answer until none says anything any more.
  void settle() {
    for (bool any = true; any;) {
      leases.rest();
      if (trials.look()) leases.rest();
      parts.suspension.look();
      any = false;
      for (Program* program : programs) any = program->act() || any;
      EXPECT_EQ(leases.machine().check_invariants(), "");
    }
  }
  void pass(base::Duration time) {
    for (const base::TimePoint end = clock.time + time; clock.time < end;) {
      clock.time = std::min(end, std::max(clock.time, leases.next_deadline().value_or(end)));
      leases.apply(sched::TimePassed{});
      settle();
    }
  }
  void suspend(const std::string& run) {
    parts.suspension.set_suspended({kUser, run}, true);
    settle();
  }
  void resume(const std::string& run) {
    parts.suspension.set_suspended({kUser, run}, false);
    settle();
  }
  RunState state(const std::string& run) const { return parts.suspension.state({kUser, run}); }
  bool any_ended() { return !parts.mail.take_unwritable().empty(); }

  ScriptedClock clock;
  Trace trace{100};
  Leases leases{clock, trace};
  server::AccessRules access = *server::AccessRules::make(Config(), 0, false);
  Trials trials{leases};
  boost::asio::io_context loop;
  boost::asio::thread_pool pool{1};
  HostMemory host{loop, pool, 0, HostFiles()};
  TenantParts parts{leases, access, host};
  Translator translator{leases, trials, access, parts, settings::OnDaemonLoss::kWait};
  std::vector<Program*> programs;
  std::vector<std::string> changed;
  std::uint64_t next = 1;
};

Program::Program(Machine& where, std::string run, uid_t uid) : machine(where) {
  os::FileDescriptor fd = make_page(wire::kLeasePageBytes, true);
  page = static_cast<wire::LeasePage*>(
      ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  session = std::make_unique<Session>(base::TenantId{machine.next++}, server::Peer{::getpid(), uid, {uid}}, *this);
  machine.programs.push_back(this);
  machine.parts.table.add(*session);
  wire::Hello hello{.protocol = wire::kProtocolVersion, .oldest_protocol = wire::kOldestProtocolVersion};
  hello.flags = wire::kKnowsMover;
  wire::set_text(hello.program, "program" + std::to_string(session->id.value));
  wire::set_text(hello.run, run);
  deliver(wire::encode(hello).bytes(), std::move(fd));
}

Program::~Program() {
  std::erase(machine.programs, this);
  machine.translator.ended(*session, "test");
  ::munmap(page, wire::kLeasePageBytes);
}

// The kernel's buffer is bounded; the session ends when it is full.
bool Program::send(std::span<const std::byte> message, int) {
  constexpr std::size_t kBuffer = 300;
  const auto read = wire::decode_from_daemon(message);
  EXPECT_TRUE(read);
  if (inbox.size() >= kBuffer) return false;
  inbox.push_back(*read);
  return true;
}

void Program::deliver(std::span<const std::byte> bytes, os::FileDescriptor fd) {
  const auto done = machine.translator.receive(*session, bytes, ForeignDescriptor(std::move(fd)));
  EXPECT_TRUE(done) << done.error().message();
}

void Program::open_seat(std::uint8_t gpu) {
  wire::SeatOpen open{.slot = 0};
  open.gpu_uuid[0] = gpu;
  say(open);
  report();
  machine.settle();
}

void Program::report() {
  wire::Memory memory{.slot = 0, .room_sequence = sequence, .resident = resident, .evicted = evicted};
  memory.allocated = resident + evicted + unpageable;
  memory.unpageable[0] = unpageable;
  say(memory);
}

bool Program::act() {
  if (is_frozen) return false;
  const bool any = !inbox.empty();
  while (!inbox.empty()) {
    const wire::DaemonMessage message = inbox.front();
    inbox.pop_front();
    seen.push_back(message);
    take(message);
  }
  return move() || any;
}

void Program::take(const wire::DaemonMessage& message) {
  if (const auto* told = std::get_if<wire::Room>(&message)) {
    room = told->room;
    sequence = told->sequence;
    report();
  } else if (const auto* revoke = std::get_if<wire::Revoke>(&message)) {
    say(wire::RevokeSeen{.slot = 0, .epoch = revoke->epoch});
    say(wire::GateClosed{.slot = 0, .epoch = revoke->epoch});
    if (drains) say(wire::Drained{.slot = 0, .epoch = revoke->epoch});
    if (wants) request();
  } else if (const auto* now = std::get_if<wire::Contention>(&message)) {
    contention = *now;
  }
}

bool Program::move() {
  const std::uint64_t has = resident + unpageable;
  if (has > room && resident > 0) {
    if (!evicts || !drains || is_granted()) return false;
    const std::uint64_t bytes = std::min(resident, has - room);
    resident -= bytes;
    evicted += bytes;
  } else if (evicted > 0 && room > has) {
    const std::uint64_t bytes = std::min(evicted, room - has);
    evicted -= bytes;
    resident += bytes;
  } else {
    return false;
  }
  report();
  return true;
}

// ---- suspending and resuming --------------------------------------------------------------------

TEST(RunSuspension, TakesLeaseAndMemory) {
  Machine machine;
  Program a(machine, "a"), b(machine, "b");
  a.open_seat();
  b.open_seat();
  a.allocate(50);
  a.request();
  machine.settle();
  ASSERT_TRUE(a.is_granted());
  EXPECT_EQ(machine.state("a").undrained, 1u);
  EXPECT_FALSE(machine.state("a").is_parked);
  machine.suspend("a");
  EXPECT_FALSE(a.is_granted());
  EXPECT_EQ(a.resident, 0u);
  EXPECT_EQ(a.evicted, 50 * kGiB);
  const RunState state = machine.state("a");
  EXPECT_EQ(state.tenants, 1u);
  EXPECT_EQ(state.seats, 1u);
  EXPECT_EQ(state.undrained, 0u);
  EXPECT_EQ(state.evictable_on_gpu, 0u);
  EXPECT_EQ(state.allocated, 50 * kGiB);
  EXPECT_TRUE(state.is_parked);
  EXPECT_FALSE(state.is_stuck);
  EXPECT_FALSE(machine.changed.empty());
  // The other one has the GPU alone, whatever the suspended one asks for.
  a.request();
  b.request();
  b.allocate(75);
  machine.settle();
  EXPECT_TRUE(b.is_granted());
  EXPECT_FALSE(a.is_granted());
  EXPECT_EQ(b.resident, 75 * kGiB);
  machine.resume("a");
  for (int i = 0; i < 100 && !a.is_granted(); ++i) machine.pass(1s);
  EXPECT_TRUE(a.is_granted()) << "the quantum of the other one is over";
  EXPECT_EQ(a.resident, 50 * kGiB);
  EXPECT_EQ(machine.state("a").evictable_on_gpu, 50 * kGiB);
}

TEST(RunSuspension, IsForThoseThatComeLaterToo) {
  Machine machine;
  machine.suspend("a");
  EXPECT_TRUE(machine.state("a").is_parked) << "nobody is there";
  EXPECT_EQ(machine.changed, std::vector<std::string>{"a"}) << "each suspension is answered";
  Program a(machine, "a");
  a.open_seat();
  a.request();
  a.allocate(10);
  machine.settle();
  EXPECT_FALSE(a.is_granted());
  EXPECT_EQ(a.resident, 0u);
  EXPECT_TRUE(machine.state("a").is_parked);
  machine.resume("a");
  EXPECT_TRUE(a.is_granted());
  EXPECT_EQ(a.resident, 10 * kGiB);
}

TEST(RunSuspension, IsOfOneUsersRun) {
  Machine machine(3);
  Program mine(machine, "a"), other(machine, "b"), nobodys(machine, ""), anothers(machine, "a", kUser + 1);
  mine.open_seat(0);
  other.open_seat(0);
  nobodys.open_seat(1);
  anothers.open_seat(2);
  machine.suspend("a");
  machine.suspend("");
  for (Program* program : machine.programs) program->request();
  machine.settle();
  EXPECT_FALSE(mine.is_granted());
  EXPECT_TRUE(other.is_granted());
  EXPECT_TRUE(nobodys.is_granted());
  EXPECT_TRUE(anothers.is_granted());
}

// The queue of jobs counts the memory of all programs that are not its own.
TEST(RunSuspension, SaysWhatMemoryOthersHave) {
  Machine machine(2);
  Program a(machine, "a"), b(machine, "b"), c(machine, "");
  a.open_seat(0);
  b.open_seat(0);
  c.open_seat(1);
  a.allocate(10);
  b.allocate(20);
  c.unpageable = 3 * kGiB;
  c.allocate(4);
  machine.suspend("a");
  const auto others = machine.parts.suspension.memory_outside({{kUser, "a"}});
  ASSERT_EQ(others.size(), 2u);
  EXPECT_EQ(others[0].on_gpu, 20 * kGiB);
  EXPECT_EQ(others[0].allocated, 20 * kGiB) << "not what of a is evicted";
  EXPECT_EQ(others[1].on_gpu, 7 * kGiB);
  EXPECT_EQ(others[1].unpageable, 3 * kGiB);
}

// ---- what does not come to rest -----------------------------------------------------------------

TEST(RunSuspension, SaysWhenWorkDoesNotDrain) {
  Machine machine;
  Program a(machine, "a");
  a.open_seat();
  a.request();
  machine.settle();
  a.drains = false;
  machine.suspend("a");
  EXPECT_FALSE(machine.state("a").is_stuck);
  machine.pass(11s);
  const RunState state = machine.state("a");
  EXPECT_TRUE(state.is_stuck);
  EXPECT_FALSE(state.is_parked);
  EXPECT_EQ(state.undrained, 1u);
  EXPECT_NE(state.why.find("did not finish"), std::string::npos) << state.why;
  EXPECT_NE(state.why.find("program1"), std::string::npos) << state.why;
  // Taken back: it goes on, at the latest when the revocation that is under way has stalled.
  machine.resume("a");
  EXPECT_FALSE(machine.state("a").is_stuck);
  machine.pass(11s);
  EXPECT_TRUE(a.is_granted());
}

TEST(RunSuspension, SaysWhenMemoryCannotLeave) {
  Machine machine;
  Program a(machine, "a");
  a.open_seat();
  a.allocate(20);
  a.evicts = false;
  machine.suspend("a");
  EXPECT_FALSE(machine.state("a").is_stuck) << "host memory may be made at this moment";
  EXPECT_NE(machine.state("a").why.find("still on its GPUs"), std::string::npos);
  machine.pass(kClearingPatience);
  const RunState state = machine.state("a");
  EXPECT_TRUE(state.is_stuck);
  EXPECT_FALSE(state.is_parked);
  EXPECT_EQ(state.evictable_on_gpu, 20 * kGiB);
  EXPECT_NE(state.why.find("20"), std::string::npos) << state.why;
  EXPECT_NE(state.why.find("host memory"), std::string::npos) << state.why;
  const std::size_t news = machine.changed.size();
  a.evicts = true;
  a.report();
  machine.settle();
  EXPECT_TRUE(machine.state("a").is_parked);
  EXPECT_GT(machine.changed.size(), news);
}

// ---- frozen -------------------------------------------------------------------------------------

// A frozen process finds its connection as it was, and little to read, whatever has happened on the machine.
TEST(RunSuspension, SaysNothingToWhoIsFrozen) {
  GpuSettings settings;
  settings.kill_silent_after = 1s;
  Machine machine(1, settings);
  Program a(machine, "a");
  Program second(machine, "a");  // has no seat
  Program b(machine, "b");
  a.open_seat();
  b.open_seat();
  a.allocate(60);
  a.request();
  machine.settle();
  machine.suspend("a");
  ASSERT_TRUE(machine.state("a").is_parked);
  a.is_frozen = second.is_frozen = true;
  machine.changed.clear();
  b.request();
  for (int i = 0; i < 1000; ++i) {
    settings.idle_hold = std::chrono::milliseconds(1 + i % 7);
    settings.in_flight = std::chrono::milliseconds(1 + i % 5);
    machine.leases.set_settings({0}, settings);
    b.resident = static_cast<std::uint64_t>(1 + i % 70) * kGiB;
    b.report();
    machine.leases.apply(node::GpuSampled{{0}, static_cast<std::uint64_t>(i % 5) * kGiB, machine.clock.time, false});
    machine.pass(100ms);
    if (i % 10 == 0) {
      const Program newcomer(machine, "c");
    }
  }
  EXPECT_FALSE(machine.any_ended());
  EXPECT_EQ(a.inbox.size(), 0u);
  EXPECT_EQ(second.inbox.size(), 0u);
  EXPECT_FALSE(a.killed);
  EXPECT_TRUE(machine.changed.empty());
  EXPECT_TRUE(machine.state("a").is_parked);
  EXPECT_TRUE(b.is_granted());
  // Thawed and resumed: it learns what has changed, and goes on.
  b.wants = false;
  a.is_frozen = second.is_frozen = false;
  machine.resume("a");
  machine.pass(60s);
  EXPECT_EQ(a.contention.idle_hold_ns, static_cast<std::uint64_t>(settings.idle_hold.value().value().count()));
  EXPECT_EQ(a.contention.in_flight_ns, static_cast<std::uint64_t>(settings.in_flight.value().count()));
  EXPECT_EQ(a.resident, 60 * kGiB);
  EXPECT_FALSE(a.killed);
}

// A restarted daemon waits for its tenants; a frozen one does not come.
TEST(RunSuspension, SaysWhoIsNotToBeWaitedFor) {
  Machine machine;
  Program a(machine, "a"), b(machine, "b");
  a.open_seat();
  b.open_seat();
  a.allocate(20);
  a.evicts = false;
  std::vector<std::uint64_t> told;
  machine.parts.table.on_changed([&](const Session& session) { told.push_back(session.id.value); });
  machine.suspend("a");
  EXPECT_FALSE(machine.parts.suspension.is_parked(*a.session)) << "its memory is still there";
  EXPECT_TRUE(told.empty());
  a.evicts = true;
  a.report();
  machine.settle();
  EXPECT_TRUE(machine.parts.suspension.is_parked(*a.session));
  EXPECT_FALSE(machine.parts.suspension.is_parked(*b.session));
  EXPECT_EQ(told, std::vector<std::uint64_t>{a.session->id.value}) << "the list of tenants is written anew";
  machine.resume("a");
  EXPECT_FALSE(machine.parts.suspension.is_parked(*a.session));
  EXPECT_EQ(told.size(), 2u);
}

TEST(RunSuspension, EndsWithItsLastTenantOnlyWhenItIsResumed) {
  Machine machine;
  {
    Program a(machine, "a");
    a.open_seat();
    machine.suspend("a");
  }
  machine.settle();
  EXPECT_EQ(machine.state("a").tenants, 0u);
  EXPECT_TRUE(machine.state("a").is_parked);
  machine.resume("a");
  EXPECT_FALSE(machine.state("a").is_parked);
  Program again(machine, "a");
  again.open_seat();
  again.request();
  machine.settle();
  EXPECT_TRUE(again.is_granted());
}

}  // namespace
}  // namespace gpumux::daemon::testing

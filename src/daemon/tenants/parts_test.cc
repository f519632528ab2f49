// SPDX-License-Identifier: Apache-2.0
// Goal: the daemon's small parts do what their headers say.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>

#include "daemon/gpus/leases.h"
#include "daemon/loop/attention.h"
#include "daemon/loop/rate_limit.h"
#include "daemon/loop/trace.h"
#include "daemon/peers/known_tenants.h"
#include "daemon/service_manager.h"
#include "daemon/test_support.h"
#include "os/pidfd.h"
#include "os/system_clock.h"
#include "server/loop/files.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

TEST(RateLimit, GivesABurstAndThenARate) {
  RateLimit limit(3, 10);
  base::TimePoint now(1s);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.take(now));
  EXPECT_FALSE(limit.take(now));
  EXPECT_FALSE(limit.take(now + 99ms));
  EXPECT_TRUE(limit.take(now + 100ms));
  EXPECT_FALSE(limit.take(now + 101ms));
  // A long pause gives the burst back and no more.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.take(now + 1h));
  EXPECT_FALSE(limit.take(now + 1h));
}

// A program that waits asks every 100 ms. A request that comes after its grant is no wait, for the histogram neither.
TEST(Trace, ARequestThatHasCrossedItsGrantIsNone) {
  const os::SystemClock clock;
  Trace trace;
  Leases leases(clock, trace);
  base::LeaseEpoch epoch;
  leases.set_executor([&epoch](const node::Command& command) {
    const auto* lease = std::get_if<sched::Command>(&command);
    const auto* grant = lease == nullptr ? nullptr : std::get_if<sched::Grant>(lease);
    if (grant != nullptr) epoch = grant->epoch;
  });
  leases.add_gpu({}, {}, "");
  leases.connected({1}, TenantLabel::make(1, 0, "worker"));
  const base::SeatId seat{{1}, {0}};
  leases.apply(node::SeatOpened{.lease = {seat, 1}});
  const auto requests = [&trace] {
    int count = 0;
    for (std::uint64_t i = 1; i <= trace.last_sequence(); ++i)
      count += trace.at_or_after(i)->event == "request" ? 1 : 0;
    return count;
  };
  leases.apply(sched::Requested{seat});
  ASSERT_NE(epoch.value, 0u);
  leases.apply(sched::Requested{seat});
  EXPECT_EQ(requests(), 1);
  leases.apply(sched::Drained{seat, epoch, false});
  leases.apply(sched::Requested{seat});
  EXPECT_EQ(requests(), 2);
}

// A job's number and name are its owner's where others see no names.
TEST(Trace, HidesJobsAsItHidesPrograms) {
  const auto line = [](const TraceEntry& entry, std::optional<uid_t> names_of) {
    std::string text;
    append_json_line(text, entry, names_of);
    return text;
  };
  const TraceEntry job{.sequence = 3,
                       .event = "job",
                       .detail = "running",
                       .before = "starting",
                       .lasted = 5ns,
                       .label = TenantLabel::make(0, 1000, "secret", {}, 17)};
  const TraceEntry tenant{
      .sequence = 4, .event = "open", .tenant = {9}, .label = TenantLabel::make(7, 1000, "secret", {}, 17)};
  const std::string tail = "\"detail\": \"running\", \"before\": \"starting\", \"before_ns\": 5}\n";
  EXPECT_EQ(line(job, {}),
            "{\"sequence\": 3, \"time_ns\": 0, \"event\": \"job\", \"name\": \"secret\", \"job\": 17, " + tail);
  EXPECT_EQ(line(job, 1000), line(job, {}));
  EXPECT_EQ(line(job, 1001), "{\"sequence\": 3, \"time_ns\": 0, \"event\": \"job\", " + tail);
  EXPECT_NE(line(tenant, 1000).find("\"job\": 17"), std::string::npos);
  EXPECT_EQ(line(tenant, 1001).find("17"), std::string::npos);
}

// A tenant reports every few milliseconds while its memory moves.
TEST(Trace, SaysWhichWayMemoryMoves) {
  const os::SystemClock clock;
  Trace trace;
  Leases leases(clock, trace);
  GpuInfo info;
  info.memory_total = std::uint64_t{1} << 30;
  leases.add_gpu(info, {}, "");
  leases.connected({1}, TenantLabel::make(1, 0, "worker"));
  const base::SeatId seat{{1}, {0}};
  leases.apply(node::SeatOpened{.lease = {seat, 1}});
  // The pager counts memory twice while it restores it (MemoryReport::moving).
  struct Row {
    std::uint64_t resident = 0, evicted = 0;
    bool moving = false;
    std::string traced;
  };
  for (const Row& row : {
           Row{100, 0, false, ""},
           Row{90, 10, true, "evicted moves:out"},
           Row{50, 50, true, ""},
           Row{50, 50, true, ""},
           Row{0, 100, false, "moves:nowhere"},
           Row{0, 120, false, ""},
           Row{60, 120, true, "moves:in"},
           Row{60, 60, true, ""},
           Row{40, 80, true, "moves:out"},
           Row{80, 40, true, "moves:in"},
           Row{120, 0, true, "moves:nowhere complete"},
           Row{120, 0, false, ""},
           Row{120, 30, false, "evicted"},
           Row{150, 0, false, "complete"},
       }) {
    const std::uint64_t before = trace.last_sequence();
    leases.apply(node::MemoryReported{seat,
                                      {.allocated = row.resident + row.evicted,
                                       .resident = row.resident,
                                       .evicted = row.evicted,
                                       .moving = row.moving}});
    std::string traced;
    for (std::uint64_t i = before + 1; i <= trace.last_sequence(); ++i) {
      const TraceEntry* const entry = trace.at_or_after(i);
      traced += (traced.empty() ? "" : " ") + std::string(entry->event) +
                (entry->detail.empty() ? "" : ":" + std::string(entry->detail));
    }
    EXPECT_EQ(traced, row.traced) << row.resident << " on the GPU, " << row.evicted << " not";
  }
}

// It says the same as the ledger. A lease that is taken back may have been used until then.
TEST(Trace, SaysHowLongALeaseWasIdleBeforeItWasGivenUp) {
  class Clock final : public base::Clock {
   public:
    base::TimePoint now() const override { return now_; }
    base::TimePoint now_{1s};
  } clock;
  Trace trace;
  Leases leases(clock, trace);
  std::map<std::uint64_t, base::LeaseEpoch> epochs;
  leases.set_executor([&epochs](const node::Command& command) {
    const auto* lease = std::get_if<sched::Command>(&command);
    const auto* grant = lease == nullptr ? nullptr : std::get_if<sched::Grant>(lease);
    if (grant != nullptr) epochs[grant->seat.tenant.value] = grant->epoch;
  });
  GpuSettings long_ones;
  long_ones.idle_hold = settings::Limit<base::Duration>(1s);
  long_ones.quantum = settings::Limit<base::Duration>(1s);
  leases.add_gpu({}, long_ones, "");
  const base::SeatId one{{1}, {0}}, two{{2}, {0}};
  for (const base::SeatId seat : {one, two}) {
    leases.connected(seat.tenant, TenantLabel::make(1, 0, "worker"));
    leases.apply(node::SeatOpened{.lease = {seat, 1}});
    leases.apply(sched::Requested{seat});
  }
  const auto idle = [&](base::SeatId seat) {
    const TraceEntry* last = nullptr;
    for (std::uint64_t i = 1; i <= trace.last_sequence(); ++i) {
      const TraceEntry* const entry = trace.at_or_after(i);
      if (entry->event == "drained" && entry->tenant == seat.tenant) last = entry;
    }
    EXPECT_NE(last, nullptr);
    EXPECT_EQ(last->before, last->lasted > 0s ? "idle" : "");
    std::string line;
    append_json_line(line, *last);
    EXPECT_EQ(line.find("before") != std::string::npos, last->lasted > 0s) << line;
    return last->lasted;
  };
  clock.now_ += 100ms;
  leases.apply(sched::Idling{one, epochs[1]});
  clock.now_ += 30ms;
  leases.apply(sched::Drained{one, epochs[1], false});
  EXPECT_EQ(idle(one), 30ms);
  EXPECT_EQ(leases.totals(one, clock.now_).idle, 30ms);
  // This one idles, too, and is revoked.
  leases.apply(sched::Requested{one});
  leases.apply(sched::Idling{two, epochs[2]});
  clock.now_ += 2s;
  leases.apply(sched::TimePassed{});
  leases.apply(sched::GateClosed{two, epochs[2]});
  leases.apply(sched::Drained{two, epochs[2], false});
  EXPECT_EQ(idle(two), 0ms);
}

TEST(Attention, IsBoundedEachTimeAndOverTime) {
  os::pretend_spare_cores(true);
  Attention attention;
  base::TimePoint now(1s);
  EXPECT_FALSE(attention.is_expecting());
  attention.expect(now);
  EXPECT_TRUE(attention.is_expecting());
  EXPECT_TRUE(attention.goes_on(now + kHandOverAttention - 1us));
  EXPECT_FALSE(attention.goes_on(now + kHandOverAttention));
  EXPECT_FALSE(attention.is_expecting());
  attention.expect(now);
  attention.done();
  EXPECT_FALSE(attention.goes_on(now + 1us)) << "what was expected has come";
  // Hand-overs that are announced all the time and never come.
  base::Duration spun{};
  for (now += 1s; now < base::TimePoint(3s); now += 10us) {
    attention.expect(now);
    if (attention.goes_on(now)) spun += 10us;
  }
  EXPECT_LT(spun, 1000ms / kAttentionShare + kAttentionReserve + 10ms);
  EXPECT_GT(spun, 100ms);
  os::pretend_spare_cores(false);
  attention.expect(now);
  EXPECT_FALSE(attention.goes_on(now)) << "there is no core for it";
}

TEST(KnownTenants, ComeBackFromTheirFile) {
  const KnownTenants tenants{{7, {100, 2}}, {9, {5, 0}}};
  const auto read = parse_known_tenants(format_known_tenants(tenants));
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read.at(7).start_time, 100u);
  EXPECT_EQ(read.at(7).seats, 2u);
  EXPECT_EQ(parse_known_tenants("\n7\n7 8\n-1 2 3\n0 1 1\nx y z\n7 8 99999\n5 6 1").size(), 1u);
}

TEST(KnownTenants, ThatEndedOrWereReplacedAreNotWaitedFor) {
  const auto self = server::process_info(getpid());
  ASSERT_TRUE(self);
  EXPECT_EQ(still_living({{getpid(), {self->start_time, 1}}}).size(), 1u);
  EXPECT_EQ(still_living({{getpid(), {self->start_time + 1, 1}}}).size(), 0u);
  EXPECT_EQ(still_living({{INT32_MAX, {1, 1}}}).size(), 0u);
}

TEST(Trace, KeepsTheNewestAndSaysWhatIsGone) {
  Trace trace(4);
  EXPECT_EQ(trace.at_or_after(1), nullptr);
  for (int i = 0; i < 10; ++i) trace.record({.event = "grant"});
  EXPECT_EQ(trace.last_sequence(), 10u);
  EXPECT_EQ(trace.at_or_after(1)->sequence, 7u);
  EXPECT_EQ(trace.at_or_after(9)->sequence, 9u);
  EXPECT_EQ(trace.at_or_after(11), nullptr);
}

TEST(Pidfd, TellsThatAProcessHasEnded) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const auto pidfd = os::open_pidfd(child);
  ASSERT_TRUE(pidfd);
  EXPECT_FALSE(os::has_ended(pidfd->get()));
  ASSERT_TRUE(os::kill_process(pidfd->get()));
  EXPECT_TRUE(testing::eventually([&] { return os::has_ended(pidfd->get()); }));
  EXPECT_FALSE(os::open_pidfd(0));
}

TEST(ServiceManager, SpeaksToSystemdAndToWhoeverStartedUs) {
  const TemporaryDirectory dir;
  const std::string path = dir.path() + "/notify";
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  ::setenv("WATCHDOG_USEC", "2000000", 1);
  ServiceManager manager(pipes[1]);
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(manager.watchdog_interval(), base::Duration(1s));
  manager.ready();
  char buffer[64] = {};
  ASSERT_GT(::recv(socket.get(), buffer, sizeof buffer, 0), 0);
  EXPECT_EQ(std::string(buffer).find("READY=1\n"), 0u);
  char ready[16] = {};
  ASSERT_EQ(read(pipes[0], ready, sizeof ready), 8);
  EXPECT_STREQ(ready, "READY=1\n");
  EXPECT_EQ(read(pipes[0], ready, sizeof ready), 0);  // and the descriptor is closed
  close(pipes[0]);
}

}  // namespace
}  // namespace gpumux::daemon

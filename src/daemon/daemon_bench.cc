// SPDX-License-Identifier: Apache-2.0
// How the daemon bears 1,000 connected tenants of which 200 contend.
//
// A daemon runs in a process of its own (its memory is what is measured), this one plays all tenants: they connect,
// open a seat each on eight GPUs that do not exist, and 200 of them ask, are revoked when their quantum of 5 ms ends,
// answer at once and ask again. One more GPU has a single tenant, the probe, who asks and gives back; how long it takes
// from his message to his lease is what any event takes to be handled while the others contend. The daemon itself
// counts how late it is for its own deadlines (GET /v1/daemon).
//
//   daemon_bench [--seconds 5] [--tenants 1000] [--contending 200]
//
// The probe's figure includes waking this process up: on a machine with fewer than three free cores it measures that.
// The figure of the same moments without any contention is printed beside it.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "daemon/files.h"
#include "daemon/log.h"
#include "daemon/test_support.h"
#include "os/unix_socket.h"

namespace gpumux::daemon {
namespace {

using namespace testing;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kGpus = 8;

struct Arguments {
  std::size_t seconds = 5;
  std::size_t tenants = 1000;
  std::size_t contending = 200;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "daemon_bench: %s\n", what);
  std::exit(1);
}

std::size_t memory_kib(pid_t pid, const char* field) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/status", 65536);
  if (!text) return 0;
  const std::size_t at = text->find(field);
  return at == std::string::npos ? 0 : std::strtoul(text->c_str() + at + std::strlen(field), nullptr, 10);
}

std::string field_of(const std::string& json, const std::string& name) {
  const std::size_t at = json.find("\"" + name + "\":");
  if (at == std::string::npos) return "?";
  const std::size_t begin = at + name.size() + 3;
  return json.substr(begin, json.find_first_of(",}", begin) - begin);
}

class Percentiles {
 public:
  void add(std::chrono::nanoseconds value) { values_.push_back(static_cast<double>(value.count()) / 1000); }
  void print(const char* name) {
    if (values_.empty()) return;
    std::sort(values_.begin(), values_.end());
    const auto at = [&](double part) {
      return values_[static_cast<std::size_t>(part * static_cast<double>(values_.size() - 1))];
    };
    std::printf("%-44s n %6zu   median %8.1f us   p99 %8.1f us   largest %8.1f us\n", name, values_.size(), at(0.5),
                at(0.99), values_.back());
  }

 private:
  std::vector<double> values_;
};

// Answers what the daemon says to one tenant, and asks again.
void answer(TestTenant& tenant, std::uint64_t& revocations) {
  while (auto message = tenant.receive(std::chrono::nanoseconds(0))) {
    const auto* revoke = std::get_if<wire::Revoke>(&*message);
    if (revoke == nullptr) continue;
    ++revocations;
    tenant.send(wire::RevokeSeen{.slot = 0, .epoch = revoke->epoch});
    tenant.send(wire::GateClosed{.slot = 0, .epoch = revoke->epoch});
    tenant.send(wire::Drained{.slot = 0, .epoch = revoke->epoch});
    tenant.request();
  }
}

void probe_once(TestTenant& probe, Percentiles& latency) {
  const auto begin = Clock::now();
  probe.request();
  while (!probe.is_granted()) {
    if (Clock::now() - begin > kPatience) fail("the probe is not granted its GPU");
  }
  latency.add(Clock::now() - begin);
  probe.release();
}

class FixedInventory final : public Inventory {
 public:
  explicit FixedInventory(const std::vector<base::GpuUuid>& uuids) {
    for (const auto& uuid : uuids)
      gpus_.push_back({uuid, uuid.to_string(), "Test GPU", "0000:00:00.0", "default", 80ull << 30});
  }
  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  const DriverInfo& driver() const override { return driver_; }
  std::vector<GpuUse> read_use() override { return std::vector<GpuUse>(gpus_.size()); }

 private:
  std::vector<GpuInfo> gpus_;
  DriverInfo driver_;
};

int run_daemon(const std::string& dir, const std::vector<base::GpuUuid>& uuids, int notify_fd) {
  auto options = TestDaemon::options_in(dir);
  options.flag_settings = {{"quantum", "5ms"}};
  options.notify_fd = notify_fd;
  options.handle_signals = true;
  auto daemon = Daemon::make(std::move(options), std::make_unique<FixedInventory>(uuids));
  if (!daemon) return 1;
  start_log(LogLevel::kWarning);
  const int code = (*daemon)->run();
  stop_log();
  return code;
}

void measure(const Arguments& arguments, const std::string& dir, const std::vector<base::GpuUuid>& uuids,
             pid_t daemon) {
  std::printf("daemon with no tenants: %zu KiB resident\n", memory_kib(daemon, "VmRSS:"));
  TestTenant probe(dir, "probe");
  if (!probe.join() || !probe.open_seat(0, uuids[kGpus])) fail("the probe cannot connect");
  Percentiles alone;
  for (int i = 0; i < 1000; ++i) probe_once(probe, alone);
  alone.print("message to lease, nobody else there");

  std::vector<std::unique_ptr<TestTenant>> tenants;
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::size_t i = 0; i < arguments.tenants; ++i) {
    auto tenant = std::make_unique<TestTenant>(dir, "tenant " + std::to_string(i));
    if (!tenant->join() || !tenant->open_seat(0, uuids[i % kGpus])) fail("a tenant cannot connect");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = tenant.get();
    ::epoll_ctl(poller, EPOLL_CTL_ADD, tenant->socket(), &event);
    tenants.push_back(std::move(tenant));
  }
  std::printf("daemon with %zu tenants: %zu KiB resident\n", tenants.size() + 1, memory_kib(daemon, "VmRSS:"));

  const std::string before = http(dir, "GET", "/v1/daemon").body;
  std::uint64_t revocations = 0;
  Percentiles contended;
  for (std::size_t i = 0; i < std::min(arguments.contending, tenants.size()); ++i) tenants[i]->request();
  const auto end = Clock::now() + std::chrono::seconds(arguments.seconds);
  auto next_probe = Clock::now();
  std::vector<epoll_event> events(256);
  while (Clock::now() < end) {
    const int count = ::epoll_wait(poller, events.data(), static_cast<int>(events.size()), 1);
    for (int i = 0; i < count; ++i) {
      answer(*static_cast<TestTenant*>(events[static_cast<std::size_t>(i)].data.ptr), revocations);
    }
    // Now and then, so that the others go on meanwhile.
    if (Clock::now() >= next_probe) {
      probe_once(probe, contended);
      next_probe = Clock::now() + 5ms;
    }
  }
  contended.print("message to lease, while they contend");
  const std::string after = http(dir, "GET", "/v1/daemon").body;
  std::printf("revocations: %llu, %.0f a second\n", static_cast<unsigned long long>(revocations),
              static_cast<double>(revocations) / static_cast<double>(arguments.seconds));
  std::printf("daemon's deadlines: %s met, %s of them over 1 ms late, the latest %s ns late (before: %s, %s, %s)\n",
              field_of(after, "fired").c_str(), field_of(after, "late_over_1ms").c_str(),
              field_of(after, "latest_ns").c_str(), field_of(before, "fired").c_str(),
              field_of(before, "late_over_1ms").c_str(), field_of(before, "latest_ns").c_str());
  const auto begin = Clock::now();
  const std::size_t bytes = http(dir, "GET", "/v1/status").body.size();
  std::printf("GET /v1/status: %zu bytes in %.1f ms\n", bytes,
              static_cast<double>(std::chrono::nanoseconds(Clock::now() - begin).count()) / 1e6);
  std::printf("daemon after the load: %zu KiB resident, %zu KiB at most\n", memory_kib(daemon, "VmRSS:"),
              memory_kib(daemon, "VmHWM:"));
  ::close(poller);
}

int run(const Arguments& arguments) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const TemporaryDirectory dir;
  std::vector<base::GpuUuid> uuids;
  for (std::size_t i = 0; i <= kGpus; ++i) uuids.push_back(test_uuid(static_cast<std::uint8_t>(i)));
  int ready[2];
  if (::pipe(ready) != 0) fail("cannot make a pipe");
  const pid_t daemon = ::fork();
  if (daemon == 0) {
    ::close(ready[0]);
    ::_exit(run_daemon(dir.path(), uuids, ready[1]));
  }
  ::close(ready[1]);
  char byte;
  if (::read(ready[0], &byte, 1) != 1) fail("the daemon does not start");
  measure(arguments, dir.path(), uuids, daemon);
  ::kill(daemon, SIGTERM);
  int status = 0;
  ::waitpid(daemon, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace gpumux::daemon

int main(int argc, char** argv) {
  gpumux::daemon::Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::size_t value = std::strtoul(argv[i + 1], nullptr, 10);
    if (name == "--seconds") arguments.seconds = value;
    if (name == "--tenants") arguments.tenants = value;
    if (name == "--contending") arguments.contending = value;
  }
  return gpumux::daemon::run(arguments);
}

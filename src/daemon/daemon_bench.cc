// SPDX-License-Identifier: Apache-2.0
// How the daemon bears 1,000 connected tenants of which 200 contend.
//
// The daemon runs in a process of its own, whose memory is measured. This process plays all tenants: they connect, open
// a seat each on eight GPUs that do not exist, and report their memory. 200 of them ask, are revoked when their quantum
// of 5 ms ends, answer at once and ask again. From each Drained to the next one's grant is a hand-over. One more GPU
// has a single tenant, the probe, in a process of its own. It asks and gives back. The time from its message to its
// lease is the time that the daemon takes for any event while the others contend. The daemon itself counts how late it
// is for its own deadlines (GET /v1/daemon).
//
//   daemon_bench [--seconds 5] [--tenants 1000] [--contending 200]
//
// Every figure includes waking a process: with fewer than four free cores the benchmark measures that. The baseline is
// a message there and back between two processes, over a socket of the same kind, in the same run. It is taken before
// the others contend, and while they do.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "daemon/test_support.h"
#include "os/unix_socket.h"
#include "server/loop/files.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

using namespace testing;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kGpus = 8;
// All of them fit together, contexts too: the benchmark measures messages and turns, not memory that moves.
constexpr std::uint64_t kGpuBytes = std::uint64_t{2} << 40;
constexpr std::uint64_t kTenantBytes = std::uint64_t{128} << 20;

struct Arguments {
  std::size_t seconds = 5;
  std::size_t tenants = 1000;
  std::size_t contending = 200;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "daemon_bench: %s\n", what);
  std::exit(1);
}

std::size_t memory_kib(pid_t pid, const char* file, const char* field) {
  const auto text = server::read_file("/proc/" + std::to_string(pid) + "/" + file, 65536);
  if (!text) return 0;
  const std::size_t at = text->find(field);
  return at == std::string::npos ? 0 : std::strtoul(text->c_str() + at + std::strlen(field), nullptr, 10);
}

// The processor time that the process has used so far, in seconds.
double cpu_seconds(pid_t pid) {
  const auto text = server::read_file("/proc/" + std::to_string(pid) + "/stat", 65536);
  if (!text) return 0;
  unsigned long user = 0, system = 0;
  std::sscanf(text->c_str() + text->rfind(')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
              &system);
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::string field_of(const std::string& json, const std::string& name) {
  const std::size_t at = json.find("\"" + name + "\":");
  if (at == std::string::npos) return "?";
  const std::size_t begin = at + name.size() + 3;
  return json.substr(begin, json.find_first_of(",}", begin) - begin);
}

class Percentiles {
 public:
  static void print_head() {
    std::printf("%-52s %8s %9s %9s %9s %9s\n", "microseconds", "n", "median", "p99", "p99.9", "largest");
  }
  void add(std::chrono::nanoseconds value) { values_.push_back(static_cast<double>(value.count()) / 1000); }
  const std::vector<double>& values() const { return values_; }
  void take(const std::vector<double>& values) { values_.insert(values_.end(), values.begin(), values.end()); }
  void print(const char* name) {
    if (values_.empty()) return;
    std::sort(values_.begin(), values_.end());
    const auto at = [&](double part) {
      return values_[static_cast<std::size_t>(part * static_cast<double>(values_.size() - 1))];
    };
    std::printf("%-52s %8zu %9.1f %9.1f %9.1f %9.1f\n", name, values_.size(), at(0.5), at(0.99), at(0.999),
                values_.back());
  }

 private:
  std::vector<double> values_;
};

// One GPU's hand-over that is under way.
struct HandOver {
  Clock::time_point drained{};
  bool is_open = false;
};

struct Load {
  std::uint64_t revocations = 0;
  std::uint64_t rooms = 0;  // bounds that tenants were told
  std::array<HandOver, kGpus> hand_overs{};
  Percentiles latency;
};

// Answers what the daemon says to one tenant of GPU `gpu`, and asks again.
void answer(TestTenant& tenant, std::size_t gpu, Load& load) {
  while (auto message = tenant.receive(std::chrono::nanoseconds(0))) {
    if (const auto* room = std::get_if<wire::Room>(&*message)) {
      ++load.rooms;
      tenant.send(wire::Memory{
          .slot = 0, .room_sequence = room->sequence, .allocated = kTenantBytes, .resident = kTenantBytes});
      continue;
    }
    // With each contended grant.
    const auto* contention = std::get_if<wire::Contention>(&*message);
    if (contention != nullptr && contention->contended != 0 && load.hand_overs[gpu].is_open) {
      load.hand_overs[gpu].is_open = false;
      load.latency.add(Clock::now() - load.hand_overs[gpu].drained);
    }
    const auto* revoke = std::get_if<wire::Revoke>(&*message);
    if (revoke == nullptr) continue;
    ++load.revocations;
    tenant.send(wire::RevokeSeen{.slot = 0, .epoch = revoke->epoch});
    // The gate's being closed is what the next one waits for.
    load.hand_overs[gpu] = {Clock::now(), true};
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

// A message there and back, over a socket of the same kind: the least that two processes of this machine need.
class Echo {
 public:
  Echo() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("cannot make a pair of sockets");
    mine_ = os::FileDescriptor(ends[0]);
    other_ = ::fork();
    if (other_ == 0) {
      mine_.reset();
      std::array<char, 64> buffer;
      for (ssize_t size = 0; (size = ::read(ends[1], buffer.data(), buffer.size())) > 0;) {
        if (::write(ends[1], buffer.data(), static_cast<std::size_t>(size)) != size) break;
      }
      ::_exit(0);
    }
    ::close(ends[1]);
  }
  ~Echo() {
    mine_.reset();
    ::waitpid(other_, nullptr, 0);
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
  void once(Percentiles& latency) {
    char message[16] = {};
    const auto begin = Clock::now();
    if (::write(mine_.get(), message, sizeof message) != sizeof message ||
        ::read(mine_.get(), message, sizeof message) != sizeof message)
      fail("the echo does not answer");
    latency.add(Clock::now() - begin);
  }

 private:
  os::FileDescriptor mine_;
  pid_t other_ = -1;
};

// A process of its own that asks for its GPU, and for an echo, now and then until it is told to end. It writes its
// measurements to `results`, each after its number.
[[noreturn]] void run_probe(const std::string& dir, const base::GpuUuid& uuid, int end_fd, int results) {
  Echo echo;
  TestTenant probe(dir, "probe");
  if (!probe.join() || !probe.open_seat(0, uuid)) fail("the probe cannot connect");
  Percentiles grants, echoes;
  pollfd ended{end_fd, POLLIN, 0};
  while (::poll(&ended, 1, 5) == 0) {
    while (auto message = probe.receive(std::chrono::nanoseconds(0))) {
      if (const auto* room = std::get_if<wire::Room>(&*message))
        probe.send(wire::Memory{.slot = 0, .room_sequence = room->sequence});
    }
    probe_once(probe, grants);
    echo.once(echoes);
  }
  for (const Percentiles* one : {&grants, &echoes}) {
    const std::size_t count = one->values().size();
    const auto bytes = std::as_bytes(std::span(one->values()));
    if (::write(results, &count, sizeof count) != sizeof count ||
        ::write(results, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      fail("the probe cannot say what it has measured");
  }
  ::_exit(0);
}

class Probe {
 public:
  Probe(const std::string& dir, const base::GpuUuid& uuid) {
    int end[2], results[2];
    if (::pipe(end) != 0 || ::pipe(results) != 0) fail("cannot make a pipe");
    child_ = ::fork();
    if (child_ == 0) {
      ::close(end[1]);
      run_probe(dir, uuid, end[0], results[1]);
    }
    ::close(end[0]);
    ::close(results[1]);
    end_ = os::FileDescriptor(end[1]);
    results_ = os::FileDescriptor(results[0]);
  }
  void finish(Percentiles& grants, Percentiles& echoes) {
    end_.reset();
    for (Percentiles* one : {&grants, &echoes}) {
      std::size_t count = 0;
      if (::read(results_.get(), &count, sizeof count) != sizeof count) fail("the probe has ended");
      std::vector<double> values(count);
      auto bytes = std::as_writable_bytes(std::span(values));
      while (!bytes.empty()) {
        const ssize_t size = ::read(results_.get(), bytes.data(), bytes.size());
        if (size <= 0) fail("the probe has ended");
        bytes = bytes.subspan(static_cast<std::size_t>(size));
      }
      one->take(values);
    }
    ::waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_ = -1;
  os::FileDescriptor end_, results_;
};

class FixedInventory final : public Inventory {
 public:
  explicit FixedInventory(const std::vector<base::GpuUuid>& uuids) {
    for (const auto& uuid : uuids)
      gpus_.push_back({uuid, uuid.to_string(), "Test GPU", "0000:00:00.0", "default", kGpuBytes});
  }
  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  const DriverInfo& driver() const override { return driver_; }
  std::vector<GpuUse> read_use() override { return std::vector<GpuUse>(gpus_.size()); }
  std::vector<GpuLoad> read_load() override { return std::vector<GpuLoad>(gpus_.size()); }

 private:
  std::vector<GpuInfo> gpus_;
  DriverInfo driver_;
};

int run_daemon(const std::string& dir, const std::vector<base::GpuUuid>& uuids, int notify_fd) {
  auto options = TestDaemon::options_in(dir);
  options.flag_settings = {{"mode", "serial"}, {"quantum", "5ms"}};
  options.notify_fd = notify_fd;
  options.handle_signals = true;
  auto daemon = Daemon::make(std::move(options), std::make_unique<FixedInventory>(uuids));
  if (!daemon) return 1;
  server::start_log(server::LogLevel::kWarning);
  const int code = (*daemon)->run();
  server::stop_log();
  return code;
}

void print_memory(const char* when, pid_t daemon) {
  std::printf("%-52s %8.1f MiB resident, %8.1f MiB of its own share\n", when,
              static_cast<double>(memory_kib(daemon, "status", "VmRSS:")) / 1024,
              static_cast<double>(memory_kib(daemon, "smaps_rollup", "Pss:")) / 1024);
}

void measure(const Arguments& arguments, const std::string& dir, const std::vector<base::GpuUuid>& uuids,
             pid_t daemon) {
  print_memory("daemon with no tenants", daemon);
  Percentiles alone, quiet_echoes;
  {
    Probe probe(dir, uuids[kGpus]);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    probe.finish(alone, quiet_echoes);
  }
  std::vector<std::unique_ptr<TestTenant>> tenants;
  Load load;
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::size_t i = 0; i < arguments.tenants; ++i) {
    auto tenant = std::make_unique<TestTenant>(dir, "tenant " + std::to_string(i));
    if (!tenant->join() || !tenant->open_seat(0, uuids[i % kGpus])) fail("a tenant cannot connect");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(poller, EPOLL_CTL_ADD, tenant->socket(), &event);
    tenants.push_back(std::move(tenant));
  }
  std::vector<epoll_event> events(256);
  const auto play = [&](std::chrono::nanoseconds length) {
    const auto end = Clock::now() + length;
    while (Clock::now() < end) {
      const int count = ::epoll_wait(poller, events.data(), static_cast<int>(events.size()), 1);
      for (int i = 0; i < count; ++i) {
        const std::size_t number = events[static_cast<std::size_t>(i)].data.u64;
        answer(*tenants[number], number % kGpus, load);
      }
    }
  };
  play(1s);  // the daemon knows their memory
  const std::uint64_t rooms = load.rooms;
  print_memory("daemon with all tenants", daemon);

  const std::string before = http(dir, "GET", "/v1/daemon").body;
  for (std::size_t i = 0; i < std::min(arguments.contending, tenants.size()); ++i) tenants[i]->request();
  Probe probe(dir, uuids[kGpus]);
  const double cpu = cpu_seconds(daemon);
  const auto began = Clock::now();
  play(std::chrono::seconds(arguments.seconds));
  const double used = cpu_seconds(daemon) - cpu;
  const double length = std::chrono::duration<double>(Clock::now() - began).count();
  Percentiles contended, echoes;
  probe.finish(contended, echoes);
  const std::string after = http(dir, "GET", "/v1/daemon").body;
  print_memory("daemon under the load", daemon);

  std::printf("\n");
  Percentiles::print_head();
  quiet_echoes.print("baseline: a message there and back, quiet");
  alone.print("message to lease, quiet");
  echoes.print("baseline: a message there and back, under the load");
  contended.print("message to lease, under the load");
  load.latency.print("hand-over, under the load: closed to granted");
  std::printf("\nrevocations: %llu, %.0f a second\n", static_cast<unsigned long long>(load.revocations),
              static_cast<double>(load.revocations) / static_cast<double>(arguments.seconds));
  std::printf("daemon's processor time: %.1f %% of one, %.1f us for each revocation\n", 100 * used / length,
              1e6 * used / static_cast<double>(std::max<std::uint64_t>(load.revocations, 1)));
  std::printf("bounds of memory told: %llu while all came, %llu under the load\n",
              static_cast<unsigned long long>(rooms), static_cast<unsigned long long>(load.rooms - rooms));
  std::printf("daemon's deadlines: %s met, %s of them over 1 ms late, the latest %s ns late (before: %s, %s, %s)\n",
              field_of(after, "fired").c_str(), field_of(after, "late_over_1ms").c_str(),
              field_of(after, "latest_ns").c_str(), field_of(before, "fired").c_str(),
              field_of(before, "late_over_1ms").c_str(), field_of(before, "latest_ns").c_str());
  const auto begin = Clock::now();
  const std::size_t bytes = http(dir, "GET", "/v1/status").body.size();
  std::printf("GET /v1/status: %zu bytes in %.1f ms\n", bytes,
              static_cast<double>(std::chrono::nanoseconds(Clock::now() - begin).count()) / 1e6);
  std::printf("daemon at most: %.1f MiB resident\n",
              static_cast<double>(memory_kib(daemon, "status", "VmHWM:")) / 1024);
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

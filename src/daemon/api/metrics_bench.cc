// SPDX-License-Identifier: Apache-2.0
// The cost of a scrape of metrics: the copy, which the loop's thread makes, and the text, which another thread makes.
//
// The queue's figures are counts that it keeps, so its jobs cost nothing here; its users do.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <string>

#include "daemon/api/api.h"
#include "daemon/tenants/translate.h"
#include "os/system_clock.h"

namespace gpumux::daemon {
namespace {

constexpr std::size_t kGpus = 8;
constexpr std::uint32_t kUsers = 100;

class Tenant final : public Carrier {
 public:
  bool send(std::span<const std::byte> /*message*/, int /*fd*/) override { return true; }
  void kill() override {}
  std::optional<Session> session{};
};

class Jobs final : public jobs::JobRoutes {
 public:
  jobs::QueueFigures figures() const override {
    jobs::QueueFigures figures;
    figures.is_available = true;
    for (std::uint32_t uid = 0; uid < kUsers; ++uid) figures.users.push_back({uid, 1, 99, 1});
    return figures;
  }
  server::ApiAnswer answer(const server::ApiRequest& /*request*/, const server::RouteMatch& /*match*/,
                           std::string_view /*query*/) override {
    return server::ApiResponse{};
  }
  settings::Privacy privacy() const override { return settings::Privacy::kOpen; }
};

server::AccessRules everybody() {
  auto rules = server::AccessRules::make(settings::DaemonSettings(), 0, false);
  if (!rules) std::abort();
  return *rules;
}

// A daemon's parts with `seats` programs, each on one GPU.
class Machine {
 public:
  explicit Machine(std::size_t seats) {
    trace_.listen([this](const TraceEntry& entry) { counters_.count(entry); });
    for (std::size_t i = 0; i < kGpus; ++i) {
      GpuInfo gpu;
      gpu.uuid.bytes[0] = static_cast<std::uint8_t>(i);
      gpu.uuid_text = gpu.uuid.to_string();
      gpu.memory_total = std::uint64_t{80} << 30;
      leases_.add_gpu(std::move(gpu), {}, "");
    }
    for (std::size_t i = 0; i < seats; ++i) add(i);
  }
  ~Machine() {
    for (Tenant& tenant : tenants_) translator_.ended(*tenant.session, "ended");
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Api& api() { return api_; }

 private:
  void add(std::size_t i) {
    Tenant& tenant = tenants_.emplace_back();
    const auto uid = static_cast<uid_t>(i % kUsers);
    tenant.session.emplace(
        base::TenantId{i + 1},
        server::Peer{
            .pid = static_cast<pid_t>(i + 1), .uid = uid, .groups = {}, .account = server::Account::of_user(uid)},
        tenant);
    parts_.table.add(*tenant.session);
    wire::Hello hello{.protocol = wire::kProtocolVersion, .oldest_protocol = wire::kOldestProtocolVersion};
    wire::set_text(hello.program, "program-" + std::to_string(i));
    os::FileDescriptor page(::memfd_create("page", MFD_ALLOW_SEALING | MFD_CLOEXEC));
    if (::ftruncate(page.get(), 8192) != 0) std::abort();
    ::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    deliver(tenant, hello, std::move(page));
    wire::SeatOpen open{.slot = 0};
    open.gpu_uuid[0] = static_cast<std::uint8_t>(i % kGpus);
    deliver(tenant, open, {});
    deliver(tenant, wire::Request{.slot = 0}, {});
  }
  template <class Message>
  void deliver(Tenant& tenant, const Message& message, os::FileDescriptor fd) {
    const auto received =
        translator_.receive(*tenant.session, wire::encode(message).bytes(), ForeignDescriptor(std::move(fd)));
    if (!received) std::abort();
  }

  os::SystemClock clock_;
  Trace trace_;
  TraceCounters counters_;
  Leases leases_{clock_, trace_};
  server::AccessRules access_ = everybody();
  Trials trials_{leases_};
  boost::asio::io_context loop_;
  boost::asio::thread_pool pool_{1};
  HostMemory host_{loop_, pool_, 0, HostFiles()};
  TenantParts parts_{leases_, access_, host_};
  Translator translator_{leases_, trials_, access_, parts_, settings::OnDaemonLoss::kWait};
  LoopStatistics statistics_;
  Jobs jobs_;
  Api api_{leases_, trials_, parts_, access_, {}, statistics_, counters_, jobs_};
  std::deque<Tenant> tenants_;
};

void BM_MetricsOnTheLoop(benchmark::State& state) {
  Machine machine(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state)
    benchmark::DoNotOptimize(machine.api().metrics(exporter::Names::kShown, MetricsFormat::kOpenMetrics));
}
BENCHMARK(BM_MetricsOnTheLoop)->Arg(10)->Arg(100)->Arg(1000);

void BM_MetricsText(benchmark::State& state) {
  Machine machine(static_cast<std::size_t>(state.range(0)));
  const auto work = machine.api().metrics(exporter::Names::kShown, MetricsFormat::kOpenMetrics);
  std::size_t bytes = 0;
  for (auto _ : state) bytes = work().size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_MetricsText)->Arg(10)->Arg(100)->Arg(1000);

// As a baseline: GET /v1/status copies the same seats.
void BM_StatusOnTheLoop(benchmark::State& state) {
  Machine machine(static_cast<std::size_t>(state.range(0)));
  const server::ApiRequest request{"GET", "/v1/status", "", server::Peer{.pid = 1, .uid = 0, .groups = {}}};
  for (auto _ : state) benchmark::DoNotOptimize(machine.api().answer(request));
}
BENCHMARK(BM_StatusOnTheLoop)->Arg(1000);

}  // namespace
}  // namespace gpumux::daemon

BENCHMARK_MAIN();

// SPDX-License-Identifier: Apache-2.0
#include "daemon/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/thread_pool.hpp>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "base/version.h"
#include "daemon/api/api.h"
#include "daemon/api/http_server.h"
#include "daemon/config/host_budget.h"
#include "daemon/dir_lock.h"
#include "daemon/gpus/gpu_locks.h"
#include "daemon/gpus/leases.h"
#include "daemon/gpus/trials.h"
#include "daemon/loop/attention.h"
#include "daemon/loop/self_check.h"
#include "daemon/loop/trace.h"
#include "daemon/loop/trace_counters.h"
#include "daemon/loop/trace_file.h"
#include "daemon/metrics_door.h"
#include "daemon/mps/mps_door.h"
#include "daemon/peers/closer.h"
#include "daemon/peers/listener.h"
#include "daemon/queue/job_tenants.h"
#include "daemon/queue/ledger_rows.h"
#include "daemon/service_manager.h"
#include "daemon/sockets.h"
#include "daemon/tenants/foreign_processes.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/node_mover.h"
#include "daemon/tenants/succession.h"
#include "daemon/tenants/tenant_parts.h"
#include "daemon/tenants/tenant_server.h"
#include "daemon/tenants/translate.h"
#include "jobs/service/job_api.h"
#include "jobs/service/job_queue.h"
#include "jobs/service/ledger_keeper.h"
#include "os/installation.h"
#include "os/system_clock.h"
#include "os/wall_clock.h"
#include "server/loop/log.h"
#include "server/loop/loop_timer.h"
#include "server/loop/pool_work.h"
#include "server/loop/worker_pool.h"
#include "server/peers/access.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

// A guess: other programs' memory and the load of GPUs are known up to this late. Each look asks NVML about each GPU.
constexpr auto kHousekeeping = 1s;
// Between looks for a killed tenant's memory: the driver had 40 GiB back after 68 ms.
constexpr auto kReturnedMemoryLook = 20ms;
// After a look that said nothing, because memory moved.
constexpr auto kNextLook = 100ms;

// Daemon is what the rest sees of it.
class LoopDaemon final : public Daemon {
 public:
  LoopDaemon(DaemonOptions options, std::unique_ptr<Inventory> inventory, server::AccessRules access)
      : options_(std::move(options)),
        inventory_(std::move(inventory)),
        access_(std::move(access)),
        service_(options_.notify_fd),
        leases_(clock_, trace_),
        locks_(io_, leases_, closer_, options_.runtime_dir, options_.lock_folder, options_.is_private,
               {.gained = [this](base::GpuIndex gpu) { gpu_gained(gpu); },
                .overruled = [this](base::GpuIndex gpu, const LockOwner& roots) { give_way(gpu, roots); }}),
        trials_(leases_),
        host_memory_(io_, host_pool_, host_budget(options_.config.host_memory)),
        parts_(leases_, access_, host_memory_),
        translator_(leases_, trials_, access_, parts_, options_.config.on_daemon_loss),
        succession_(leases_, parts_.table, parts_.suspension, options_.runtime_dir),
        tenants_(io_, translator_, parts_, leases_, access_, closer_, TenantServer::limits(), [this] { settled(); }),
        job_tenants_(leases_, parts_, trace_, [this] { asio::post(io_, [this] { settled(); }); }),
        jobs_(io_, clock_),
        ledger_keeper_(
            io_, clock_, jobs_, [this] { return rows_of(parts_.books.take_from_ledger(), jobs_.gpus()); },
            [this] { return parts_.books.take_peaks(); }),
        job_api_(io_, jobs_, ledger_keeper_, access_),
        api_(leases_, trials_, parts_, access_, daemon_info(), loop_, counters_, job_api_),
        http_(io_, worker_, api_, trace_, access_, closer_),
        metrics_(io_, worker_, api_),
        mps_(io_, worker_, parts_.mps, parts_.table, leases_),
        self_check_(clock_, {{"leases and memory", [this] { return leases_.machine().check_invariants(); }},
                             {"jobs", [this] { return jobs_.core().check_invariants(); }}}),
        core_timer_(
            io_, [this] { return leases_.next_deadline(); }, [this](base::TimePoint due) { let_time_pass(due); }),
        trials_timer_(
            io_, [this] { return trials_.next_deadline(); }, [this](base::TimePoint) { settled(); }),
        returning_timer_(io_, server::LoopTimer::never(), [this](base::TimePoint) { look_again(); }),
        housekeeping_(io_, server::LoopTimer::every(kHousekeeping), [this](base::TimePoint) { keep_house(); }),
        watchdog_(io_,
                  service_.watchdog_interval() ? server::LoopTimer::every(*service_.watchdog_interval())
                                               : server::LoopTimer::never(),
                  [this](base::TimePoint) { service_.alive(); }),
        signals_(io_) {}

  tl::expected<void, DaemonError> open();
  ExitCode run() override;
  void stop() override {
    asio::post(io_, [this] { finish(kExitStopped); });
  }
  void reload() override {
    asio::post(io_, [this] { start_reload(); });
  }
  void crash() override {
    asio::post(io_, [this] {
      worker_.stop();
      exit_code_ = kExitFailed;
      io_.stop();
    });
  }

 private:
  DaemonInfo daemon_info() const;
  tl::expected<void, DaemonError> add_gpus();
  void open_mover();
  void open_jobs();
  settings::QueueSettings queue_settings() const;
  GpuSettings settings_for(std::size_t index) const;
  void gpu_gained(base::GpuIndex gpu);
  void give_way(base::GpuIndex gpu, const LockOwner& roots);
  void poll_attentively();
  void settled();
  void let_time_pass(base::TimePoint due);
  void look_soon();
  void keep_house();
  void look_again();
  void refresh_use();
  void refresh_load();
  void wait_signal();
  void start_reload();
  void finish_reload(base::Result<std::pair<Config, server::AccessRules>> loaded);
  bool is_unused();
  void finish(ExitCode code, const std::string& successor = {});

  DaemonOptions options_;
  os::FileDescriptor dir_lock_;  // first, to be the last that is given up: the next daemon needs all the rest
  std::unique_ptr<Inventory> inventory_;
  server::AccessRules access_;
  Closer closer_;
  os::SystemClock clock_;
  ServiceManager service_;
  asio::io_context io_{1};
  asio::thread_pool helper_{1};
  asio::thread_pool worker_{1};
  server::WorkerPool host_pool_{host_threads()};
  LoopStatistics loop_;
  Trace trace_;
  TraceCounters counters_;
  TraceFile trace_file_{worker_};
  Leases leases_;
  GpuLocks locks_;
  Trials trials_;
  HostMemory host_memory_;
  std::optional<NodeMover> mover_;
  TenantParts parts_;
  Translator translator_;
  Succession succession_;
  TenantServer tenants_;
  JobTenants job_tenants_;
  jobs::JobQueue jobs_;
  jobs::LedgerKeeper ledger_keeper_;
  jobs::JobApi job_api_;
  Api api_;
  HttpServer http_;
  MetricsDoor metrics_;
  MpsDoor mps_;
  SelfCheck self_check_;
  Sockets sockets_{options_, dir_lock_, tenants_, http_};

  Attention attention_;
  server::LoopTimer core_timer_;
  server::LoopTimer trials_timer_;
  server::LoopTimer returning_timer_;  // memory of tenants that are gone
  server::LoopTimer housekeeping_;
  server::LoopTimer watchdog_;  // on the loop: it is there for a loop that hangs
  asio::signal_set signals_;

  base::TimePoint last_tenant_{};
  bool refreshing_ = false;
  bool reading_load_ = false;
  bool runs_changed_ = false;
  std::optional<ExitCode> exit_code_;  // nothing: it serves
};

DaemonInfo LoopDaemon::daemon_info() const {
  return {.version = base::version(),
          .pid = ::getpid(),
          .uid = ::geteuid(),
          .is_private = options_.is_private,
          .started_unix_ns = os::wall_clock_ns(),
          .config_file = options_.config_file,
          .runtime_dir = options_.runtime_dir,
          .driver = inventory_->driver()};
}

// ---- starting --------------------------------------------------------------------------------------------

tl::expected<void, DaemonError> LoopDaemon::open() {
  auto locked = lock_runtime_dir(options_.runtime_dir, options_.is_private);
  if (!locked) return tl::unexpected(locked.error());
  dir_lock_ = std::move(*locked);
  if (auto added = add_gpus(); !added) {
    if (const auto& other = locks_.other()) sockets_.lead_to(*other);
    return added;
  }
  if (!options_.trace_file.empty()) {
    if (const auto opened = trace_file_.open(options_.trace_file); !opened) return fail(kExitNoSockets, opened.error());
  }
  trace_.listen([this](const TraceEntry& entry) {
    counters_.count(entry);
    trace_file_.write(entry);
    http_.trace_grew();
  });
  translator_.set_no_interrupts(why_no_interrupts(inventory_->driver()));
  translator_.on_hand_over([this](bool near) { near ? attention_.expect(clock_.now()) : attention_.done(); });
  parts_.table.on_changed([this](const Session& session) {
    last_tenant_ = clock_.now();
    succession_.tenant_changed(session);
  });
  tenants_.on_gone([this](const Session&) {
    last_tenant_ = clock_.now();
    succession_.write();
  });
  const std::uint64_t reserved = reserved_host_memory(host_memory_.budget(), host_memory_.chunk_bytes());
  leases_.apply(node::HostBudget{host_memory_.budget() - reserved, host_memory_.chunk_bytes(), reserved});
  if (const std::string& why = host_memory_.files().why_not(); !why.empty())
    server::log_info("host memory is of memfds: the kernel refuses a tmpfs of the daemon's own", {{"why", why}});
  host_memory_.measure();
  open_mover();
  if (auto receives = tenants_.check(); !receives) {
    receives.error().what.insert(0, "no program can be served: ");
    return fail(kExitFailed, receives.error());
  }
  last_tenant_ = clock_.now();
  succession_.read(locks_.has_taken_over());
  open_jobs();
  mps_.open(options_.runtime_dir, options_.is_private, options_.config.mps_control, options_.environment);
  if (const auto opened = sockets_.open(); !opened) return fail(kExitNoSockets, opened.error());
  succession_.wait();
  translator_.set_tenants_return(succession_.may_return());
  if (const auto opened = metrics_.open(options_.config); !opened) return fail(kExitConfig, opened.error());
  return {};
}

settings::QueueSettings LoopDaemon::queue_settings() const {
  settings::QueueSettings queue = options_.config.queue;
  if (options_.flag_max_job_time) queue.max_job_time = *options_.flag_max_job_time;
  return queue;
}

void LoopDaemon::open_mover() {
  if (!options_.starts_mover) return;
  const auto executables = os::executable_dir();
  auto program = executables ? os::find_own_program(*executables, "gpumux-mover") : executables;
  if (!program) {
    server::log_error("memory stays on the GPUs", {{"why", program.error().message()}});
    return parts_.mover_seats.set_why_none(program.error().message());
  }
  if (options_.config.keep_host_memory) host_memory_.keep_at(options_.runtime_dir + "/" + os::kHostMemoryDir);
  mover_.emplace(io_, host_memory_, std::move(*program), options_.runtime_dir + "/" + os::kMoverSocket);
  host_memory_.on_lent([this](std::uint64_t chunk) { mover_->lent(chunk); });
  mover_->on_why_not([this] {
    parts_.mover_seats.set_why_none(mover_->why_not());
    translator_.report_memory_again();
    asio::post(io_, [this] { settled(); });
  });
  parts_.mover_seats.set_mover(*mover_);
  mover_->take_over();
}

void LoopDaemon::open_jobs() {
  std::vector<jobs::JobQueue::GpuOf> gpus;
  for (const Gpu& gpu : leases_.gpus())
    gpus.push_back({gpu.info.uuid_text, gpu.info.memory_total, gpu.refused.empty()});
  jobs_.open({.state_dir = options_.state_dir, .runtime_dir = options_.runtime_dir, .is_private = options_.is_private},
             std::move(gpus), queue_settings(), job_tenants_);
  ledger_keeper_.open();
  parts_.jobs.granted_priority = [this](uid_t uid, const std::string& run) { return jobs_.granted_priority(uid, run); };
  parts_.jobs.job_of = [this](uid_t uid, const std::string& run) {
    const auto job = jobs_.job_of(uid, run);
    return job ? job->value : 0;
  };
  // Posted, not called from within: the change comes to rest first.
  parts_.suspension.on_changed([this](uid_t, const std::string&) {
    if (!std::exchange(runs_changed_, true)) {
      asio::post(io_, [this] {
        runs_changed_ = false;
        jobs_.programs_changed();
      });
    }
  });
}

GpuSettings LoopDaemon::settings_for(std::size_t index) const {
  const GpuInfo& gpu = inventory_->gpus()[index];
  auto settings = options_.config.settings_for(static_cast<std::uint32_t>(index), gpu.uuid_text);
  assign_all(settings, options_.flag_settings);
  return settings;
}

tl::expected<void, DaemonError> LoopDaemon::add_gpus() {
  const auto& gpus = inventory_->gpus();
  const auto& wanted = options_.gpus;
  const auto is_named = [&](const std::string& name) { return std::count(wanted.begin(), wanted.end(), name) > 0; };
  std::set<std::string> unknown(wanted.begin(), wanted.end());
  std::size_t served = 0;
  std::string why_none;
  std::optional<base::Error> failed;  // for another reason than another daemon
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    unknown.erase(gpus[i].uuid_text);
    unknown.erase(std::to_string(i));
    std::string refused;
    if (!wanted.empty() && !is_named(gpus[i].uuid_text) && !is_named(std::to_string(i))) {
      locks_.leave_out(gpus[i].uuid_text);
      refused = "left out by --gpus";
    } else if (const base::Status taken = locks_.take(gpus[i].uuid_text); !taken) {
      refused = taken.error().message();
      if (taken.error().code != base::Code::kExists && !failed) failed = taken.error();
      server::log_warning("a GPU is not served", {{"gpu", i}, {"uuid", gpus[i].uuid_text}, {"why", refused}});
      why_none += (why_none.empty() ? "" : "; ") + gpus[i].uuid_text + ": " + refused;
    }
    leases_.add_gpu(gpus[i], settings_for(i), refused);
    locks_.report_squatter({static_cast<std::uint32_t>(i)});
    if (!refused.empty()) continue;
    ++served;
    server::log_info("GPU",
                     {{"gpu", i}, {"uuid", gpus[i].uuid_text}, {"name", gpus[i].name}, {"pci", gpus[i].pci_bus_id}});
  }
  for (const std::string& name : unknown) server::log_warning("--gpus names a GPU that is not there", {{"gpu", name}});
  if (served > 0) return {};
  if (why_none.empty())
    return fail(kExitNoGpu, {base::Code::kNotFound, 0, "--gpus names no GPU of this machine (see nvidia-smi -L)"});
  if (failed) return fail(kExitFailed, {failed->code, 0, "no GPU can be served (" + why_none + ")"});
  return fail(kExitOwned,
              {base::Code::kExists, 0,
               "no GPU is left to serve (" + why_none + "). Use that daemon (GPUMUX_RUNTIME_DIR), or stop it first"});
}

// This daemon's tenants find root's by links in place of the sockets.
void LoopDaemon::give_way(base::GpuIndex gpu, const LockOwner& roots) {
  server::log_warning("root's daemon takes over; this daemon ends, and its programs go on under root's",
                      {{"gpu", gpu.value}, {"pid", roots.pid}, {"runtime_dir", roots.runtime_dir}});
  finish(kExitOwned, roots.runtime_dir);
}

void LoopDaemon::gpu_gained(base::GpuIndex gpu) {
  leases_.serve(gpu);
  jobs_.set_served(gpu, true);
  settled();
}

// ---- running ---------------------------------------------------------------------------------------------

ExitCode LoopDaemon::run() {
  if (options_.handle_signals) {
    std::signal(SIGPIPE, SIG_IGN);
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    signals_.add(SIGHUP);
    wait_signal();
  }
  core_timer_.update();
  refresh_use();
  refresh_load();
  housekeeping_.update();
  if (service_.watchdog_interval()) service_.alive();
  watchdog_.update();
  service_.ready();
  server::log_info(
      "ready", {{"version", base::version()}, {"runtime_dir", options_.runtime_dir}, {"gpus", leases_.gpus().size()}});
  for (;;) {
    try {
      while (!io_.stopped()) {
        io_.run_one();
        if (attention_.is_expecting()) poll_attentively();
      }
      break;
    } catch (const std::exception& e) {
      // A failure of one session was caught there. A failure that gets here belongs to none: the loop goes on.
      server::log_error("an unexpected failure in the loop", {{"why", e.what()}});
      settled();
    }
  }
  helper_.stop();
  worker_.join();
  return exit_code_.value_or(kExitStopped);
}

// The awaited message comes within moments (attention.h): the loop polls for it, the timers and all other events.
void LoopDaemon::poll_attentively() {
  while (!io_.stopped() && attention_.goes_on(clock_.now())) {
    if (io_.poll() == 0) os::spin_pause();
  }
}

void LoopDaemon::settled() {
  translator_.set_tenants_return(succession_.may_return());
  leases_.rest();
  if (trials_.look()) leases_.rest();
  parts_.suspension.look();
  tenants_.reap();
  const sched::HostDemand demand = leases_.machine().host_demand();
  host_memory_.set_demand(demand.evicted, demand.copies);
  core_timer_.update();
  trials_timer_.update();
  if (leases_.machine().awaits_look() || leases_.machine().looks_again()) look_soon();
}

// The driver needs some tens of milliseconds for a killed tenant's memory; others wait for it.
void LoopDaemon::look_soon() {
  if (returning_timer_.is_armed()) return;
  const bool awaits_look = leases_.machine().awaits_look();
  if (awaits_look) refresh_use();
  returning_timer_.arm_in(awaits_look ? kReturnedMemoryLook : kNextLook);
}

void LoopDaemon::look_again() {
  if (leases_.machine().awaits_look()) return look_soon();
  if (leases_.machine().looks_again()) refresh_use();
}

void LoopDaemon::let_time_pass(base::TimePoint due) {
  const base::Duration late = clock_.now() - due;
  ++loop_.fired;
  if (late > 1ms) ++loop_.late_over_1ms;
  loop_.latest = std::max(loop_.latest, late);
  leases_.apply(sched::TimePassed{});
  settled();
}

void LoopDaemon::keep_house() {
  tenants_.housekeeping();
  host_memory_.look();
  if (mover_) mover_->look();
  parts_.books.note_use();
  settled();
  locks_.retry();
  refresh_use();
  refresh_load();
  job_tenants_.look_for_foreign_use(jobs_);
  succession_.look();
  if (sockets_.look()) {
    if (const auto made = jobs_.make_runtime_folder(); !made)
      server::log_error("jobs can have no terminals", {{"why", made.error().message()}});
  }
  mps_.look();
  self_check_.look();
  loop_.broken_invariants = self_check_.found();
  if (is_unused()) finish(kExitStopped);
}

void LoopDaemon::refresh_use() {
  if (std::exchange(refreshing_, true)) return;
  server::work_then(
      helper_, io_,
      [this] {
        const base::TimePoint asked_at = clock_.now();
        return std::pair(asked_at, inventory_->read_use());
      },
      [this](std::pair<base::TimePoint, std::vector<GpuUse>> answer) {
        auto& [asked_at, use] = answer;
        refreshing_ = false;
        const ForeignProcesses foreign(parts_);
        for (std::size_t i = 0; i < std::min(use.size(), leases_.gpus().size()); ++i) {
          const base::GpuIndex gpu{static_cast<std::uint32_t>(i)};
          use[i].asked_at = asked_at;
          const std::uint64_t used = use[i].memory_used;
          jobs_.set_sick(gpu, !use[i].sick.empty());
          leases_.set_use(i, std::move(use[i]));
          leases_.apply(node::GpuSampled{gpu, used, asked_at, !foreign.on(leases_.gpus()[i]).empty()});
        }
        settled();
        job_tenants_.look_at_first(jobs_, asked_at);
      });
}

// Only for people, once a second: the driver takes milliseconds for some of it.
void LoopDaemon::refresh_load() {
  if (std::exchange(reading_load_, true)) return;
  server::work_then(
      helper_, io_, [this] { return inventory_->read_load(); },
      [this](const std::vector<GpuLoad>& load) {
        reading_load_ = false;
        leases_.set_load(load);
      });
}

bool LoopDaemon::is_unused() {
  if (options_.exit_when_unused.count() == 0) return false;
  // A client that is connecting at this moment still finds us there.
  if (tenants_.connections() > 0 || tenants_.has_pending() || http_.has_followers() || jobs_.size() > 0) return false;
  // The time counts from the end of the last program that was started under us, whether it used a GPU or not.
  if (api_.is_held()) last_tenant_ = clock_.now();
  const base::TimePoint last = std::max(last_tenant_, http_.last_used());
  return clock_.now() - last >= options_.exit_when_unused;
}

// ---- reloading and stopping ------------------------------------------------------------------------------

void LoopDaemon::wait_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    if (signal != SIGHUP) {
      server::log_info("stopping", {{"signal", signal}});
      return finish(kExitStopped);
    }
    start_reload();
    wait_signal();
  });
}

void LoopDaemon::start_reload() {
  service_.reloading();
  server::work_then(
      worker_, io_,
      [file = options_.config_file, required = options_.config_required, environment = options_.environment,
       owner = access_.owner(),
       is_private = options_.is_private]() -> base::Result<std::pair<Config, server::AccessRules>> {
        auto config = load_config(file, required, environment);
        if (!config) return tl::unexpected(config.error());
        auto access = server::AccessRules::make(*config, owner, is_private);
        if (!access) return tl::unexpected(access.error());
        GPUMUX_TRY(MetricsDoor::check(*config));
        return std::pair(std::move(*config), std::move(*access));
      },
      [this](auto loaded) { finish_reload(std::move(loaded)); });
}

void LoopDaemon::finish_reload(base::Result<std::pair<Config, server::AccessRules>> loaded) {
  if (!loaded) {
    server::log_error("the configuration was not reloaded; the old settings stay in force",
                      {{"why", loaded.error().message()}});
  } else {
    options_.config = std::move(loaded->first);
    jobs_.set_config(queue_settings());
    access_ = std::move(loaded->second);
    if (!options_.flag_log_level) server::set_log_level(options_.config.log_level);
    translator_.set_on_daemon_loss(options_.config.on_daemon_loss);
    if (const auto opened = metrics_.open(options_.config); !opened)
      server::log_error("metrics are not served over TCP any more", {{"why", opened.error().message()}});
    for (std::size_t i = 0; i < leases_.gpus().size(); ++i) {
      leases_.set_settings({static_cast<std::uint32_t>(i)}, settings_for(i));
    }
    server::log_info("configuration reloaded", {{"file", options_.config_file}});
    settled();
  }
  service_.ready();
}

// `successor`: the runtime directory of root's daemon, if this one has given way to it.
void LoopDaemon::finish(ExitCode code, const std::string& successor) {
  if (exit_code_) return;
  exit_code_ = code;
  service_.stopping();
  succession_.write();
  // A client that finds no socket looks elsewhere, or waits; one that finds a dead socket cannot tell.
  sockets_.remove(successor);
  server::log_info("stopped", {{"tenants", tenants_.connections()}});
  ledger_keeper_.close();
  tenants_.close();
  http_.close();
  metrics_.close();
  jobs_.close();
  locks_.give_up();
  trace_file_.flush();
  io_.stop();
}

}  // namespace

tl::expected<std::unique_ptr<Daemon>, DaemonError> Daemon::make(DaemonOptions options,
                                                                std::unique_ptr<Inventory> inventory) {
  auto access = server::AccessRules::make(options.config, ::geteuid(), options.is_private);
  if (!access) return fail(kExitConfig, access.error());
  if (!options.environment) {
    options.environment = [](const char*) -> const char* { return nullptr; };
  }
  auto daemon = std::make_unique<LoopDaemon>(std::move(options), std::move(inventory), std::move(*access));
  if (auto opened = daemon->open(); !opened) return tl::unexpected(opened.error());
  return daemon;
}

}  // namespace gpumux::daemon

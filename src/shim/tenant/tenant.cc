// SPDX-License-Identifier: Apache-2.0
#include "shim/tenant/tenant.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/version.h"
#include "cuda/current_context.h"
#include "os/runtime_dir.h"
#include "os/system_clock.h"
#include "shim/process/log.h"

namespace gpumux::shim {
namespace {

wire::Hello make_hello(const Settings& settings) {
  wire::Hello hello{.protocol = wire::kProtocolVersion,
                    .oldest_protocol = wire::kOldestProtocolVersion,
                    .gang_world = settings.gang_world,
                    .pid_here = static_cast<std::uint32_t>(::getpid()),
                    .memory_limit = settings.memory.limit,
                    .priority = settings.standing.priority,
                    .share = settings.standing.share,
                    .max_share = settings.standing.max_share,
                    .flags = wire::kCanFreeze | wire::kKnowsMover | (settings.lock_modes ? wire::kEndsOwnTurns : 0)};
  wire::set_text(hello.program, program_name());
  wire::set_text(hello.gang, settings.gang);
  wire::set_text(hello.version, base::version());
  wire::set_text(hello.run, settings.run);
  return hello;
}

// An hour: more than any time that can be configured, and far from overflowing.
constexpr std::uint64_t kLongestNs = 3'600'000'000'000;
base::Duration duration_of(std::uint64_t ns) {
  return base::Duration(static_cast<std::int64_t>(std::min(ns, kLongestNs)));
}

// Stands for several contexts, as the only one.
cuda::CUcontext several() { return reinterpret_cast<cuda::CUcontext>(std::uintptr_t{1}); }

}  // namespace

Tenant::Tenant(const cuda::Driver& driver, Settings settings, client::LeasePageMemory page, std::string socket_path)
    : driver_(driver),
      settings_(std::move(settings)),
      page_(std::move(page)),
      gate_(page_.page(), request, this),
      seats_(driver),
      lock_modes_(settings_.lock_modes),
      mps_(settings_.mps),
      memories_(*this, driver, gate_, seats_, agent_, settings_.memory),
      agent_(client::AgentOptions{.socket_path = std::move(socket_path),
                                  .connect_timeout = settings_.connect_timeout,
                                  .hello = make_hello(settings_),
                                  .page = &page_},
             *this),
      drainer_(gate_, seats_, lock_modes_, agent_),
      interrupter_(*this, gate_, seats_, agent_, drainer_, channels()) {
  drainer_.on_drained([](void* self) { static_cast<Tenant*>(self)->memories_.pager_thread().on_drained(); }, this);
}

Tenant::~Tenant() = default;

// ---- seats ----

std::optional<std::uint32_t> Tenant::seat_of(cuda::CUcontext context) {
  cuda::CUdevice device = 0;
  cuda::CUcontext current = nullptr;
  if (driver_.cuCtxGetCurrent(&current) == cuda::CUDA_SUCCESS && current == context) {
    if (driver_.cuCtxGetDevice(&device) != cuda::CUDA_SUCCESS) return std::nullopt;
    return seat_of_device(device);
  }
  {
    const cuda::CurrentContext entered(driver_, context);
    if (entered.result() != cuda::CUDA_SUCCESS || driver_.cuCtxGetDevice(&device) != cuda::CUDA_SUCCESS)
      return std::nullopt;
  }
  return seat_of_device(device);
}

std::optional<std::uint32_t> Tenant::seat_of_device(cuda::CUdevice device) {
  bool opened = false;
  const auto slot = seats_.open(device, opened);
  if (!opened) return slot;
  const std::uint32_t gpu = gpu_id(driver_, device);  // not under the lock: a thaw needs that
  {
    // Under the lock that a seat is announced under. Either it is announced after this, which gates it again, or the
    // daemon is known to be back.
    Seats::Locked seats(seats_);
    seats[*slot].gpu_id = gpu;
    if (ungated_.load(std::memory_order_seq_cst)) gate_.set_ungated(*slot);
  }
  memories_.of(*slot);
  bound_in_flight();
  start_once();
  agent_.wake();
  return slot;
}

void Tenant::settle_mps() {
  bool is_started = false;
  {
    const base::Locked locked(start_mutex_);
    is_started = started_;
  }
  if (mps_.begin_asking(!is_started)) start_once();
  mps_.await_answer();
}

void Tenant::note_context(cuda::CUcontext context) {
  const base::Locked locked(start_mutex_);
  const cuda::CUcontext only = only_context_.load(std::memory_order_relaxed);
  if (only == nullptr) only_context_.store(context, std::memory_order_release);
  if (only != nullptr && only != context && only != several()) {
    only_context_.store(several(), std::memory_order_release);
    gate::forget_memos();  // default streams have to be told apart from now on
  }
}

void Tenant::start_once() {
  const base::Locked locked(start_mutex_);
  if (std::exchange(started_, true)) return;
  for (const std::string& complaint : settings_.complaints) note(wire::Severity::kWarning, complaint);
  auto status = agent_.start();
  if (status) status = drainer_.start();
  if (status) status = memories_.start();
  if (!status) on_ungated(status.error().message());
}

// Threads at a closed gate ask through here, each time they go to sleep.
void Tenant::request(void* self, std::uint32_t slot) {
  auto& tenant = *static_cast<Tenant*>(self);
  // The lease is there: it is memory that the thread waits for.
  if (tenant.gate_.is_barred(slot)) {
    tenant.memories_.pager_thread().wake();
    if (tenant.gate_.is_granted(slot) || tenant.gate_.is_ungated(slot)) return;
  }
  tenant.tell_of_waiting();
  client::Agent::Announcement announcement(tenant.agent_);
  Seats::Locked seats(tenant.seats_);
  // Before the announcement the daemon would not know the seat. The announcement itself asks for threads that wait.
  if (seats[slot].announced) announcement.send(wire::Request{.slot = slot});
}

// Once. A daemon that is started again is back by then.
void Tenant::tell_of_waiting() {
  constexpr base::Duration kBackByThen = std::chrono::seconds(3);
  const base::TimePoint lost_at = lost_at_.load(std::memory_order_relaxed);
  if (lost_at == base::TimePoint() || os::now() - lost_at < kBackByThen) return;
  if (told_of_waiting_.exchange(true, std::memory_order_relaxed)) return;
  const auto dir = os::find_runtime_dir();
  const bool is_systems = dir && *dir == os::kSystemRuntimeDir;
  tell_user("waiting for the GPU: the daemon" + (dir ? " at " + *dir : std::string()) +
            " is gone, and this program goes on when there is one again. " +
            (is_systems ? "`systemctl start gpumuxd` starts it." : "Any `gpumux run` starts one there."));
}

// ---- the agent's port ----

void Tenant::on_connected(const wire::Welcome& welcome, bool again) {
  on_daemon_loss_.store(settings_.on_daemon_loss.value_or(welcome.on_daemon_loss), std::memory_order_relaxed);
  ungated_.store(false, std::memory_order_seq_cst);
  lost_at_.store({}, std::memory_order_relaxed);
  memories_.on_connected();
  mps_.on_connected(welcome.answers_mps != 0);
  {
    Seats::Locked seats(seats_);
    for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) seats[slot].announced = false;
  }
  write_log(wire::Severity::kInfo, (again ? "connected again to daemon " : "connected to daemon ") +
                                       std::string(wire::text_of(welcome.version)));
  for (std::atomic<Membership>* gang : {&own_gang_, &sharing_gang_}) {
    if (gang->load(std::memory_order_relaxed) == Membership::kTold)
      gang->store(Membership::kJoined, std::memory_order_relaxed);
  }
}

void Tenant::announce_seats() {
  client::Agent::Announcement announcement(agent_);
  mps_.announce(announcement);
  Seats::Locked seats(seats_);
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if (!seats[slot].announced) announce(announcement, slot, seats[slot]);
  }
  announce_gangs(announcement);
}

// Tells a daemon of a seat. The first time that is only its GPU; after a restart it is also the lease that it still
// has. A seat whose gate is closed may have work on the GPU, even if it was last said to be drained. So it is draining
// until the drainer has looked.
void Tenant::announce(client::Agent::Announcement& announcement, std::uint32_t slot, Seat& seat) {
  wire::SeatOpen open{.slot = slot};
  static_assert(sizeof open.gpu_uuid == sizeof seat.uuid.bytes);
  for (std::size_t i = 0; i < sizeof open.gpu_uuid; ++i) open.gpu_uuid[i] = seat.uuid.bytes[i];
  // It ran without a daemon; this one may serve it (a SeatRefused says if not). Without a lease it may have work on the
  // GPU, and so is draining.
  gate_.clear_ungated(slot);
  open.epoch = gate_.epoch(slot);
  open.exclusive = gate_.is_exclusive(slot) ? 1 : 0;
  open.has_mover = memories_.has_mover(slot) ? 1 : 0;
  if (open.epoch != 0) {
    if (gate_.is_granted(slot)) {
      open.state = wire::SeatState::kHolding;
      seat.closing.reset();
    } else {
      open.state = wire::SeatState::kDraining;
      // Frozen work stays so until this daemon grants the seat, which says that it is once it has been announced.
      std::optional<base::Duration> freeze_after;
      if (interrupter_.is_frozen(slot)) freeze_after = base::Duration::zero();
      seat.begin_closing(open.epoch, os::now(), freeze_after);
    }
  }
  seat.announced = announcement.send(open);
  if (seat.announced) memories_.announce(announcement, slot);
  if (seat.announced && gate_.waiting(slot) != 0) announcement.send(wire::Request{.slot = slot});
  drainer_.wake();
  if (interrupter_.is_frozen(slot)) interrupter_.wake(slot);
}

void Tenant::on_message(const wire::DaemonMessage& message, os::FileDescriptor fd) {
  std::visit([&](const auto& m) { handle(m, fd); }, message);
}

void Tenant::handle(const wire::Revoke& message) {
  {
    // Said before the drainer can see it: what it says after that was seen after it.
    client::Agent::Announcement ordered(agent_);
    Seats::Locked seats(seats_);
    Seat* seat = seats.find(message.slot);
    // An older epoch: the lease was released while this message was on its way.
    if (seat == nullptr || message.epoch != gate_.epoch(message.slot)) return;
    std::optional<base::Duration> freeze_after;
    if (message.freeze_after_ns != 0) freeze_after = duration_of(message.freeze_after_ns);
    seat->begin_closing(message.epoch, os::now(), freeze_after);
    ordered.send(wire::RevokeSeen{.slot = message.slot, .epoch = message.epoch});
  }
  drainer_.close_at_once(message.slot, message.epoch);
  if (message.freeze_after_ns != 0 || interrupter_.is_frozen(message.slot)) interrupter_.wake(message.slot);
}

void Tenant::handle(const wire::PrepareSwapOut& message) {
  if (message.slot < seats_.count()) memories_.pager_thread().prepare(message.slot, message.managed);
}

// The page's count is for people; nothing is added up for it while work is submitted.
void Tenant::on_second() {
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot)
    page_.page().slots[slot].submissions.store(submissions(slot), std::memory_order_relaxed);
}

// Each passage counts twice.
std::uint64_t Tenant::submissions(std::uint32_t slot) const { return gate_.passages(slot) / 2; }

void Tenant::handle(const wire::Measure& message) {
  if (message.slot >= seats_.count()) return;
  const std::uint64_t submissions = this->submissions(message.slot);
  agent_.send(wire::Measured{.slot = message.slot, .question = message.question, .submissions = submissions});
}

// The page has said so already; this only spares the drainer another look.
void Tenant::handle(const wire::Reopen&) { drainer_.wake(); }

// Of daemons before this one, which then let the work run on after their stall timeout.
void Tenant::handle(const wire::Step&) {}

void Tenant::handle(const wire::Contention& message) {
  {
    Seats::Locked seats(seats_);
    Seat* seat = seats.find(message.slot);
    if (seat == nullptr) return;
    seat->idle_hold = message.idle_hold_ns > kLongestNs ? kHoldsWhileIdle : duration_of(message.idle_hold_ns);
    seat->in_flight_bound = duration_of(message.in_flight_ns);
  }
  bound_in_flight();
  drainer_.wake();
}

// Threads of a process with several GPUs are not bounded. A thread may have to fill one GPU's queue before it turns to
// the next, for work there that the first GPU waits for.
void Tenant::bound_in_flight() {
  bool changed = false;
  {
    Seats::Locked seats(seats_);
    const std::uint32_t count = seats_.count();
    for (std::uint32_t slot = 0; slot < count; ++slot) {
      const base::Duration bound = count == 1 ? seats[slot].in_flight_bound : base::Duration::zero();
      changed = seats[slot].in_flight.set_bound(bound) || changed;
    }
  }
  if (changed) gate::forget_memos();
}

void Tenant::handle(const wire::SeatRefused& message) {
  if (message.slot >= seats_.count()) return;
  const std::string text = "work on one GPU runs ungated: " + std::string(wire::text_of(message.text));
  note(wire::Severity::kWarning, text);
  tell_user(text);
  set_ungated(message.slot);
  memories_.unbind(message.slot);
}

void Tenant::handle(const wire::Refused& message) {
  note(wire::Severity::kError, "the daemon ends the connection: " + std::string(wire::text_of(message.text)));
}

void Tenant::on_closed_by_program(const std::string& what) {
  note(wire::Severity::kWarning, "the program has closed " + what + ", which was opened anew");
}

void Tenant::on_lost() {
  memories_.on_lost();
  write_log(wire::Severity::kWarning, "the connection to the daemon is lost; looking for it");
  if (on_daemon_loss_.load(std::memory_order_relaxed) == wire::OnDaemonLoss::kWait) {
    if (lost_at_.load(std::memory_order_relaxed) == base::TimePoint())
      lost_at_.store(os::now(), std::memory_order_relaxed);
    return;
  }
  run_ungated();
}

void Tenant::on_ungated(const std::string& why) {
  tell_user("running without gpumux: " + why +
            (settings_.memory.limit != 0
                 ? ". Its quota (--mem, GPUMUX_MEM_LIMIT) cannot be kept, so it gets no more GPU memory"
                 : ". The GPU is not shared fairly while this program runs") +
            "; start gpumuxd, or use `gpumux run`.");
  write_log(wire::Severity::kError, "ungated: " + why);
  run_ungated();
}

void Tenant::run_ungated() {
  // seq_cst: pairs with the load in seat_of_device. A seat opened at the same time is either in the count here or sees
  // the flag there.
  ungated_.store(true, std::memory_order_seq_cst);
  mps_.on_ungated();
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) set_ungated(slot);
  memories_.unbind_all();
}

// Its bound was for the sake of other seats, which are no longer known.
void Tenant::set_ungated(std::uint32_t slot) {
  gate_.set_ungated(slot);
  {
    Seats::Locked seats(seats_);
    seats[slot].in_flight_bound = base::Duration::zero();
  }
  bound_in_flight();
  drainer_.wake();
}

// ---- gangs and messages ----

void Tenant::join_own_gang() { join(own_gang_); }

void Tenant::join_sharing_gang() {
  if (!settings_.sharing_gang.empty()) join(sharing_gang_);
}

void Tenant::belong_together(std::uint32_t a, std::uint32_t b) {
  if (a == b) return;
  join_own_gang();
  memories_.connect(a, b);
}

void Tenant::join(std::atomic<Membership>& gang) {
  auto none = gang.load(std::memory_order_relaxed);
  if (none != Membership::kNone) return;
  if (gang.compare_exchange_strong(none, Membership::kJoined, std::memory_order_release)) agent_.wake();
}

void Tenant::announce_gangs(client::Agent::Announcement& announcement) {
  const auto announce = [&announcement](std::atomic<Membership>& gang, const std::string& key) {
    if (gang.load(std::memory_order_acquire) != Membership::kJoined) return;
    wire::GangJoin join{};
    wire::set_text(join.key, key);
    if (announcement.send(join)) gang.store(Membership::kTold, std::memory_order_relaxed);
  };
  announce(own_gang_, {});
  announce(sharing_gang_, settings_.sharing_gang);
}

void Tenant::note(wire::Severity severity, const std::string& text) {
  write_log(severity, text);
  wire::Note message{.severity = severity};
  wire::set_text(message.text, text);
  agent_.send(message);
}

void Tenant::cannot_interrupt(std::uint32_t, const std::string& why) {
  if (!told_of_no_interrupts_.exchange(true, std::memory_order_relaxed))
    write_log(wire::Severity::kInfo, "unfinished work drains when its turn is over: " + why);
  wire::Note message{.severity = wire::Severity::kInfo, .kind = wire::NoteKind::kUninterruptible};
  wire::set_text(message.text, why);
  agent_.send(message);
}

void Tenant::report_unknown_entry(const char* name) {
  wire::Note message{.severity = wire::Severity::kWarning, .kind = wire::NoteKind::kUnknownEntry};
  wire::set_text(message.text, name);
  agent_.send(message);
  write_log(wire::Severity::kWarning, std::string("the driver entry ") + name + " is not known and goes past gpumux");
}

void Tenant::close_after_fork() {
  agent_.close_after_fork();
  memories_.close_after_fork();
}

}  // namespace gpumux::shim

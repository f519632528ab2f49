// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/status.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/standing.h"
#include "base/units.h"
#include "daemon/tenants/foreign_processes.h"
#include "server/api/api_types.h"
#include "server/peers/process_info.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

using Json = nlohmann::ordered_json;

// A machine that serves a directory of users does not make the daemon grow for ever.
constexpr std::size_t kMaxCachedUsers = 4096;

bool has_lease(sched::SeatPhase phase) {
  return phase != sched::SeatPhase::kIdle && phase != sched::SeatPhase::kWaiting &&
         phase != sched::SeatPhase::kSuspended;
}

Json settings_json(const GpuSettings& set) {
  Json json = Json::object();
  settings::show(set, [&](const settings::Setting& setting, const std::string& text) {
    Json& value = json[std::string(setting.name)];
    if (setting.is_boolean()) {
      value = text == "true";
    } else {
      value = text;
    }
  });
  return json;
}

// The members that every GPU's object begins with.
Json gpu_json(std::uint32_t index, const Gpu& gpu) {
  Json json{{"index", index},
            {"uuid", gpu.info.uuid_text},
            {"name", gpu.info.name},
            {"pci_bus_id", gpu.info.pci_bus_id},
            {"architecture", gpu.info.architecture},
            {"compute_capability", gpu.info.compute_capability},
            {"compute_mode", gpu.info.compute_mode},
            {"memory_total_bytes", gpu.info.memory_total},
            {"memory_used_bytes", gpu.use.memory_used}};
  Json settings = settings_json(gpu.settings);
  for (const char* key : {"mode", "policy", "quantum"}) json[key] = settings[key];
  json["mode_now"] = gpu.mode == sched::Mode::kSerial ? "serial" : "concurrent";
  if (!gpu.settings.max_runtime.is_unlimited()) json["max_runtime_ns"] = gpu.settings.max_runtime.value().count();
  json["settings"] = std::move(settings);
  json["refused"] = gpu.refused;
  json["claimed_by"] = gpu.claimed_by;
  json["sick"] = gpu.use.sick;
  return json;
}

Json load_json(const GpuLoad& load) {
  Json json = Json::object();
  const auto add = [&](const char* name, const std::optional<std::uint32_t>& value) {
    if (value) json[name] = *value;
  };
  add("utilization_percent", load.utilization_percent);
  add("power_milliwatts", load.power_milliwatts);
  add("power_limit_milliwatts", load.power_limit_milliwatts);
  add("temperature_celsius", load.temperature_celsius);
  return json;
}

void add_moved(Json& json, const MovedMemory& moved) {
  json["moved_out_bytes"] = moved.out;
  json["moved_in_bytes"] = moved.in;
  json["saved_clean_bytes"] = moved.saved_clean;
  json["saved_constant_bytes"] = moved.saved_constant;
  json["handed_over_bytes"] = moved.handed_over;
}

Json memory_json(const GpuStatus& gpu) {
  std::uint64_t tenants = 0;
  for (const sched::SeatMemoryView& seat : gpu.memory.seats) tenants += seat.report.resident + seat.report.unpageable;
  Json json{{"tenants_bytes", tenants},
            {"foreign_bytes", gpu.memory.foreign},
            {"returning_bytes", gpu.memory.returning},
            {"reserve_bytes", gpu.memory.reserve}};
  add_moved(json, gpu.moved);
  return json;
}

Json memory_json(const SeatStatus& seat) {
  constexpr std::array<std::string_view, wire::kUnpageableReasons> kReasons{
      "exported", "imported", "registered", "mapped", "pool", "graph", "array", "managed", "other"};
  const sched::MemoryReport& report = seat.memory.report;
  Json unpageable = Json::object();
  std::uint64_t said = 0;
  for (std::size_t i = 0; i < kReasons.size(); ++i) {
    if (seat.said.unpageable[i] > 0) unpageable[std::string(kReasons[i])] = seat.said.unpageable[i];
    if (i != static_cast<std::size_t>(wire::Unpageable::kManaged)) said += seat.said.unpageable[i];
  }
  // The daemon counts all that the seat has as unpageable while no mover serves.
  if (report.unpageable > said) unpageable["no_mover"] = report.unpageable - said;
  Json json{{"allocated_bytes", report.allocated},
            {"resident_bytes", report.resident},
            {"evicted_bytes", report.evicted},
            {"unpageable_bytes", report.unpageable},
            {"unpageable", std::move(unpageable)},
            {"room_bytes", seat.memory.room},
            {"commitment_bytes", seat.memory.commitment},
            {"wanted_bytes", seat.memory.wanted},
            {"quota_bytes", seat.memory.quota},
            {"host_used_bytes", seat.said.host_used},
            {"host_clean_bytes", seat.said.host_clean}};
  MovedMemory moved;
  moved.add(seat.said);
  add_moved(json, moved);
  return json;
}

// The names of a container without a record are not known, and left out.
Json container_json(const ContainerLabel& container) {
  Json json{{"id", container.id}};
  for (const auto& [name, value] : {std::pair{"namespace", &container.pod_namespace}, std::pair{"pod", &container.pod},
                                    std::pair{"name", &container.name}, std::pair{"claim", &container.claim}}) {
    if (!value->empty()) json[name] = *value;
  }
  return json;
}

void add_program(Json& json, const TenantLabel& label) {
  json["pid"] = label.pid;
  json["program"] = label.program;
}

Json refused_json(const RefusedAllocation& one, base::TimePoint now) {
  Json json{{"tenant", one.tenant.value}};
  add_program(json, *one.label);
  json["age_ns"] = (now - one.at).count();
  json["reason"] = word_of(one.why);
  json["had_bytes"] = one.had;
  json["wanted_bytes"] = one.wanted;
  if (one.limit > 0) json["limit_bytes"] = one.limit;
  if (one.others > 0) json["others_bytes"] = one.others;
  json["holders"] = Json::array();
  for (const MemoryHolder& holder : one.holders) {
    Json& its = json["holders"].emplace_back();
    add_program(its, *holder.label);
    its["bytes"] = holder.bytes;
  }
  return json;
}

// Two programs that never fit together move their memory at each switch. Often one of them has only taken it to have
// it.
std::string remark_on(const GpuStatus& gpu) {
  const SeatStatus* first = nullptr;
  const SeatStatus* second = nullptr;
  const auto need = [](const SeatStatus* seat) {
    const sched::MemoryReport& report = seat->memory.report;
    return seat == nullptr ? 0 : report.resident + report.evicted + report.unpageable;
  };
  for (const SeatStatus& seat : gpu.seats) {
    if (!seat.reports_memory || seat.memory.is_suspended) continue;
    if (first == nullptr || need(&seat) > need(first)) {
      second = std::exchange(first, &seat);
    } else if (second == nullptr || need(&seat) > need(second)) {
      second = &seat;
    }
  }
  const sched::GpuMemory& memory = gpu.memory;
  const std::uint64_t taken = memory.reserve + memory.foreign;
  const std::uint64_t room = memory.capacity > taken ? memory.capacity - taken : 0;
  if (second == nullptr || need(first) + need(second) <= room) return {};
  const auto name = [&](const SeatStatus* seat) {
    return seat->label->program + " (" + std::to_string(seat->label->pid) + ") with " + base::format_bytes(need(seat));
  };
  std::string text = name(first) + " and " + name(second) + " do not fit together in " + base::format_bytes(room) +
                     ": their memory moves whenever the GPU changes hands";
  // JAX takes three quarters of the GPU when it starts, whatever it will use.
  if (memory.capacity > 0 && need(first) >= memory.capacity / 2)
    text +=
        ". If one of them is a JAX program that needs less, XLA_PYTHON_CLIENT_PREALLOCATE=false makes it take only "
        "what it uses";
  return text;
}

}  // namespace

std::string_view phase_text(sched::SeatPhase phase) {
  switch (phase) {
    case sched::SeatPhase::kIdle: return "idle";
    case sched::SeatPhase::kWaiting: return "waiting";
    case sched::SeatPhase::kHolding: return "holding";
    case sched::SeatPhase::kRevoked: return "revoked";
    case sched::SeatPhase::kDraining: return "draining";
    case sched::SeatPhase::kSilent: return "silent";
    case sched::SeatPhase::kSuspended: return "suspended";
  }
  return "unknown";
}

StatusSnapshot take_status(const Leases& leases, const Trials& trials, const TenantParts& tenants) {
  StatusSnapshot snapshot{.now = leases.now(), .gpus = {}};
  const RecentUse& recent = tenants.books.recent_use();
  snapshot.recent = snapshot.now - recent.since(snapshot.now);
  for (std::size_t i = 0; i < leases.gpus().size(); ++i) {
    GpuStatus& gpu = snapshot.gpus.emplace_back();
    gpu.index = static_cast<std::uint32_t>(i);
    gpu.gpu = leases.gpus()[i];
  }
  const HostMemory& host = tenants.host;
  snapshot.host_budget = host.budget();
  snapshot.host_lent = host.lent();
  snapshot.host_ready = host.ready();
  snapshot.host_is_short = host.is_short();
  snapshot.host_loans = host.loans();
  snapshot.host_made = host.made();
  snapshot.host_why_not = host.files().why_not();
  snapshot.why_no_mover = tenants.mover_seats.why_none();
  for (sched::GpuView& view : leases.view()) {
    GpuStatus& gpu = snapshot.gpus.at(view.gpu.value);
    gpu.memory = leases.memory().view(view.gpu);
    gpu.moved = tenants.books.moved_before(view.gpu);
    gpu.refused = leases.refused_on(view.gpu);
    gpu.mode_why = trials.why(view.gpu);
    gpu.finding = trials.finding(view.gpu);
    std::map<base::SeatId, const sched::SeatMemoryView*> memory_of;
    for (const sched::SeatMemoryView& memory : gpu.memory.seats) memory_of[memory.seat] = &memory;
    for (sched::SeatView& seat : view.seats) {
      SeatStatus status{.label = leases.label(seat.seat.tenant), .note = leases.note(seat.seat)};
      status.view = std::move(seat);
      status.recent = recent.of(status.view.seat, status.view.used(), snapshot.now);
      if (Session* session = tenants.table.find(status.view.seat.tenant)) {
        if (const Slot* slot = session->slot_on(view.gpu)) {
          status.submissions = session->page.submissions(slot->number);
          status.mps = session->mps;
          status.not_interrupted = session->not_interrupted;
          status.said = slot->memory;
          gpu.moved.add(status.said);
        }
      }
      if (const auto memory = memory_of.find(status.view.seat); memory != memory_of.end()) {
        status.memory = *memory->second;
        status.reports_memory = status.memory.speaks;
      }
      gpu.seats.push_back(std::move(status));
    }
    view.seats.clear();
    gpu.view = std::move(view);
  }
  snapshot.mps_servers = tenants.mps.servers();
  const ForeignProcesses foreign(tenants);
  for (GpuStatus& gpu : snapshot.gpus) gpu.foreign = foreign.on(gpu.gpu);
  return snapshot;
}

void StatusSnapshot::hide_names_but_of(uid_t uid) {
  for (GpuStatus& gpu : gpus) {
    const auto hide = [&](std::shared_ptr<const TenantLabel>& label) {
      const bool is_hidden = label->uid != uid;
      if (is_hidden) label = TenantLabel::make(label->pid, label->uid, server::kHiddenName);
      return is_hidden;
    };
    for (SeatStatus& seat : gpu.seats) {
      if (hide(seat.label)) seat.note.clear();  // may name programs of its user
    }
    for (RefusedAllocation& one : gpu.refused) {
      hide(one.label);
      for (MemoryHolder& holder : one.holders) hide(holder.label);
    }
    // Jobs run there without gpumux, too (GPUMUX_DISABLE), and the driver does not say whose a process is.
    for (GpuProcess& process : gpu.foreign) process.name = server::kHiddenName;
  }
}

const std::string& StatusRenderer::user(uid_t uid) {
  if (users_.size() > kMaxCachedUsers) users_.clear();
  const auto found = users_.find(uid);
  return found != users_.end() ? found->second : users_.emplace(uid, server::user_name(uid)).first->second;
}

Json StatusRenderer::render(const StatusSnapshot& snapshot) {
  Json gpus = Json::array();
  for (const GpuStatus& gpu : snapshot.gpus) {
    Json json = gpu_json(gpu.index, gpu.gpu);
    json["load"] = load_json(gpu.gpu.load);
    if (gpu.gpu.refused.empty()) {
      if (!gpu.view.quantum.is_unlimited()) json["quantum_ns"] = gpu.view.quantum.value().count();
      json["switch_cost_ns"] = gpu.view.switch_cost.count();
      json["switches"] = gpu.view.switches;
      json["interrupts"] = gpu.view.interrupts;
      json["held_ns"] = gpu.view.held.count();
      json["mode_why"] = gpu.mode_why;
      if (gpu.finding && gpu.finding->by_turns > 0) {
        json["measured"] = {{"by_turns_permille", gpu.finding->by_turns},
                            {"noise_permille", gpu.finding->noise},
                            {"has_pauses", gpu.finding->has_pauses},
                            {"age_ns", (snapshot.now - gpu.finding->at).count()}};
      }
      json["memory"] = memory_json(gpu);
      json["remark"] = remark_on(gpu);
      json["refused_allocations"] = Json::array();
      for (const RefusedAllocation& one : gpu.refused)
        json["refused_allocations"].push_back(refused_json(one, snapshot.now));
    }
    json["foreign"] = Json::array();
    for (const GpuProcess& process : gpu.foreign) {
      json["foreign"].push_back({{"pid", process.pid}, {"name", process.name}, {"memory_bytes", process.memory}});
    }
    json["seats"] = Json::array();
    for (const SeatStatus& seat : gpu.seats) {
      const sched::SeatView& view = seat.view;
      std::string note = seat.note;
      // Why a silent tenant is silent: only for tenants that hold others up, because it means reading /proc.
      if (view.phase == sched::SeatPhase::kSilent || view.phase == sched::SeatPhase::kRevoked) {
        const auto process = server::process_info(seat.label->pid);
        const std::string state = process ? server::describe_state(process->state) : "";
        if (!state.empty()) note += (note.empty() ? "" : ": ") + state;
      }
      Json s{{"tenant", view.seat.tenant.value}, {"pid", seat.label->pid},         {"uid", seat.label->uid},
             {"user", user(seat.label->uid)},    {"program", seat.label->program}, {"phase", phase_text(view.phase)}};
      if (seat.label->job != 0) s["job"] = seat.label->job;
      if (!seat.label->container.id.empty()) s["container"] = container_json(seat.label->container);
      if (has_lease(view.phase)) {
        s["lease"] = view.kind == sched::LeaseKind::kExclusive ? "exclusive" : "shared";
        s["epoch"] = view.epoch.value;
      }
      s["since_ns"] = (snapshot.now - view.since).count();
      s["queue_place"] = view.queue_place;
      s["waits_for"] = view.waits_for;
      s["grants"] = view.grants;
      s["held_ns"] = view.held.count();
      s["gpu_time_ns"] = view.used().count();
      s["recent_gpu_time_ns"] = seat.recent.count();
      s["waited_ns"] = view.waited.count();
      s["wait_p50_ns"] = view.wait_p50.count();
      s["wait_p99_ns"] = view.wait_p99.count();
      s["gang"] = view.gang;
      s["priority"] = view.priority;
      s["share"] = base::format_share(view.weight);
      s["max_share"] = base::format_max_share(view.cap);
      s["poisoned"] = view.poisoned;
      s["is_frozen"] = view.is_frozen;
      s["not_interrupted"] = seat.not_interrupted;
      s["submissions"] = seat.submissions;
      s["note"] = note;
      if (seat.mps.server != 0)
        s["mps"] = {{"server", seat.mps.server}, {"thread_percentage", seat.mps.thread_percentage}};
      if (seat.reports_memory) s["memory"] = memory_json(seat);
      json["seats"].push_back(std::move(s));
    }
    gpus.push_back(std::move(json));
  }
  Json servers = Json::array();
  for (const MpsServerView& server : snapshot.mps_servers) {
    servers.push_back({{"server", server.number},
                       {"uid", server.uid},
                       {"user", user(server.uid)},
                       {"state", server.state},
                       {"pid", server.pid},
                       {"programs", server.programs}});
  }
  return Json{{"gpus", std::move(gpus)},
              {"recent_ns", snapshot.recent.count()},
              {"mps_servers", std::move(servers)},
              {"host_memory",
               {{"budget_bytes", snapshot.host_budget},
                {"lent_bytes", snapshot.host_lent},
                {"ready_bytes", snapshot.host_ready},
                {"loans", snapshot.host_loans.all},
                {"waits", snapshot.host_loans.waited},
                {"waited_ns", snapshot.host_loans.waiting.count()},
                {"is_short", snapshot.host_is_short},
                {"kind", snapshot.host_made.kind ? name_of(*snapshot.host_made.kind) : ""},
                {"why_no_tmpfs", snapshot.host_why_not},
                {"why_no_mover", snapshot.why_no_mover},
                {"made_bytes", snapshot.host_made.bytes},
                {"made_ns", snapshot.host_made.took.count()}}}};
}

Json render_settings(const std::vector<std::pair<std::uint32_t, Gpu>>& gpus) {
  Json all = Json::array();
  for (const auto& [index, gpu] : gpus) all.push_back(gpu_json(index, gpu));
  return Json{{"gpus", std::move(all)}};
}

}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
#include "api_client/types.h"

#include <array>

#include "api_client/json_reader.h"

namespace gpumux::api_client {
namespace {

using base::Result;
using nlohmann::json;

void foreign_fields(Reader& reader, ForeignProcess& process) {
  reader.read("pid", process.pid);
  reader.read("name", process.name);
  reader.read("memory_bytes", process.memory_bytes);
}

void load_fields(Reader& reader, GpuLoad& load) {
  reader.read("utilization_percent", load.utilization_percent);
  reader.read("power_milliwatts", load.power_milliwatts);
  reader.read("power_limit_milliwatts", load.power_limit_milliwatts);
  reader.read("temperature_celsius", load.temperature_celsius);
}

void driver_fields(Reader& reader, DriverInfo& driver) {
  reader.read("version", driver.version);
  reader.read("nvml_version", driver.nvml_version);
  reader.read("simulated", driver.simulated);
}

void unknown_entry_fields(Reader& reader, UnknownEntry& entry) {
  reader.read("name", entry.name);
  reader.read("count", entry.count);
  reader.read("programs", entry.programs);
}

template <class Memory>
void read_moved(Reader& reader, Memory& memory) {
  reader.read("moved_out_bytes", memory.moved_out);
  reader.read("moved_in_bytes", memory.moved_in);
  reader.read("saved_clean_bytes", memory.saved_clean);
  reader.read("saved_constant_bytes", memory.saved_constant);
}

void seat_memory_fields(Reader& reader, SeatMemory& memory) {
  reader.read("allocated_bytes", memory.allocated);
  reader.read("resident_bytes", memory.resident);
  reader.read("evicted_bytes", memory.evicted);
  reader.read("unpageable_bytes", memory.unpageable);
  reader.read("unpageable", memory.unpageable_by_reason);
  reader.read("room_bytes", memory.room);
  reader.read("wanted_bytes", memory.wanted);
  reader.read("quota_bytes", memory.quota);
  reader.read("host_used_bytes", memory.host_used);
  read_moved(reader, memory);
}

void gpu_memory_fields(Reader& reader, GpuMemory& memory) {
  reader.read("tenants_bytes", memory.tenants);
  reader.read("foreign_bytes", memory.foreign);
  reader.read("reserve_bytes", memory.reserve);
  read_moved(reader, memory);
}

void host_memory_fields(Reader& reader, HostMemory& memory) {
  reader.read("budget_bytes", memory.budget);
  reader.read("lent_bytes", memory.lent);
  reader.read("kind", memory.kind);
  reader.read("why_no_tmpfs", memory.why_no_tmpfs);
  reader.read("why_no_mover", memory.why_no_mover);
  reader.read("made_bytes", memory.made);
  reader.read("made_ns", memory.making);
}

void container_fields(Reader& reader, Container& container) {
  reader.read("id", container.id);
  reader.read("namespace", container.pod_namespace);
  reader.read("pod", container.pod);
}

void seat_mps_fields(Reader& reader, SeatMps& mps) { reader.read("thread_percentage", mps.thread_percentage); }

void mps_server_fields(Reader& reader, MpsServer& server) {
  reader.read("user", server.user);
  reader.read("state", server.state);
  reader.read("pid", server.pid);
  reader.read("programs", server.programs);
}

void seat_fields(Reader& reader, Seat& seat) {
  reader.read("tenant", seat.tenant);
  reader.read("pid", seat.pid);
  reader.read("uid", seat.uid);
  reader.read("user", seat.user);
  reader.read("program", seat.program);
  reader.read("job", seat.job);
  reader.read("container", seat.container, "a container", container_fields);
  reader.read("phase", seat.phase);
  reader.read("lease", seat.lease);
  reader.read("since_ns", seat.since);
  reader.read("queue_place", seat.queue_place);
  reader.read("waits_for", seat.waits_for);
  reader.read("grants", seat.grants);
  reader.read("gpu_time_ns", seat.gpu_time);
  reader.read("recent_gpu_time_ns", seat.recent_gpu_time);
  reader.read("waited_ns", seat.waited);
  reader.read("wait_p50_ns", seat.wait_p50);
  reader.read("wait_p99_ns", seat.wait_p99);
  reader.read("gang", seat.gang);
  reader.read("priority", seat.priority);
  reader.read("share", seat.share);
  reader.read("max_share", seat.max_share);
  reader.read("poisoned", seat.poisoned);
  reader.read("is_frozen", seat.is_frozen);
  reader.read("not_interrupted", seat.not_interrupted);
  reader.read("note", seat.note);
  reader.read("mps", seat.mps, "a seat under MPS", seat_mps_fields);
  reader.read("memory", seat.memory, "a seat's memory", seat_memory_fields);
}

void holder_fields(Reader& reader, MemoryHolder& holder) {
  reader.read("pid", holder.pid);
  reader.read("program", holder.program);
  reader.read("bytes", holder.bytes);
}

void refused_fields(Reader& reader, RefusedAllocation& refused) {
  reader.read("pid", refused.pid);
  reader.read("program", refused.program);
  reader.read("age_ns", refused.age);
  reader.read("reason", refused.reason);
  reader.read("had_bytes", refused.had);
  reader.read("wanted_bytes", refused.wanted);
  reader.read("limit_bytes", refused.limit);
  reader.read("others_bytes", refused.others);
  reader.read("holders", refused.holders, "a holder of memory", holder_fields);
}

void gpu_fields(Reader& reader, Gpu& gpu) {
  reader.read("index", gpu.index);
  reader.read("uuid", gpu.uuid);
  reader.read("name", gpu.name);
  reader.read("pci_bus_id", gpu.pci_bus_id);
  reader.read("architecture", gpu.architecture);
  reader.read("compute_capability", gpu.compute_capability);
  reader.read("memory_total_bytes", gpu.memory_total_bytes);
  reader.read("memory_used_bytes", gpu.memory_used_bytes);
  reader.read("mode", gpu.mode);
  reader.read("policy", gpu.policy);
  reader.read("quantum", gpu.quantum);
  reader.read("quantum_ns", gpu.quantum_now);
  reader.read("settings", gpu.settings);
  reader.read("switch_cost_ns", gpu.switch_cost);
  reader.read("switches", gpu.switches);
  reader.read("interrupts", gpu.interrupts);
  reader.read("mode_now", gpu.mode_now);
  reader.read("mode_why", gpu.mode_why);
  reader.read("load", gpu.load, "a GPU's load", load_fields);
  reader.read("memory", gpu.memory, "a GPU's memory", gpu_memory_fields);
  reader.read("remark", gpu.remark);
  reader.read("refused", gpu.refused);
  reader.read("sick", gpu.sick);
  reader.read("claimed_by", gpu.claimed_by);
  reader.read("refused_allocations", gpu.refused_allocations, "a refused allocation", refused_fields);
  reader.read("foreign", gpu.foreign, "a foreign process", foreign_fields);
  reader.read("seats", gpu.seats, "a seat", seat_fields);
}

// "reason=quantum waited_ns=12": strings bare, everything else as JSON writes it.
std::string describe_other_fields(const json& object) {
  static constexpr std::array<std::string_view, 16> kKnown{
      "changes", "sequence", "time_ns", "gpu", "event", "tenant", "pid",  "program",
      "epoch",   "lease",    "detail",  "pod", "job",   "before", "name", "before_ns"};
  std::string text;
  for (const auto& [name, value] : object.items()) {
    bool known = value.is_null();
    for (const std::string_view field : kKnown) known = known || name == field;
    if (known || (value.is_string() && value.get_ref<const std::string&>().empty())) continue;
    if (!text.empty()) text += ' ';
    text += name + "=";
    // A stray byte that is not UTF-8 must not make dump throw.
    text += value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return text;
}

void trace_event_fields(Reader& reader, TraceEvent& event) {
  base::Duration time{};
  reader.read("sequence", event.sequence);
  reader.read("time_ns", time);
  event.time = base::TimePoint(time);
  reader.read("gpu", event.gpu);
  reader.read("event", event.event);
  reader.read("tenant", event.tenant);
  reader.read("pid", event.pid);
  reader.read("program", event.program);
  reader.read("job", event.job);
  reader.read("name", event.name);
  reader.read("epoch", event.epoch);
  reader.read("lease", event.lease);
  reader.read("detail", event.detail);
  reader.read("pod", event.pod);
  reader.read("before", event.before);
  reader.read("before_ns", event.lasted);
  if (const json* changes = reader.find("changes"); changes != nullptr && changes->is_object()) {
    for (const auto& [name, values] : changes->items()) {
      const bool is_pair = values.is_array() && values.size() == 2 && values[0].is_string() && values[1].is_string();
      if (!is_pair) continue;
      event.changes.push_back({name, values[0].get<std::string>(), values[1].get<std::string>()});
    }
  }
  if (reader.object().is_object()) event.others = describe_other_fields(reader.object());
}

void caps_fields(Reader& reader, Caps& caps) {
  reader.read("priority", caps.priority);
  reader.read("priority_by", caps.priority_by);
  reader.read("share", caps.share);
  reader.read("share_by", caps.share_by);
}

}  // namespace

Result<DaemonInfo> parse_daemon_info(std::string_view text) {
  return parse<DaemonInfo>(text, [](Reader& reader, DaemonInfo& info) {
    reader.read("version", info.version);
    reader.read("pid", info.pid);
    reader.read("uid", info.uid);
    reader.read("owner", info.owner);
    reader.read("private", info.is_private);
    reader.read("runtime_dir", info.runtime_dir);
    reader.read("unknown_entries", info.unknown_entries, "an unknown entry", unknown_entry_fields);
    reader.read("driver", info.driver, "'driver'", driver_fields);
    reader.read("caps", info.caps, "'caps'", caps_fields);
  });
}

Result<Snapshot> parse_snapshot(std::string_view text) {
  return parse<Snapshot>(text, [](Reader& reader, Snapshot& snapshot) {
    reader.read("gpus", snapshot.gpus, "a GPU", gpu_fields);
    reader.read("recent_ns", snapshot.recent);
    reader.read("mps_servers", snapshot.mps_servers, "an MPS server", mps_server_fields);
    reader.read("host_memory", snapshot.host_memory, "the host memory", host_memory_fields);
  });
}

Result<std::vector<Gpu>> parse_settings(std::string_view text) {
  return parse<std::vector<Gpu>>(
      text, [](Reader& reader, std::vector<Gpu>& gpus) { reader.read("gpus", gpus, "a GPU", gpu_fields); });
}

Result<Seat> parse_tenant(std::string_view text) { return parse(text, seat_fields); }

Result<TraceEvent> parse_trace_event(std::string_view text) { return parse(text, trace_event_fields, "a trace event"); }

}  // namespace gpumux::api_client

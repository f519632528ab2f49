// SPDX-License-Identifier: Apache-2.0
#include "api_client/types.h"

#include <array>

#include "api_client/json_reader.h"

namespace gpumux::api_client {
namespace {

using base::Code;
using base::Result;
using nlohmann::json;

Result<ForeignProcess> parse_foreign(const json& object) {
  ForeignProcess process;
  Reader reader(object, "a foreign process");
  reader.read("pid", process.pid);
  reader.read("name", process.name);
  reader.read("memory_bytes", process.memory_bytes);
  return reader.finish(std::move(process));
}

Result<GpuLoad> parse_load(const json& object) {
  GpuLoad load;
  Reader reader(object, "a GPU's load");
  reader.read("utilization_percent", load.utilization_percent);
  reader.read("power_milliwatts", load.power_milliwatts);
  reader.read("power_limit_milliwatts", load.power_limit_milliwatts);
  reader.read("temperature_celsius", load.temperature_celsius);
  return reader.finish(load);
}

Result<UnknownEntry> parse_unknown_entry(const json& object) {
  UnknownEntry entry;
  Reader reader(object, "an unknown entry");
  reader.read("name", entry.name);
  reader.read("count", entry.count);
  reader.read("programs", entry.programs);
  return reader.finish(std::move(entry));
}

template <class Memory>
void read_moved(Reader& reader, Memory& memory) {
  reader.read("moved_out_bytes", memory.moved_out);
  reader.read("moved_in_bytes", memory.moved_in);
  reader.read("saved_clean_bytes", memory.saved_clean);
  reader.read("saved_constant_bytes", memory.saved_constant);
}

Result<SeatMemory> parse_seat_memory(const json& object) {
  SeatMemory memory;
  Reader reader(object, "a seat's memory");
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
  return reader.finish(std::move(memory));
}

Result<GpuMemory> parse_gpu_memory(const json& object) {
  GpuMemory memory;
  Reader reader(object, "a GPU's memory");
  reader.read("tenants_bytes", memory.tenants);
  reader.read("foreign_bytes", memory.foreign);
  reader.read("reserve_bytes", memory.reserve);
  read_moved(reader, memory);
  return reader.finish(std::move(memory));
}

Result<HostMemory> parse_host_memory(const json& object) {
  HostMemory memory;
  Reader reader(object, "the host memory");
  reader.read("budget_bytes", memory.budget);
  reader.read("lent_bytes", memory.lent);
  reader.read("ready_bytes", memory.ready);
  reader.read("kind", memory.kind);
  reader.read("why_no_tmpfs", memory.why_no_tmpfs);
  reader.read("made_bytes", memory.made);
  reader.read_ns("made_ns", memory.making);
  return reader.finish(std::move(memory));
}

Result<Container> parse_container(const json& object) {
  Container container;
  Reader reader(object, "a container");
  reader.read("id", container.id);
  reader.read("namespace", container.pod_namespace);
  reader.read("pod", container.pod);
  return reader.finish(std::move(container));
}

Result<SeatMps> parse_seat_mps(const json& object) {
  SeatMps mps;
  Reader reader(object, "a seat under MPS");
  reader.read("server", mps.server);
  reader.read("thread_percentage", mps.thread_percentage);
  return reader.finish(std::move(mps));
}

Result<std::int64_t> parse_pid(const json& number) {
  if (!number.is_number_integer()) return base::fail(base::Code::kProtocol, "a process id is no number");
  return number.get<std::int64_t>();
}

Result<MpsServer> parse_mps_server(const json& object) {
  MpsServer server;
  Reader reader(object, "an MPS server");
  reader.read("server", server.server);
  reader.read("uid", server.uid);
  reader.read("user", server.user);
  reader.read("state", server.state);
  reader.read("pid", server.pid);
  reader.read_array("programs", server.programs, parse_pid);
  return reader.finish(std::move(server));
}

Result<Seat> parse_seat(const json& object) {
  Seat seat;
  Reader reader(object, "a seat");
  reader.read("tenant", seat.tenant);
  reader.read("pid", seat.pid);
  reader.read("uid", seat.uid);
  reader.read("user", seat.user);
  reader.read("program", seat.program);
  reader.read("job", seat.job);
  reader.read_object("container", seat.container, parse_container);
  reader.read("phase", seat.phase);
  reader.read("lease", seat.lease);
  reader.read("epoch", seat.epoch);
  reader.read_ns("since_ns", seat.since);
  reader.read("queue_place", seat.queue_place);
  reader.read("waits_for", seat.waits_for);
  reader.read("grants", seat.grants);
  reader.read_ns("held_ns", seat.held);
  reader.read_ns("gpu_time_ns", seat.gpu_time);
  reader.read_ns("recent_gpu_time_ns", seat.recent_gpu_time);
  reader.read_ns("waited_ns", seat.waited);
  reader.read_ns("wait_p50_ns", seat.wait_p50);
  reader.read_ns("wait_p99_ns", seat.wait_p99);
  reader.read("gang", seat.gang);
  reader.read("priority", seat.priority);
  reader.read("share", seat.share);
  reader.read("max_share", seat.max_share);
  reader.read("poisoned", seat.poisoned);
  reader.read("submissions", seat.submissions);
  reader.read("note", seat.note);
  if (SeatMps mps; reader.read_object("mps", mps, parse_seat_mps)) seat.mps = mps;
  if (SeatMemory memory; reader.read_object("memory", memory, parse_seat_memory)) seat.memory = std::move(memory);
  return reader.finish(std::move(seat));
}

Result<MemoryHolder> parse_holder(const json& object) {
  MemoryHolder holder;
  Reader reader(object, "a holder of memory");
  reader.read("pid", holder.pid);
  reader.read("program", holder.program);
  reader.read("bytes", holder.bytes);
  return reader.finish(std::move(holder));
}

Result<RefusedAllocation> parse_refused(const json& object) {
  RefusedAllocation refused;
  Reader reader(object, "a refused allocation");
  reader.read("pid", refused.pid);
  reader.read("program", refused.program);
  reader.read_ns("age_ns", refused.age);
  reader.read("reason", refused.reason);
  reader.read("had_bytes", refused.had);
  reader.read("wanted_bytes", refused.wanted);
  reader.read("limit_bytes", refused.limit);
  reader.read("others_bytes", refused.others);
  reader.read_array("holders", refused.holders, parse_holder);
  return reader.finish(std::move(refused));
}

Result<Gpu> parse_gpu(const json& object) {
  Gpu gpu;
  Reader reader(object, "a GPU");
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
  reader.read_ns("quantum_ns", gpu.quantum_now);
  reader.read_ns("max_runtime_ns", gpu.max_runtime);
  reader.read("settings", gpu.settings);
  reader.read_ns("switch_cost_ns", gpu.switch_cost);
  reader.read("switches", gpu.switches);
  reader.read_ns("held_ns", gpu.held);
  reader.read("mode_now", gpu.mode_now);
  reader.read("mode_why", gpu.mode_why);
  reader.read_object("load", gpu.load, parse_load);
  reader.read_object("memory", gpu.memory, parse_gpu_memory);
  reader.read("remark", gpu.remark);
  reader.read("refused", gpu.refused);
  reader.read("sick", gpu.sick);
  reader.read("claimed_by", gpu.claimed_by);
  reader.read_array("refused_allocations", gpu.refused_allocations, parse_refused);
  reader.read_array("foreign", gpu.foreign, parse_foreign);
  reader.read_array("seats", gpu.seats, parse_seat);
  return reader.finish(std::move(gpu));
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

}  // namespace

Result<DaemonInfo> parse_daemon_info(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  DaemonInfo info;
  Reader reader(*object, "the daemon's answer");
  reader.read("version", info.version);
  reader.read("pid", info.pid);
  reader.read("uid", info.uid);
  reader.read("owner", info.owner);
  reader.read("private", info.is_private);
  reader.read("started_unix_ns", info.started_unix_ns);
  reader.read("config_file", info.config_file);
  reader.read("runtime_dir", info.runtime_dir);
  reader.read("tenants", info.tenants);
  reader.read_array("unknown_entries", info.unknown_entries, parse_unknown_entry);
  if (const json* driver = reader.find("driver")) {
    Reader driver_reader(*driver, "'driver'");
    driver_reader.read("version", info.driver.version);
    driver_reader.read("nvml_version", info.driver.nvml_version);
    driver_reader.read("simulated", info.driver.simulated);
    auto parsed = driver_reader.finish(info.driver);
    if (!parsed) return tl::unexpected(std::move(parsed).error());
  }
  return reader.finish(std::move(info));
}

Result<Snapshot> parse_snapshot(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  Snapshot snapshot;
  Reader reader(*object, "the daemon's answer");
  reader.read_array("gpus", snapshot.gpus, parse_gpu);
  reader.read_ns("recent_ns", snapshot.recent);
  reader.read_array("mps_servers", snapshot.mps_servers, parse_mps_server);
  reader.read_object("host_memory", snapshot.host_memory, parse_host_memory);
  return reader.finish(std::move(snapshot));
}

Result<std::vector<Gpu>> parse_settings(std::string_view text) {
  auto object = parse_json(text);
  if (!object) return tl::unexpected(std::move(object).error());
  json answer = json::object();
  if (object->is_array()) {
    answer["gpus"] = std::move(*object);
  } else if (object->is_object() && !object->contains("gpus")) {
    answer["gpus"] = json::array();
    answer["gpus"].push_back(std::move(*object));
  } else {
    answer = std::move(*object);
  }
  std::vector<Gpu> gpus;
  Reader reader(answer, "the daemon's answer");
  reader.read_array("gpus", gpus, parse_gpu);
  return reader.finish(std::move(gpus));
}

Result<TenantStanding> parse_tenant_standing(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  TenantStanding standing;
  Reader reader(*object, "the daemon's answer");
  reader.read("tenant", standing.tenant);
  reader.read("pid", standing.pid);
  reader.read("program", standing.program);
  reader.read("priority", standing.priority);
  reader.read("share", standing.share);
  reader.read("max_share", standing.max_share);
  return reader.finish(std::move(standing));
}

Result<TraceEvent> parse_trace_event(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  TraceEvent event;
  Reader reader(*object, "a trace event");
  std::uint32_t gpu = 0;
  base::Duration time{};
  reader.read("sequence", event.sequence);
  reader.read_ns("time_ns", time);
  reader.read("gpu", gpu);
  reader.read("event", event.event);
  reader.read("tenant", event.tenant);
  reader.read("pid", event.pid);
  reader.read("program", event.program);
  reader.read("job", event.job);
  reader.read("name", event.name);
  reader.read("epoch", event.epoch);
  reader.read("lease", event.lease);
  event.time = base::TimePoint(time);
  if (reader.find("gpu") != nullptr) event.gpu = gpu;
  reader.read("detail", event.detail);
  reader.read("pod", event.pod);
  reader.read("before", event.before);
  reader.read_ns("before_ns", event.lasted);
  if (const json* changes = reader.find("changes"); changes != nullptr && changes->is_object()) {
    for (const auto& [name, values] : changes->items()) {
      const bool is_pair = values.is_array() && values.size() == 2 && values[0].is_string() && values[1].is_string();
      if (!is_pair) continue;
      event.changes.push_back({name, values[0].get<std::string>(), values[1].get<std::string>()});
    }
  }
  if (object->is_object()) event.others = describe_other_fields(*object);
  return reader.finish(std::move(event));
}

}  // namespace gpumux::api_client

// SPDX-License-Identifier: Apache-2.0
// Goal: every documented field is read, strangers are ignored, wrong types are named. Method: the documents' own
// examples, filled in.
#include "api_client/types.h"

#include <gtest/gtest.h>

namespace gpumux::api_client {
namespace {

using namespace std::chrono_literals;

TEST(DaemonInfoTest, ReadsEveryField) {
  const auto info = parse_daemon_info(R"({"version": "0.1.0", "pid": 812, "uid": 7, "owner": "root",
    "private": true,
    "started_unix_ns": 5, "config_file": "/etc/x", "runtime_dir": "/run/gpumux", "driver": {"version": "13.0",
    "nvml_version": "580.1", "simulated": true, "new": 1}, "tenants": 3,
    "unknown_entries": [{"name": "cuNew", "count": 4,
    "programs": ["python3", "a"]}], "something_new": {"x": []}})");
  ASSERT_TRUE(info) << info.error().what;
  EXPECT_EQ(info->version, "0.1.0");
  EXPECT_EQ(info->pid, 812);
  EXPECT_EQ(info->uid, 7u);
  EXPECT_EQ(info->owner, "root");
  EXPECT_TRUE(info->is_private);
  EXPECT_EQ(info->runtime_dir, "/run/gpumux");
  EXPECT_EQ(info->driver.version, "13.0");
  EXPECT_EQ(info->driver.nvml_version, "580.1");
  EXPECT_TRUE(info->driver.simulated);
  ASSERT_EQ(info->unknown_entries.size(), 1u);
  EXPECT_EQ(info->unknown_entries[0].name, "cuNew");
  EXPECT_EQ(info->unknown_entries[0].count, 4u);
  EXPECT_EQ(info->unknown_entries[0].programs, (std::vector<std::string>{"python3", "a"}));
}

TEST(SnapshotTest, ReadsEveryField) {
  const auto snapshot = parse_snapshot(R"({"gpus": [{"index": 2, "uuid": "GPU-1", "name": "H100",
    "pci_bus_id": "0000:18:00.0",
    "architecture": "Hopper",
    "compute_capability": "9.0",
    "memory_total_bytes": 100, "memory_used_bytes": 50, "mode": "auto", "mode_now": "serial", "mode_why": "too much",
    "memory": {"tenants_bytes": 30, "foreign_bytes": 4, "moved_out_bytes": 11}, "remark": "they do not fit",
    "policy": "fair", "quantum": "auto",
    "quantum_ns": 50000000,
    "max_runtime_ns": 9223372036854775807, 
    "settings": {"idle_hold": "200us", "overlap": true}, "switch_cost_ns": 7, "switches": 12,
    "held_ns": 8, "load": {"utilization_percent": 97, "power_milliwatts": 5, "temperature_celsius": 61},
    "refused_allocations": [{"tenant": 3, "pid": 12, "program": "big", "age_ns": 5, "reason": "gpu_memory",
      "had_bytes": 1, "wanted_bytes": 2, "limit_bytes": 3, "others_bytes": 4,
      "holders": [{"pid": 13, "program": "other", "bytes": 6}]}],
    "refused": "r", "claimed_by": "c",
    "foreign": [{"pid": 77, "name": "Xorg", "memory_bytes": 3}],
    "seats": [{"tenant": 1, "pid": 4711, "uid": 1000, "user": "eva",
      "program": "train.py", "phase": "waiting", "lease": "exclusive",
      "epoch": 6, "since_ns": 11, "queue_place": 2, "waits_for": "bench, pid 5",
      "grants": 5, "held_ns": 13, "gpu_time_ns": 12, "recent_gpu_time_ns": 10,
      "waited_ns": 14, "wait_p50_ns": 3, "wait_p99_ns": 9,
      "gang": "g",
      "memory": {"allocated_bytes": 21, "resident_bytes": 22, "evicted_bytes": 23, "unpageable_bytes": 24,
        "unpageable": {"pool": 24}, "room_bytes": 25, "wanted_bytes": 26, "quota_bytes": 27,
        "saved_constant_bytes": 28},
      "poisoned": true, "submissions": 15, "note": "n"}]
}],
"recent_ns": 34,
"host_memory": {"budget_bytes": 31, "lent_bytes": 32, "ready_bytes": 33}})");
  ASSERT_TRUE(snapshot) << snapshot.error().what;
  ASSERT_EQ(snapshot->gpus.size(), 1u);
  const Gpu& gpu = snapshot->gpus[0];
  EXPECT_EQ(gpu.index, 2u);
  EXPECT_EQ(gpu.uuid, "GPU-1");
  EXPECT_EQ(gpu.name, "H100");
  EXPECT_EQ(gpu.pci_bus_id, "0000:18:00.0");
  EXPECT_EQ(gpu.architecture, "Hopper");
  EXPECT_EQ(gpu.compute_capability, "9.0");
  EXPECT_EQ(gpu.memory_total_bytes, 100u);
  EXPECT_EQ(gpu.memory_used_bytes, 50u);
  EXPECT_EQ(gpu.mode, "auto");
  EXPECT_EQ(gpu.mode_now, "serial");
  EXPECT_EQ(gpu.mode_why, "too much");
  EXPECT_EQ(gpu.memory.tenants, 30u);
  EXPECT_EQ(gpu.memory.foreign, 4u);
  EXPECT_EQ(gpu.memory.moved_out, 11u);
  EXPECT_EQ(gpu.remark, "they do not fit");
  EXPECT_EQ(snapshot->host_memory.budget, 31u);
  EXPECT_EQ(snapshot->host_memory.lent, 32u);
  EXPECT_EQ(gpu.policy, "fair");
  EXPECT_EQ(gpu.quantum, "auto");
  EXPECT_EQ(gpu.quantum_now, 50ms);
  EXPECT_EQ(gpu.settings, (std::map<std::string, std::string>{{"idle_hold", "200us"}, {"overlap", "true"}}));
  EXPECT_EQ(gpu.switch_cost, 7ns);
  EXPECT_EQ(gpu.switches, 12u);
  EXPECT_EQ(gpu.load.utilization_percent, 97u);
  EXPECT_EQ(gpu.load.power_milliwatts, 5u);
  EXPECT_EQ(gpu.load.power_limit_milliwatts, std::nullopt) << "the driver does not say it";
  EXPECT_EQ(gpu.load.temperature_celsius, 61u);
  EXPECT_EQ(snapshot->recent, 34ns);
  ASSERT_EQ(gpu.refused_allocations.size(), 1u);
  const RefusedAllocation& refused = gpu.refused_allocations[0];
  EXPECT_EQ(refused.pid, 12);
  EXPECT_EQ(refused.program, "big");
  EXPECT_EQ(refused.age, 5ns);
  EXPECT_EQ(refused.reason, "gpu_memory");
  EXPECT_EQ(refused.had, 1u);
  EXPECT_EQ(refused.wanted, 2u);
  EXPECT_EQ(refused.limit, 3u);
  EXPECT_EQ(refused.others, 4u);
  ASSERT_EQ(refused.holders.size(), 1u);
  EXPECT_EQ(refused.holders[0].pid, 13);
  EXPECT_EQ(refused.holders[0].program, "other");
  EXPECT_EQ(refused.holders[0].bytes, 6u);
  EXPECT_EQ(gpu.refused, "r");
  EXPECT_EQ(gpu.claimed_by, "c");
  ASSERT_EQ(gpu.foreign.size(), 1u);
  EXPECT_EQ(gpu.foreign[0].name, "Xorg");
  EXPECT_EQ(gpu.foreign[0].memory_bytes, 3u);
  ASSERT_EQ(gpu.seats.size(), 1u);
  const Seat& seat = gpu.seats[0];
  EXPECT_EQ(seat.tenant, 1u);
  EXPECT_EQ(seat.pid, 4711);
  EXPECT_EQ(seat.uid, 1000u);
  EXPECT_EQ(seat.user, "eva");
  EXPECT_EQ(seat.program, "train.py");
  EXPECT_EQ(seat.phase, "waiting");
  EXPECT_EQ(seat.lease, "exclusive");
  EXPECT_EQ(seat.since, 11ns);
  EXPECT_EQ(seat.queue_place, 2u);
  EXPECT_EQ(seat.waits_for, "bench, pid 5");
  EXPECT_EQ(seat.grants, 5u);
  EXPECT_EQ(seat.recent_gpu_time, 10ns);
  EXPECT_EQ(seat.gpu_time, 12ns);
  EXPECT_EQ(seat.waited, 14ns);
  EXPECT_EQ(seat.wait_p50, 3ns);
  EXPECT_EQ(seat.wait_p99, 9ns);
  EXPECT_EQ(seat.gang, "g");
  EXPECT_TRUE(seat.poisoned);
  EXPECT_EQ(seat.note, "n");
  ASSERT_TRUE(seat.memory);
  EXPECT_EQ(seat.memory->allocated, 21u);
  EXPECT_EQ(seat.memory->resident, 22u);
  EXPECT_EQ(seat.memory->evicted, 23u);
  EXPECT_EQ(seat.memory->unpageable, 24u);
  EXPECT_EQ(seat.memory->unpageable_by_reason, (std::map<std::string, std::string>{{"pool", "24"}}));
  EXPECT_EQ(seat.memory->room, 25u);
  EXPECT_EQ(seat.memory->wanted, 26u);
  EXPECT_EQ(seat.memory->quota, 27u);
  EXPECT_EQ(seat.memory->saved_constant, 28u);
}

TEST(SnapshotTest, MissingAndNullFieldsAreTheDefaults) {
  const auto snapshot = parse_snapshot(R"({"gpus": [{"seats": [{"lease": null}]}]})");
  ASSERT_TRUE(snapshot) << snapshot.error().what;
  EXPECT_EQ(snapshot->gpus[0].seats[0].lease, "");
  EXPECT_TRUE(parse_snapshot("{}")->gpus.empty());
}

TEST(SnapshotTest, AWrongTypeIsNamed) {
  struct Case {
    const char* json;
    const char* named;
  };
  for (const Case& item :
       {Case{R"({"gpus": {}})", "'gpus'"}, Case{R"({"gpus": [3]})", "a GPU is not an object"},
        Case{R"({"gpus": [{"index": -1}]})", "'index'"}, Case{R"({"gpus": [{"index": 4294967296}]})", "'index'"},
        Case{R"({"gpus": [{"mode": 1}]})", "'mode'"}, Case{R"({"gpus": [{"settings": "on"}]})", "'settings'"},
        Case{R"({"gpus": [{"switch_cost_ns": "1"}]})", "'switch_cost_ns'"},
        Case{R"({"gpus": [{"seats": [{"pid": 1.5}]}]})", "'pid' in a seat"},
        Case{R"({"gpus": [{"seats": [{"pid": 9223372036854775808}]}]})", "'pid' in a seat"}}) {
    const auto snapshot = parse_snapshot(item.json);
    ASSERT_FALSE(snapshot) << item.json;
    EXPECT_EQ(snapshot.error().code, base::Code::kProtocol);
    EXPECT_NE(snapshot.error().what.find(item.named), std::string::npos) << snapshot.error().what;
  }
}

TEST(SettingsTest, TheGpusAreRead) {
  const auto gpus = parse_settings(R"({"gpus": [{"index": 4}]})");
  ASSERT_TRUE(gpus) << gpus.error().what;
  ASSERT_EQ(gpus->size(), 1u);
  EXPECT_EQ(gpus->at(0).index, 4u);
  EXPECT_FALSE(parse_settings("7"));
}

TEST(TenantStandingTest, IsRead) {
  const auto standing = parse_tenant(
      R"({"tenant": 3, "pid": 4711, "program": "train.py", "priority": -5, "share": "0.5", "max_share": "30%"})");
  ASSERT_TRUE(standing) << standing.error().what;
  EXPECT_EQ(standing->pid, 4711);
  EXPECT_EQ(standing->program, "train.py");
  EXPECT_EQ(standing->priority, -5);
  EXPECT_EQ(standing->share, "0.5");
  EXPECT_EQ(standing->max_share, "30%");
  EXPECT_FALSE(parse_tenant("[]"));
}

TEST(TraceEventTest, ReadsEveryFieldAndKeepsTheRestAsText) {
  // The time is that of a machine that has been up for a year: more than 2^53 nanoseconds.
  const auto event = parse_trace_event(
      R"({"sequence": 1, "time_ns": 31536000123456789, "gpu": 0, "event": "revoke", "tenant": 1, "pid": 4711,
    "program": "train.py", "epoch": 3, "lease": "exclusive",
    "detail": "quantum", "pod": "team/train-0", "before": "idle", "before_ns": 5, "job": 17, "name": "train",
    "more": "text", "waited_ns": 12,
    "note": ""})");
  ASSERT_TRUE(event) << event.error().what;
  EXPECT_EQ(event->time.time_since_epoch().count(), 31536000123456789);
  EXPECT_EQ(event->gpu, 0u);
  EXPECT_EQ(event->event, "revoke");
  EXPECT_EQ(event->tenant, 1u);
  EXPECT_EQ(event->pid, 4711);
  EXPECT_EQ(event->program, "train.py");
  EXPECT_EQ(event->epoch, 3u);
  EXPECT_EQ(event->lease, "exclusive");
  EXPECT_EQ(event->detail, "quantum");
  EXPECT_EQ(event->pod, "team/train-0");
  EXPECT_EQ(event->before, "idle");
  EXPECT_EQ(event->job, 17u);
  EXPECT_EQ(event->name, "train");
  EXPECT_EQ(event->lasted.count(), 5);
  EXPECT_EQ(event->others, "more=text waited_ns=12");
  EXPECT_EQ(parse_trace_event(R"({"event": "connect"})")->gpu, std::nullopt);
  EXPECT_FALSE(parse_trace_event("[1]"));
  EXPECT_FALSE(parse_trace_event("{"));
}

}  // namespace
}  // namespace gpumux::api_client

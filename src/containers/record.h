// SPDX-License-Identifier: Apache-2.0
// Records of containers: the owner of a container, and the bounds of its claims. One file for each container, in a
// folder that only the daemon's owner (root) can enter and that is passed into no container. A Slurm job is a container
// here, with one claim.
//
// The hook, or Slurm's plugin, writes a record before any of the container's programs runs, and removes it when the
// container has ended.
// The daemon reads it when a tenant comes. So neither needs the other to be there, and a daemon that starts again knows
// all containers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/standing.h"

namespace gpumux::containers {

// The bytes that all programs of a claim together may have allocated on one GPU.
struct Quota {
  std::string gpu;          // its UUID, as NVML writes it: "GPU-..." or "MIG-..."
  std::uint64_t bytes = 0;  // not 0

  friend bool operator==(const Quota&, const Quota&) = default;
};

// The weight that all programs of a claim have together among the tenants that want one GPU.
struct Share {
  std::string gpu;          // as a quota's
  std::uint64_t cores = 0;  // 1 to kMostCores: hundredths of the share of a program without a claim

  friend bool operator==(const Share&, const Share&) = default;
};
static_assert(base::kOneShare == 100);
inline constexpr std::uint64_t kMostCores = base::kMostShare;
inline constexpr std::uint64_t kWhole = 1000;

// The cores and memory that all programs of a claim together may have on each GPU.
struct Part {
  std::uint64_t cores = 0;        // as a share's
  std::uint64_t thousandths = 0;  // of the GPU's memory, 1 to kWhole
  std::uint64_t bytes = 0;        // of the GPU's memory, if that is less; 0: that does not count

  friend bool operator==(const Part&, const Part&) = default;
};

// All containers of a claim have its quotas and shares together.
struct Claim {
  std::string uid;                // not empty
  std::vector<Quota> quotas{};    // at most one for each GPU
  std::vector<Share> shares{};    // the same
  std::int32_t priority = 0;      // the highest that a program of the claim may have; within base::kMostPriority of 0
  std::optional<Part> on_each{};  // then it has no other quotas and shares

  friend bool operator==(const Claim&, const Claim&) = default;
};

struct Record {
  std::string id;             // of the container
  std::string control_group;  // of its first process, as the host sees it
  // As the kubelet told the runtime; empty: it did not.
  std::string pod_namespace{};
  std::string pod{};
  std::string name{};           // the container's, within its pod
  std::vector<Claim> claims{};  // each once; at most one of them counts on a GPU: has a quota, share or part there

  friend bool operator==(const Record&, const Record&) = default;
};

// The highest priority that a program of a container with these claims may have: the lowest of the claims'. So no claim
// lifts the programs on another claim's GPUs. None: there is no claim.
std::optional<std::int32_t> most_priority(const std::vector<Claim>& claims);

// kInvalid: it means nothing, or not one thing. A quota needs a GPU's UUID and bytes, a share a GPU's UUID and cores; a
// GPU has one of each at most. A claim without a uid is none, and has nothing.
base::Status check_claim(const Claim& claim);

// The cores and bytes that the claim may have on the GPU `gpu` with `memory` bytes. Empty: the claim sets none there.
std::optional<std::uint64_t> cores_on(const Claim& claim, std::string_view gpu);
std::optional<std::uint64_t> bytes_on(const Claim& claim, std::string_view gpu, std::uint64_t memory);

// Adds a claim, or gives one that is there its new quotas, shares and priority. Where another claim counts on a GPU, it
// still does, and the added claim has neither quota nor share there. Returns such GPUs.
std::vector<std::string> add_claim(std::vector<Claim>& claims, Claim claim);

// Ids are file names: letters, digits, - and _, at most 128 of them.
bool is_usable_id(std::string_view id);

// `folder`: a descriptor of the records' folder. A record that is written again replaces the old one, and a reader sees
// the one or the other. kInvalid: the record or the id cannot be used.
base::Status write_record(int folder, const Record& record);
// kNotFound: there is none. kInvalid: the file is no record of this container.
base::Result<Record> read_record(int folder, std::string_view id);
// No error if there is none.
base::Status remove_record(int folder, std::string_view id);

// The ids of all records, sorted.
base::Result<std::vector<std::string>> record_ids(int folder);

// Removes the remains of a write_record() whose process was killed. Records that are being written stay.
base::Status remove_unfinished(int folder);

}  // namespace gpumux::containers

// SPDX-License-Identifier: Apache-2.0
// A user's request to Slurm, Slurm's answer, and the result of both. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "containers/record.h"

namespace gpumux::slurm {

// The options of srun, sbatch and salloc: the user's words.
struct Request {
  bool is_made = false;       // one of the options was given
  std::uint32_t percent = 0;  // of each GPU; 0: not said
  std::uint64_t bytes = 0;    // on each GPU; 0: not said
  std::optional<std::int32_t> priority{};
};

// "25" and "25%": 1 to 100.
base::Result<std::uint32_t> parse_percent(std::string_view text);
// "20G": with a unit, for a bare number is a mistake more often than bytes.
base::Result<std::uint64_t> parse_memory(std::string_view text);

// A job's allocation on this node, as Slurm says.
struct Allocation {
  std::uint32_t nodes = 1;
  std::uint64_t gpus = 0;            // that it has wholly, or shards of
  std::uint64_t shards = 0;          // 0: its GPUs are whole
  std::uint64_t shards_per_gpu = 0;  // of the node; not 0 if the job has shards
};

// Of a job's gres on a node ("gpu:h100:2(IDX:0-1)", "shard:3(IDX:0)") and of the node's ("gpu:h100:2,shard:20(S:0)").
// Fails if the job has shards and the node's gres do not say how many a GPU has.
base::Result<Allocation> allocation_of(std::uint32_t nodes, std::string_view jobs_gres, std::string_view nodes_gres);

// Empty: the job may use gpumux.
std::string refusal(const Allocation& allocation);

// The part of each GPU that the job may have. A user can ask for less than Slurm has given, and not for more. Empty:
// all of it.
std::optional<containers::Part> part_of(const Request& request, const Allocation& allocation);

// The programs of a step on this node.
struct Step {
  std::uint32_t job = 0;
  std::uint32_t tasks = 1;
  std::string library;      // to preload; empty: the loader does so anyway
  std::string runtime_dir;  // of the daemon
  std::string preload;      // LD_PRELOAD as it is
};

struct Variable {
  std::string name;
  std::string value;
  bool is_users = false;  // a value that is there stays

  friend bool operator==(const Variable&, const Variable&) = default;
};

// A step that starts within a step of its job is given the same once more, which changes nothing.
std::vector<Variable> variables(const Step& step, const Request& request, const Allocation& allocation);

}  // namespace gpumux::slurm

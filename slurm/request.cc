// SPDX-License-Identifier: Apache-2.0
#include "slurm/request.h"

#include <algorithm>

#include "base/standing.h"
#include "base/units.h"
#include "containers/control_group.h"
#include "os/preload_list.h"

namespace gpumux::slurm {
namespace {

using base::Code;

// Names, types and counts are Slurm's own text, and those of a node have at most some hundred bytes.
constexpr std::uint64_t kMostOfAGres = 1'000'000;

// Takes the text before the next separator that is in no parentheses.
std::string_view take_part(std::string_view& text, char separator) {
  std::size_t depth = 0;
  std::size_t end = 0;
  for (; end < text.size() && (depth != 0 || text[end] != separator); ++end) {
    if (text[end] == '(') ++depth;
    if (text[end] == ')' && depth != 0) --depth;
  }
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

std::uint64_t number_in(std::string_view text) { return base::parse_integer(text, 0, kMostOfAGres).value_or(0); }

// "IDX:0-1,3" has three. "2/10,0/10", as newer releases write it of shards, has one: of the second GPU there are none.
std::uint64_t devices_in(std::string_view list) {
  constexpr std::string_view kIndexes = "IDX:";
  const bool has_indexes = list.starts_with(kIndexes);
  if (has_indexes) list.remove_prefix(kIndexes.size());
  std::uint64_t devices = 0;
  while (!list.empty()) {
    const std::string_view part = take_part(list, ',');
    if (has_indexes) {
      const std::size_t dash = part.find('-');
      const std::uint64_t first = number_in(part.substr(0, dash));
      const std::uint64_t last = dash == std::string_view::npos ? first : number_in(part.substr(dash + 1));
      devices += last - std::min(first, last) + 1;
    } else if (const std::size_t slash = part.find('/'); slash != std::string_view::npos) {
      if (number_in(part.substr(0, slash)) != 0) ++devices;
    }
  }
  return devices;
}

struct Gres {
  std::uint64_t count = 0;
  std::uint64_t devices = 0;
};

// All of one name: "gpu:a:1(IDX:0),gpu:b:2(IDX:1-2)" has three of "gpu".
Gres gres_in(std::string_view text, std::string_view name) {
  Gres all;
  while (!text.empty()) {
    std::string_view one = take_part(text, ',');
    const std::size_t open = one.find('(');
    const std::string_view list =
        open == std::string_view::npos ? std::string_view() : one.substr(open + 1, one.size() - open - 2);
    one = one.substr(0, open);
    if (one.substr(0, one.find(':')) != name) continue;
    const std::size_t colon = one.rfind(':');
    all.count += colon == std::string_view::npos ? 1 : number_in(one.substr(colon + 1));
    all.devices += devices_in(list);
  }
  return all;
}

}  // namespace

base::Result<std::uint32_t> parse_percent(std::string_view text) {
  std::string_view number = text;
  if (number.ends_with('%')) number.remove_suffix(1);
  if (const auto percent = base::parse_integer(number, 1, 100)) return static_cast<std::uint32_t>(*percent);
  return base::fail(Code::kInvalid, "'" + std::string(text) + "' is no part of a GPU: 1 to 100 percent are possible");
}

base::Result<std::uint64_t> parse_memory(std::string_view text) {
  const bool has_unit = !text.empty() && (text.back() < '0' || text.back() > '9');
  const auto bytes = base::parse_bytes(text);
  if (has_unit && bytes && *bytes > 0) return *bytes;
  return base::fail(Code::kInvalid, "'" + std::string(text) + "' is no number of bytes with a unit, such as 20G");
}

base::Result<Allocation> allocation_of(std::uint32_t nodes, std::string_view jobs_gres, std::string_view nodes_gres) {
  const Gres gpus = gres_in(jobs_gres, "gpu");
  const Gres shards = gres_in(jobs_gres, "shard");
  Allocation allocation{.nodes = nodes, .gpus = gpus.count, .shards = shards.count, .shards_per_gpu = 0};
  if (shards.count == 0) return allocation;
  allocation.gpus += std::max<std::uint64_t>(shards.devices, 1);
  const std::uint64_t nodes_gpus = gres_in(nodes_gres, "gpu").count;
  const std::uint64_t nodes_shards = gres_in(nodes_gres, "shard").count;
  if (nodes_gpus == 0 || nodes_shards < nodes_gpus) {
    return base::fail(Code::kInvalid, "the node's gres (" + std::string(nodes_gres) +
                                          ") do not say how many shards a GPU has: it needs gpu and shard");
  }
  allocation.shards_per_gpu = nodes_shards / nodes_gpus;
  return allocation;
}

std::string refusal(const Allocation& allocation) {
  if (allocation.nodes == 1 || allocation.shards == 0) return {};
  return "--gpumux with shards on " + std::to_string(allocation.nodes) +
         " nodes is refused: programs that wait for each other get their GPUs together on one node only. Ask for one "
         "node (--nodes=1), or for whole GPUs (--gres=gpu)";
}

std::optional<containers::Part> part_of(const Request& request, const Allocation& allocation) {
  std::uint64_t thousandths = containers::kWhole;
  if (allocation.shards != 0) {
    const std::uint64_t all = allocation.shards_per_gpu * allocation.gpus;
    thousandths = std::clamp<std::uint64_t>(containers::kWhole * allocation.shards / all, 1, containers::kWhole);
  }
  if (request.percent != 0) thousandths = std::min(thousandths, containers::kWhole * request.percent / 100);
  if (thousandths == containers::kWhole && request.bytes == 0) return std::nullopt;
  const std::uint64_t cores = std::max<std::uint64_t>(base::kOneShare * thousandths / containers::kWhole, 1);
  return containers::Part{.cores = cores, .thousandths = thousandths, .bytes = request.bytes};
}

std::vector<Variable> variables(const Step& step, const Request& request, const Allocation& allocation) {
  const std::string id = containers::slurm_id(step.job);
  std::vector<Variable> all;
  if (!step.library.empty()) all.push_back({"LD_PRELOAD", os::compose_preload(step.preload, step.library)});
  all.push_back({"GPUMUX_RUNTIME_DIR", step.runtime_dir});
  all.push_back({"GPUMUX_RUN_ID", id});
  // Alone on one GPU a program needs no gang. A gang's members drain before others start, which costs time.
  if (allocation.nodes > 1 || allocation.gpus != 1 || step.tasks > 1) all.push_back({"GPUMUX_GANG", id, true});
  if (request.priority) all.push_back({"GPUMUX_PRIORITY", std::to_string(*request.priority)});
  // For clusters without records (docs/slurm.md). Where there is one, it counts.
  if (const auto part = part_of(request, allocation))
    all.push_back({"GPUMUX_SHARE", base::format_share(static_cast<std::uint32_t>(part->cores))});
  if (request.bytes != 0) all.push_back({"GPUMUX_MEM_LIMIT", std::to_string(request.bytes)});
  return all;
}

}  // namespace gpumux::slurm

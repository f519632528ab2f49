// SPDX-License-Identifier: Apache-2.0
#include "slurm/allocation.h"

#include <cerrno>
#include <memory>
#include <string>
#include <type_traits>

#include "slurm/slurm_api.h"

// The program that loads the plugin has them. Weak: one that lacks them does not end when it first calls one.
#pragma weak slurm_load_job
#pragma weak slurm_load_node_single
#pragma weak slurm_free_job_info_msg
#pragma weak slurm_free_node_info_msg
#pragma weak slurm_strerror

namespace gpumux::slurm {
namespace {

tl::unexpected<base::Error> fail(const std::string& what) {
  return base::fail(base::Code::kUnavailable, "slurmctld does not say " + what + ": " + ::slurm_strerror(errno));
}

// Slurm 26.05 takes the job's number as part of a step's.
template <class Id>
int load_job(int (*load)(job_info_msg_t**, Id, std::uint16_t), job_info_msg_t** answer, std::uint32_t job) {
  if constexpr (std::is_integral_v<Id>) {
    return load(answer, job, SHOW_DETAIL);
  } else {
    Id id{};
    id.job_id = job;
    id.step_het_comp = NO_VAL;
    id.step_id = NO_VAL;
    return load(answer, id, SHOW_DETAIL);
  }
}

std::string text_of(const char* text) { return text == nullptr ? std::string() : std::string(text); }

base::Result<std::string> gres_of_node(const std::string& name) {
  node_info_msg_t* answer = nullptr;
  std::string copy = name;
  if (::slurm_load_node_single(&answer, copy.data(), 0) != SLURM_SUCCESS)
    return fail("what gres node " + name + " has");
  const std::unique_ptr<node_info_msg_t, void (*)(node_info_msg_t*)> nodes(answer, ::slurm_free_node_info_msg);
  return nodes->record_count == 0 ? std::string() : text_of(nodes->node_array[0].gres);
}

}  // namespace

base::Result<Allocation> ask_slurmctld(std::uint32_t job) {
  if (::slurm_load_job == nullptr || ::slurm_load_node_single == nullptr || ::slurm_free_job_info_msg == nullptr ||
      ::slurm_free_node_info_msg == nullptr || ::slurm_strerror == nullptr)
    return base::fail(base::Code::kUnsupported, "this slurmstepd offers plugins no calls of slurmctld");
  job_info_msg_t* answer = nullptr;
  if (load_job(::slurm_load_job, &answer, job) != SLURM_SUCCESS)
    return fail("what job " + std::to_string(job) + " has");
  const std::unique_ptr<job_info_msg_t, void (*)(job_info_msg_t*)> jobs(answer, ::slurm_free_job_info_msg);
  if (jobs->record_count == 0)
    return base::fail(base::Code::kNotFound, "slurmctld knows no job " + std::to_string(job));
  const job_info_t& info = jobs->job_array[0];
  // A batch script is on the job's first node.
  const std::string gres = info.gres_detail_cnt == 0 ? std::string() : text_of(info.gres_detail_str[0]);
  // A job of several nodes has whole GPUs, or is refused. So it does not matter what its node has.
  if (info.num_nodes > 1) return allocation_of(info.num_nodes, gres, "gpu:1,shard:1");
  const auto nodes_gres = gres_of_node(text_of(info.nodes));
  if (!nodes_gres) return tl::unexpected(nodes_gres.error());
  return allocation_of(info.num_nodes, gres, *nodes_gres);
}

}  // namespace gpumux::slurm

// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/job_change.h"

#include <iostream>

#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"
#include "cli/jobs/submission.h"

namespace gpumux::cli {

std::string describe_request(const api_client::Submission& wanted, const api_client::Job& job) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (wanted.priority) add("priority " + std::to_string(job.priority));
  if (wanted.time_limit)
    add(job.time_limit ? "time limit " + base::format_time_limit(*job.time_limit) : "no time limit of its own");
  if (wanted.gpus || !wanted.gpu_ids.empty()) {
    std::string gpus;
    for (const std::uint32_t gpu : job.gpu_ids) gpus += (gpus.empty() ? "" : ",") + std::to_string(gpu);
    const std::string any = "any " + std::to_string(job.gpus_wanted) + (job.gpus_wanted == 1 ? " GPU" : " GPUs");
    add(gpus.empty() ? any : (job.gpu_ids.size() == 1 ? "GPU " : "GPUs ") + gpus);
  }
  if (wanted.memory_bytes)
    add((job.memory_bytes == 0 ? "all memory" : base::format_bytes(job.memory_bytes)) + " on each GPU");
  return text;
}

int change_requests(const char* command, const api_client::Client& client, const std::vector<std::string>& ids,
                    const api_client::Submission& wanted) {
  const auto changes = change_named_jobs(client, ids, api_client::request_body(wanted));
  if (!changes) return report_error(command, changes.error());
  int status = kExitOk;
  for (const api_client::JobChange& change : *changes) {
    // The daemon may bound what a user asks for: the job says what it has got.
    const auto job = change.error ? base::Result<api_client::Job>(tl::unexpected(*change.error))
                                  : client.job(std::to_string(change.id));
    if (!job) {
      const int failed = report_error(command, job.error());
      if (status == kExitOk) status = failed;
      continue;
    }
    if (job->is_done()) {
      say_error(command, "job " + job_label(*job) + " has ended, and nothing was changed");
      if (status == kExitOk) status = kExitFailed;
      continue;
    }
    std::cout << "job " << job_label(*job) << ": " << describe_request(wanted, *job) << "\n";
    const std::string cap = wanted.priority ? describe_cap(job->priority, job->priority_capped) : "";
    if (!cap.empty()) say_error(command, "note: " + cap);
  }
  std::cout << std::flush;
  return status;
}

}  // namespace gpumux::cli

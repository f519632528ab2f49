// SPDX-License-Identifier: Apache-2.0
// From a job's document to its runner's spec. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs/core/job.h"
#include "jobs/service/job_document.h"
#include "jobs/store/job_store.h"
#include "wire/runner_records.h"

namespace gpumux::jobs {

// Settings that are the same for all jobs of a daemon.
struct LaunchSettings {
  std::string runtime_dir;  // of this daemon: where the jobs' programs find it
  std::string library;      // libgpumux.so; empty: it is preloaded everywhere already (/etc/ld.so.preload)
  std::string attach_dir;   // for the terminals of interactive jobs
  std::string store_id;     // tells this daemon's jobs from those of another one with the same numbers
};

// The document has the GPUs in the order in which they were submitted. This is the order of now.
void take_order(JobDocument& document, const store::StoredJob& job);

// The job to start, without its document.
struct LaunchedJob {
  JobId id;
  std::uint32_t attempt = 1;
  JobId array = kNoJob;
  std::uint32_t array_index = 0;
  std::string name;
  GpuSet gpus;
  std::uint64_t memory = 0;  // its quota on each GPU; 0: none
  std::int32_t priority = 0;
};

// The name under which the daemon knows a job's programs (GPUMUX_RUN_ID).
std::string run_id(const LaunchSettings& settings, JobId job, std::uint32_t attempt);

// The path of an interactive job's terminal.
std::string attach_path(const LaunchSettings& settings, JobId job, std::uint32_t attempt);

// The job's log: the pattern of its document with everything put in, or its place in the user's folder of logs. Each
// queue (`store_id`) has a folder of its own there, because each numbers its jobs from 1. kInvalid: the pattern has an
// unknown %; or the user has no home, and the document names no place.
base::Result<std::string> log_path(const JobDocument& document, const LaunchedJob& job, const std::string& store_id);

// The file for the job's errors; empty: they go to the log. kInvalid as log_path.
base::Result<std::string> error_path(const JobDocument& document, const LaunchedJob& job);

// kInvalid as log_path.
base::Result<wire::RunnerSpec> make_runner_spec(const JobDocument& document, const LaunchedJob& job,
                                                const LaunchSettings& settings);

}  // namespace gpumux::jobs

// SPDX-License-Identifier: Apache-2.0
// From a command line to a job that the daemon has: the part that `gpumux submit` and `mgpu_srun` share.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api_client/client.h"
#include "api_client/jobs.h"
#include "base/clock.h"
#include "base/result.h"
#include "cli/jobs/find_client.h"

namespace gpumux::cli {

// The options by which a job asks for GPUs, memory and time, as they were given; empty: not given.
struct RequestWishes {
  std::string gpus;
  std::string gpu_ids;
  std::string memory;
  std::string time_limit;
  std::string priority;
};

// The same of all of a job.
struct SubmitWishes : RequestWishes {
  std::string on_time_limit;
  std::string name;
  std::string setup_command;
  std::string output;
  std::string error;
  std::string begin;
  std::string directory;      // empty: this one
  std::string exported;       // the variables of the environment that go along; empty: all
  std::string minutes_limit;  // as Slurm's -t: a bare number is in minutes
  std::vector<std::string> after;
  std::string array;
  bool append = false;
  bool exclusive = false;
  bool interactive = false;
  bool home = false;
  bool requeue = false;
  bool held = false;
  std::vector<std::pair<std::string, std::string>> variables;  // that the job gets, whatever goes along
};

// kInvalid: the usage is wrong, and how. Else some property of the calling process that goes along (directory,
// environment, umask) could not be found out. Dependencies are left to resolve_dependencies().
base::Result<api_client::Submission> make_submission(const SubmitWishes& wishes, const std::vector<char*>& program);

// Puts the wishes into `submission`. kInvalid names the option that is wrong.
base::Status read_request(const RequestWishes& wishes, api_client::Submission& submission);

// "0,2": numbers, each once, in this order.
base::Result<std::vector<std::uint32_t>> parse_gpu_ids(std::string_view text);

// The part of `environment` (NAME=value) that goes along: "ALL", "NONE", "NAME,OTHER=value", "ALL,NAME=value".
base::Result<std::vector<std::string>> exported_environment(std::string_view text,
                                                            const std::vector<std::string>& environment);

struct NamedDependency {
  std::string job;  // "17", "17_3"
  std::string need;
};
// "ok:17", "any:17_3", "17", and as Slurm has it: "afterok:17:18,afterany:19".
base::Result<std::vector<NamedDependency>> parse_dependencies(std::string_view text);

// Adds the dependencies to `submission`. kNotFound: one of the jobs is not there.
base::Status resolve_dependencies(const api_client::Client& client, const std::vector<std::string>& after,
                                  api_client::Submission& submission);

// How often and how long a submission that was not answered is sent again.
struct Persistence {
  base::Duration limit = std::chrono::seconds(60);  // a daemon that restarts with a long queue takes a second or two
  base::Duration first_pause = std::chrono::milliseconds(50);
  base::Duration longest_pause = std::chrono::seconds(2);
};

// Hands in the job once, however often it has to be sent: `submission` has a token. kUnavailable: no answer within the
// limit. The error says whether the daemon may have the job all the same.
base::Result<api_client::Submitted> submit_persistently(const api_client::Submission& submission,
                                                        const FindClient& find, const Persistence& persistence = {});

// Warnings of files that will not be found when the job runs, as far as it is plain: its program, the folder of its
// log.
std::vector<std::string> doubts_about(const api_client::Submission& submission);

// That a job's priority counts for less than was asked for; empty: it does not. `capped`: none, if it is as asked.
std::string describe_cap(std::int32_t priority, std::optional<std::int32_t> capped);

// "job 17", or "array 17_[0-9%2] (10 jobs)".
std::string describe_submitted(const api_client::Submitted& submitted);

}  // namespace gpumux::cli

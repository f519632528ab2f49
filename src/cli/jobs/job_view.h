// SPDX-License-Identifier: Apache-2.0
// How jobs are shown: the queue and the history as tables, one job in full, and fields for programs.
//
// All times of day are passed in, so that the same jobs always look the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api_client/jobs.h"
#include "base/result.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/job_groups.h"

namespace gpumux::cli {

// "17_0, 17_1, 17_2 ... 17_9"
std::string job_labels(const std::vector<api_client::Job>& jobs);

// Why a job waits, or a remarkable fact about one that does not. One line, as it came: not yet printable.
std::string job_reason(const api_client::Job& job);

// The text about a job's end besides its exit status; empty: there is none.
std::string end_text(const api_client::Job& job);

// " (failed, exit status 3)"; empty: nothing is known.
std::string outcome_text(const api_client::Job& job);

// Of a job that is done: "has ended already (failed, exit status 3)".
std::string finished_text(const api_client::Job& job);

// "job 17 waits: place 3; waits for 20.0 GiB on GPU 0; starts within 20m00s"
std::string waiting_text(const api_client::Job& job);

// Running jobs first, then suspended ones, waiting ones in their order, held ones, and done ones.
void sort_for_queue(std::vector<api_client::Job>& jobs);

// `queue`: its state, where it could be had. Groups as they shall be shown; a summary is the last line. Where the
// terminal is too narrow for reasons next to the other columns, each stands below its job.
std::vector<std::string> queue_lines(const std::vector<JobGroup>& groups,
                                     const std::optional<api_client::QueueState>& queue, std::int64_t now_unix_ns,
                                     const Output& output);

std::vector<std::string> history_lines(const std::vector<JobGroup>& groups, std::int64_t now_unix_ns,
                                       const Output& output);

// Everything that is known of one job.
std::vector<std::string> show_lines(const api_client::Job& job, std::int64_t now_unix_ns, const Output& output);

// Remarks on all that keeps jobs from starting: a paused queue, GPUs that take no jobs, or are kept for one.
std::vector<std::string> queue_remarks(const api_client::QueueState& queue, const Output& output);

// "failed,timed-out" as GET /v1/jobs takes it: "failed,timed out". kInvalid says which outcomes there are.
base::Result<std::string> parse_outcomes(std::string_view text);

struct JobField {
  std::string_view name;
  std::string (*text)(const api_client::Job& job, std::int64_t now_unix_ns);
};

// "id,name,state": kInvalid names the word that is no field, and the fields.
base::Result<std::vector<const JobField*>> parse_fields(std::string_view text);
// "id, array, ...": every name.
std::string field_names();
// The fields with tabs between them. Whole numbers: bytes, seconds, seconds since 1970; nothing where there is nothing.
std::string format_fields(const std::vector<const JobField*>& fields, const api_client::Job& job,
                          std::int64_t now_unix_ns);

std::int64_t now_unix_ns();

}  // namespace gpumux::cli

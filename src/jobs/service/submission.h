// SPDX-License-Identifier: Apache-2.0
// A submission by a user: POST /v1/jobs, checked. Pure, and slow where there are megabytes: not for the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "jobs/core/job.h"
#include "jobs/service/job_document.h"
#include "jobs/store/ledger.h"

namespace gpumux::jobs {

// An array has this many jobs at most, each with its own document.
inline constexpr std::uint32_t kMaxArrayElements = 10'000;
// The most bytes of one array's documents together: an ordinary environment is 4 KiB.
inline constexpr std::size_t kMaxArrayBytes = 128u << 20;
struct Submission {
  JobSpec spec;                         // without ids, array elements, and what is known of dependencies
  std::vector<std::uint32_t> elements;  // of the array; empty: a single job
  std::string name;
  std::string command;  // as lists show it
  std::string token;
  store::WallTime begin_at = 0;  // it does not start before; 0: at once
  JobDocument document;          // without the submitter
  bool by_admin = false;         // may change settings: has no priority cap, and sees all jobs
  std::string document_text;     // the document with its submitter, as it is stored; set by the caller
};

// Reads a request's body. kInvalid says which part is wrong, and what is allowed.
base::Result<Submission> parse_submission(std::string_view body);

// A change of a job: PATCH /v1/jobs/ID with fields of a submission.
struct WishedGpus {
  std::uint32_t count = 1;
  std::vector<std::uint32_t> order;  // these, in this order; empty: any `count`
};
struct Wishes {
  std::optional<std::int32_t> priority;
  std::optional<base::Duration> time_limit;
  std::optional<std::uint64_t> memory;
  std::optional<WishedGpus> gpus;
};

// kInvalid as parse_submission.
base::Result<Wishes> parse_wishes(std::string_view body);

// "0-9", "1,3,7-20", "0-40:4", each with "%2" at the end: this many at once.
struct ArrayElements {
  std::vector<std::uint32_t> indices;  // ascending
  std::uint32_t at_once = 0;           // 0: any number
};
base::Result<ArrayElements> parse_array(std::string_view text);

}  // namespace gpumux::jobs

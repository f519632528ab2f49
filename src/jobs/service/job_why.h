// SPDX-License-Identifier: Apache-2.0
// Why a job waits, and why a submission or a change is refused: sentences that name the thing and the number.
//
// The facts are read on the loop's thread; the sentence may be written on any. Of other users' jobs and programs a
// sentence names what the viewer may see.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "jobs/core/job_core.h"
#include "jobs/store/job_store.h"

namespace gpumux::jobs {

class JobQueue;

// How much of a job the viewer may see.
enum class Sight { kNothing, kLimited, kOpen, kOwn };
// Nothing for `uid`: the user is not known.
using SightOf = std::function<Sight(std::optional<std::uint32_t> uid)>;

struct NamedJob {
  std::string label;  // "17", "17_3"
  std::string name;   // empty: the viewer may not see it
  bool is_array = false;
};

// Some of the names, and the number of the others.
template <class Name>
struct Some {
  std::vector<Name> named;
  std::size_t others = 0;
};

struct WhyFacts {
  Obstacle obstacle;
  Some<NamedJob> jobs;              // that the obstacle names
  Some<std::string> programs;       // without a job, on the GPU that the obstacle names
  std::vector<std::string> closed;  // "GPU 1 is drained"
  base::TimePoint asked_at{};
  std::string note;           // why it could not be started
  bool is_paused = false;     // by an administrator
  bool is_suspended = false;  // the job
};

// "GPU 0", "GPUs 0 and 1"
std::string gpus_text(const GpuSet& gpus);

// On the loop's thread.
WhyFacts why_facts(const JobQueue& queue, JobId job, const JobStanding& standing, const SightOf& sight);

// As the API has it: "held"; empty: it does not wait.
std::string_view reason_word(WaitReason reason, const WhyFacts& facts);

// The same in words.
std::string why_text(const store::StoredJob& job, WaitReason reason, const WhyFacts& facts);

// Why a job has ended without a start: which job it was to come after, and how that ended. `record`: of its end. On the
// loop's thread. A name of another user's job is in it only if every user may see it.
std::string broken_text(const JobQueue& queue, const Record& record);

// Why a submission or a change cannot be taken, for people, and as an error's code.
base::Error describe(Refusal refusal, const JobSpec& spec, const UserLimits& limits, const JobCore& core);

}  // namespace gpumux::jobs

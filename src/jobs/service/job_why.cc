// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_why.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <optional>

#include "base/units.h"
#include "jobs/service/job_queue.h"

namespace gpumux::jobs {
namespace {

using base::Code;

// A line names this many jobs or programs, and counts the others.
constexpr std::size_t kMostNamed = 2;

std::string count_of(std::uint64_t count, std::string_view one, std::string_view many) {
  return std::to_string(count) + " " + std::string(count == 1 ? one : many);
}

// "0", "0 and 1", "0, 1 and 2"
std::string list_of(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

std::string text_of(const NamedJob& job) {
  return (job.is_array ? "array " : "job ") + job.label + (job.name.empty() ? "" : " (" + job.name + ")");
}

// "job 3 (train) and job 4", "job 3, job 4 and 2 others"; empty: nothing is named.
template <class Name, class Text>
std::string list_of(const Some<Name>& some, Text text) {
  std::vector<std::string> words;
  for (const Name& name : some.named) words.push_back(text(name));
  if (some.others > 0 && !words.empty()) words.push_back(count_of(some.others, "other", "others"));
  return list_of(words);
}

// ---- the facts -------------------------------------------------------------------------------------------------

std::string label_of(JobId job, JobId array, std::uint32_t index) {
  return array == kNoJob ? std::to_string(job.value) : std::to_string(array.value) + "_" + std::to_string(index);
}

std::string label_of(const JobSpec& spec) { return label_of(spec.id, spec.array, spec.array_index); }

void add_job(const JobQueue& queue, JobId job, const SightOf& sight, Some<NamedJob>& jobs) {
  const JobQueue::Owner* const owner = queue.find(job);
  const Sight seen = owner != nullptr ? sight(owner->uid) : Sight::kNothing;
  if (seen == Sight::kNothing || jobs.named.size() == kMostNamed) {
    ++jobs.others;
    return;
  }
  const bool has_name = seen == Sight::kOpen || seen == Sight::kOwn;
  jobs.named.push_back({.label = label_of(job, owner->array, owner->array_index), .name = has_name ? owner->name : ""});
}

// An element of an array in `after` that is left: the first one may be done.
JobId some_element(const JobQueue& queue, JobId array) {
  const std::vector<JobId> left = queue.elements(array);
  return left.empty() ? array : left.front();
}

void add_programs(const JobQueue& queue, base::GpuIndex gpu, const SightOf& sight, Some<std::string>& programs) {
  for (const ForeignProgram& program : queue.gpus().at(gpu.value).programs) {
    const Sight seen = sight(program.uid);
    const bool has_name = seen == Sight::kOpen || seen == Sight::kOwn;
    const auto known = std::find(programs.named.begin(), programs.named.end(), program.name);
    if (has_name && known != programs.named.end()) continue;
    if (has_name && programs.named.size() < kMostNamed) {
      programs.named.push_back(program.name);
    } else {
      ++programs.others;
    }
  }
}

}  // namespace

std::string gpus_text(const GpuSet& gpus) {
  std::vector<std::string> numbers;
  for (const base::GpuIndex gpu : gpus) numbers.push_back(std::to_string(gpu.value));
  return (numbers.size() == 1 ? "GPU " : "GPUs ") + list_of(numbers);
}

WhyFacts why_facts(const JobQueue& queue, JobId job, const JobStanding& standing, const SightOf& sight) {
  WhyFacts facts;
  facts.obstacle = queue.core().obstacle(job, standing);
  facts.asked_at = queue.now();
  facts.note = queue.note(job);
  facts.is_paused = queue.is_paused();
  facts.is_suspended = standing.state == JobState::kSuspended;
  if (const auto* waits = std::get_if<WaitsForEnd>(&facts.obstacle)) {
    const JobId shown = waits->is_array ? some_element(queue, waits->job) : waits->job;
    add_job(queue, shown, sight, facts.jobs);
    if (waits->is_array && !facts.jobs.named.empty()) {
      facts.jobs.named.front().label = std::to_string(waits->job.value);
      facts.jobs.named.front().is_array = true;
    }
    facts.jobs.others += waits->others;
  } else if (const auto* others = std::get_if<WaitsForOthers>(&facts.obstacle)) {
    if (others->first != kNoJob) add_job(queue, others->first, sight, facts.jobs);
    facts.jobs.others = others->before - std::min<std::uint64_t>(others->before, facts.jobs.named.size());
  } else if (const auto* limit = std::get_if<WaitsForLimit>(&facts.obstacle)) {
    if (limit->kept_for != kNoJob) {
      add_job(queue, limit->kept_for, sight, facts.jobs);
      facts.jobs.others += limit->kept_jobs - 1;
    }
  } else if (const auto* room = std::get_if<WaitsForRoom>(&facts.obstacle)) {
    for (const JobId there : room->jobs) add_job(queue, there, sight, facts.jobs);
    if (room->foreign > 0) add_programs(queue, room->gpu, sight, facts.programs);
  } else if (const auto* gpus = std::get_if<WaitsForGpus>(&facts.obstacle)) {
    for (const base::GpuIndex gpu : gpus->closed) {
      const auto known = queue.core().room(gpu);
      const char* const state = !known || !known->present ? " is not there"
                                : known->drained          ? " is drained"
                                                          : " is sick";
      facts.closed.push_back("GPU " + std::to_string(gpu.value) + state);
    }
  }
  return facts;
}

// ---- the sentences ---------------------------------------------------------------------------------------------

namespace {

std::string waits_for_room(const WaitsForRoom& room, const WhyFacts& facts) {
  const std::string gpu = "GPU " + std::to_string(room.gpu.value);
  const std::string jobs = list_of(facts.jobs, text_of);
  const bool one_job = facts.jobs.named.size() + facts.jobs.others == 1;
  const std::string who = !jobs.empty() ? jobs : one_job ? "another user's job" : "other users' jobs";
  if (room.is_alone) return gpu + " is not shared (--exclusive): " + who + (one_job ? " has it" : " have it");
  std::string taken;
  if (!room.jobs.empty()) taken = who + (one_job ? " has " : " have ") + base::format_bytes(room.promised);
  if (room.foreign > 0) {
    const std::string programs = list_of(facts.programs, [](const std::string& name) { return name; });
    const bool one_program = facts.programs.named.size() + facts.programs.others == 1;
    taken += (taken.empty() ? "" : ", ") + (programs.empty() ? "other programs" : programs) +
             (one_program && !programs.empty() ? " uses " : " use ") + base::format_bytes(room.foreign);
  }
  return gpu + " has " + base::format_bytes(room.free) + " free of " + base::format_bytes(room.room) +
         (taken.empty() ? "" : ": " + taken);
}

std::string waits_for_others(const WhyFacts& facts) {
  const std::string jobs = list_of(facts.jobs, text_of);
  const std::size_t count = facts.jobs.named.size() + facts.jobs.others;
  if (count == 0) return "other jobs go first";
  return (jobs.empty() ? count_of(count, "other job", "other jobs") : jobs) +
         (count == 1 ? " goes first" : " go first");
}

std::string waits_for_limit(const WaitsForLimit& limit, const JobSpec& spec, const WhyFacts& facts) {
  using Of = WaitsForLimit::Of;
  const std::string used = std::to_string(limit.used) + " of " + std::to_string(limit.limit);
  if (limit.of == Of::kElements) return "array limit reached (" + used + " running)";
  const std::string jobs = list_of(facts.jobs, text_of);
  const std::string for_whom = jobs.empty() ? count_of(limit.kept_jobs, "other job", "other jobs") : jobs;
  std::string numbers = used;
  if (limit.of == Of::kJobs) {
    numbers += " running";
    if (limit.kept_for != kNoJob) numbers += ", " + std::to_string(limit.kept_jobs) + " to start: " + for_whom;
  } else {
    numbers += " GPUs in use, ";
    if (limit.kept_for != kNoJob) numbers += std::to_string(limit.kept_gpus) + " kept for " + for_whom + ", ";
    numbers += std::to_string(spec.wanted_gpus()) + " asked for";
  }
  return "user limit reached (" + numbers + ")";
}

std::string waits_for_gpus(const WaitsForGpus& gpus, const JobSpec& spec, const WhyFacts& facts) {
  const std::string closed = list_of(facts.closed);
  if (!spec.gpus.empty()) return closed.empty() ? gpus_text(spec.gpus) + " take no jobs now" : closed;
  return count_of(spec.wanted_gpus(), "GPU", "GPUs") + " asked for, " + std::to_string(gpus.usable) +
         (gpus.usable == 1 ? " takes jobs" : " take jobs") + (closed.empty() ? "" : ": " + closed);
}

// "2026-12-01 08:00:00 UTC": where the daemon is, which may be in another time zone than the reader.
std::string local_time(store::WallTime wall) {
  const std::time_t seconds = wall / 1'000'000'000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %Z", &parts);
  return text;
}

std::string retry_text(const WaitsForMoment& moment, const WhyFacts& facts) {
  const auto left = std::chrono::ceil<std::chrono::seconds>(moment.at - facts.asked_at).count();
  return "could not be started" + (left > 0 ? " (next try in " + std::to_string(left) + "s)" : std::string()) +
         (facts.note.empty() ? "" : ": " + facts.note);
}

}  // namespace

std::string_view reason_word(WaitReason reason, const WhyFacts& facts) {
  return reason == WaitReason::kPaused && !facts.is_paused ? "starting" : to_string(reason);
}

std::string why_text(const store::StoredJob& job, WaitReason reason, const WhyFacts& facts) {
  const JobSpec& spec = job.spec;
  switch (reason) {
    case WaitReason::kNone: return "";
    case WaitReason::kHeld:
      return (facts.is_suspended ? "suspended until `gpumux resume " : "held until `gpumux release ") + label_of(spec) +
             "`";
    case WaitReason::kPaused: return facts.is_paused ? "the queue is paused" : "the daemon is starting";
    case WaitReason::kDependency: {
      const std::string jobs = list_of(facts.jobs, text_of);
      return "waits for " + (jobs.empty() ? "another user's job" : jobs);
    }
    case WaitReason::kBegin: return "begins at " + local_time(job.begin_at);
    case WaitReason::kPriority: return waits_for_others(facts);
    case WaitReason::kGpuMemory:
      if (const auto* room = std::get_if<WaitsForRoom>(&facts.obstacle)) return waits_for_room(*room, facts);
      return std::holds_alternative<WaitsForOthers>(facts.obstacle) ? waits_for_others(facts) : "starts in a moment";
    case WaitReason::kUserLimit:
    case WaitReason::kArrayLimit:
      if (const auto* limit = std::get_if<WaitsForLimit>(&facts.obstacle)) return waits_for_limit(*limit, spec, facts);
      return "limit reached";
    case WaitReason::kDrained:
      if (const auto* gpus = std::get_if<WaitsForGpus>(&facts.obstacle)) return waits_for_gpus(*gpus, spec, facts);
      return "its GPUs take no jobs now";
    case WaitReason::kRetry:
      if (const auto* moment = std::get_if<WaitsForMoment>(&facts.obstacle)) return retry_text(*moment, facts);
      return "could not be started";
  }
  return "";
}

namespace {

// "which failed"
std::string_view how_it_ended(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "which has ended";
    case Outcome::kFailed: return "which failed";
    case Outcome::kCancelled: return "which was cancelled";
    case Outcome::kTimedOut: return "which ran into its time limit";
    case Outcome::kLost: return "which was lost";
    case Outcome::kDependencyFailed: return "which could not start either";
    case Outcome::kNone: break;
  }
  return "which is not there";
}

// The element of an array that has not ended well. All of its elements are done.
base::Result<store::StoredJob> failed_element(const store::JobStore& store, store::StoredJob first) {
  if (first.core.outcome != Outcome::kOk) return first;
  store::Query query = query_of_array(first.spec.id);
  query.which = store::Query::Which::kDone;
  std::copy_if(kOutcomes.begin(), kOutcomes.end(), std::back_inserter(query.outcomes),
               [](Outcome outcome) { return outcome != Outcome::kOk; });
  query.at_most = 1;
  auto page = store.page(query);
  if (!page) return tl::unexpected(page.error());
  return page->jobs.empty() ? std::move(first) : std::move(page->jobs.front());
}

}  // namespace

std::string broken_text(const JobQueue& queue, const Record& record) {
  const JobId by = record.broken_by;
  NamedJob after{.label = std::to_string(by.value), .name = ""};
  std::optional<std::uint32_t> uid;
  Outcome outcome = Outcome::kNone;
  if (const JobQueue::Owner* const owner = queue.find(by)) {
    after = {.label = label_of(by, owner->array, owner->array_index), .name = owner->name};
    uid = owner->uid;
    outcome = owner->row.core.outcome;
  } else if (auto stored = queue.store()->find(by)) {
    if (stored->spec.array == by) stored = failed_element(*queue.store(), std::move(*stored));
    if (stored) {
      after = {.label = label_of(stored->spec), .name = stored->name};
      uid = stored->spec.uid;
      outcome = stored->core.outcome;
    }
  }
  const JobQueue::Owner* const dependent = queue.find(record.job);
  const bool is_own = dependent != nullptr && uid == dependent->uid;
  if (!is_own && queue.config().privacy != settings::Privacy::kOpen) after.name.clear();
  return "it was to come after " + text_of(after) + ", " + std::string(how_it_ended(outcome));
}

namespace {

struct Machine {
  GpuSet gpus;
  std::uint64_t largest = 0;
  std::uint32_t large_enough = 0;           // for the job
  std::optional<base::GpuIndex> too_small;  // that it names
};

Machine look_at(const JobCore& core, const JobSpec& spec) {
  Machine machine;
  for (std::uint32_t i = 0; const auto room = core.room(base::GpuIndex{i}); ++i) {
    if (!room->present) continue;
    const base::GpuIndex gpu{i};
    machine.gpus.insert(gpu);
    machine.largest = std::max(machine.largest, room->capacity);
    if (room->capacity >= spec.memory) {
      ++machine.large_enough;
    } else if (spec.gpus.contains(gpu) && !machine.too_small) {
      machine.too_small = gpu;
    }
  }
  return machine;
}

std::string too_much_memory(const JobSpec& spec, const Machine& machine, const JobCore& core) {
  const std::string asked = base::format_bytes(spec.memory) + " asked for on each ";
  if (machine.largest < spec.memory) return asked + "GPU, the largest here has " + base::format_bytes(machine.largest);
  if (!machine.too_small)
    return asked + "of " + std::to_string(spec.wanted_gpus()) + " GPUs, " + std::to_string(machine.large_enough) +
           (machine.large_enough == 1 ? " here has that much" : " here have that much");
  return asked + "GPU, GPU " + std::to_string(machine.too_small->value) + " has " +
         base::format_bytes(core.room(*machine.too_small)->capacity);
}

// Others may have passed a started job in order because of its shorter limit.
std::string too_long(const JobSpec& spec, const JobCore& core) {
  const auto has = core.request(spec.id);
  return "job " + label_of(spec) + " has started" +
         (has ? " with a time limit of " + base::format_time_limit(has->time_limit) : "") + ", " +
         (spec.time_limit == kNoLimit ? "none" : base::format_time_limit(spec.time_limit)) +
         " asked for: only an administrator makes it longer";
}

}  // namespace

base::Error describe(Refusal refusal, const JobSpec& spec, const UserLimits& limits, const JobCore& core) {
  const Machine machine = look_at(core, spec);
  switch (refusal) {
    case Refusal::kExists: return {Code::kInternal, 0, "a job with this id is there already"};
    case Refusal::kNoGpus: return {Code::kInvalid, 0, "a job needs at least one GPU"};
    case Refusal::kUnknownGpu: {
      GpuSet unknown;
      for (const base::GpuIndex gpu : spec.gpus) {
        if (!machine.gpus.contains(gpu)) unknown.insert(gpu);
      }
      return {Code::kInvalid, 0,
              gpus_text(unknown) + ": this machine has " + (machine.gpus.empty() ? "no GPU" : gpus_text(machine.gpus))};
    }
    case Refusal::kTooManyGpus:
      return {Code::kInvalid, 0,
              count_of(spec.wanted_gpus(), "GPU", "GPUs") + " asked for, this machine has " +
                  std::to_string(machine.gpus.size())};
    case Refusal::kTooMuchMemory: return {Code::kInvalid, 0, too_much_memory(spec, machine, core)};
    case Refusal::kQueueLimit:
      return {Code::kDenied, 0,
              "max_queued: " + std::to_string(limits.queued.value()) +
                  " of your jobs may wait, held and suspended ones too; wait, or cancel some"};
    case Refusal::kGpuLimit:
      return {Code::kInvalid, 0,
              "max_gpus: your running jobs may have " + count_of(limits.gpus.value(), "GPU", "GPUs") +
                  ", this one asks for " + std::to_string(spec.wanted_gpus())};
    case Refusal::kUnknownJob: return {Code::kInvalid, 0, "after: there is no such job"};
    case Refusal::kStarted:
      return {Code::kInvalid, 0,
              "job " + label_of(spec) + " has started: only its priority and its time limit can change"};
    case Refusal::kLonger: return {Code::kDenied, 0, too_long(spec, core)};
  }
  return {Code::kInternal, 0, "refused"};
}

}  // namespace gpumux::jobs

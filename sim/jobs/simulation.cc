// SPDX-License-Identifier: Apache-2.0
#include "sim/jobs/simulation.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "sim/jobs/book.h"

namespace gpumux::simjobs {
namespace {

using namespace jobs;  // the core's words
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kCapacity = 80 * kGiB;
constexpr Duration kMostWork = minutes(60);
constexpr Duration kMostDelay = seconds(20);  // between a command and its answer

constexpr Duration kAskedAgain = seconds(30);  // of a job that could not be suspended, as docs/jobs.md says

// An event that happens later.
struct Later {
  enum class Kind { kSubmit, kConfirm, kEnd, kSuspended, kResumed, kFault } kind = Kind::kSubmit;
  JobId job;
  std::uint32_t attempt = 0;
  std::uint64_t turn = 0;  // of the job: a message for an earlier one is void
  bool refused = false;
};

class Simulation {
 public:
  explicit Simulation(const Options& options) : options_(options), random_(options.seed) {}

  Outcome run() {
    set_up();
    while (outcome_.wrong.empty() && (!later_.empty() || core_->next_deadline())) {
      const std::optional<TimePoint> deadline = core_->next_deadline();
      if (later_.empty() || (deadline && *deadline <= later_.begin()->first)) {
        if (later_.empty() && book_.jobs.empty()) break;
        now_ = std::max(now_, *deadline);
        tell(TimePassed{});
        continue;
      }
      now_ = later_.begin()->first;
      const Later what = later_.begin()->second;
      later_.erase(later_.begin());
      happen(what);
    }
    if (outcome_.wrong.empty() && (!book_.jobs.empty() || core_->counts() != jobs::JobCounts{}))
      wrong("job " + std::to_string(book_.jobs.empty() ? 0 : book_.jobs.begin()->first.value) + " never ends");
    outcome_.time = now_ - TimePoint{};
    return std::move(outcome_);
  }

 private:
  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  bool chance(std::uint64_t in) { return pick(in) == 0; }
  Duration between(Duration least, Duration most) {
    return least + Duration(static_cast<std::int64_t>(pick(static_cast<std::uint64_t>((most - least).count()) + 1)));
  }
  void wrong(const std::string& what) {
    if (outcome_.wrong.empty())
      outcome_.wrong = "after " + std::to_string(outcome_.events) + " events, at " +
                       std::to_string((now_ - TimePoint{}).count()) + " ns: " + what;
  }
  void note(const std::string& line) {
    for (const char c : line) outcome_.log_hash = (outcome_.log_hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    if (options_.keep_log) outcome_.log += std::to_string((now_ - TimePoint{}).count()) + " " + line + "\n";
  }

  void set_up();
  void happen(const Later& what);
  void submit();
  JobSpec random_spec();
  void disturb();
  void restart();
  void change(JobId id);
  JobId any_job() {
    auto found = book_.jobs.lower_bound(JobId{1 + pick(last_id_ + 1)});
    return found == book_.jobs.end() ? kNoJob : found->first;
  }
  bool calm() const { return submitted_ >= options_.jobs; }

  void tell(const Event& event);
  void obey(const Command& command);
  void obey(const Record& c);
  void obey(const RecordRequest& c);
  void obey(const Start& c);
  void obey(const Suspend& c);
  void obey(const Resume& c);
  void obey(const Cancel& c);
  void check_backfill(JobId started, const std::optional<TimePoint>& before, JobId kept_for);
  void begin_to_run(BookedJob& job);
  void stop_running(BookedJob& job);
  void in(Duration delay, Later what) {
    what.turn = turns_[what.job];
    later_.emplace(now_ + delay, what);
  }

  Options options_;
  std::mt19937_64 random_;
  Outcome outcome_;
  TimePoint now_{seconds(1)};
  std::unique_ptr<JobCore> core_ = std::make_unique<JobCore>();
  Book book_;
  std::multimap<TimePoint, Later> later_;
  std::map<JobId, std::uint64_t> turns_;
  std::uint64_t happened_ = 0;  // submissions, starts, ends, faults, and resumptions that undo no suspension
  std::uint64_t submitted_ = 0, last_id_ = 0;
  std::uint32_t users_ = 1, backlog_ = 1;
  JobId array_;
  std::uint32_t array_left_ = 0, array_limit_ = 0;
};

void Simulation::set_up() {
  const std::uint32_t gpus = options_.gpus != 0 ? options_.gpus : static_cast<std::uint32_t>(1 + pick(8));
  users_ = options_.users != 0 ? options_.users : static_cast<std::uint32_t>(1 + pick(6));
  backlog_ = options_.backlog != 0 ? options_.backlog : static_cast<std::uint32_t>(1 + pick(40));
  QueueSettings& settings = book_.settings;
  settings.order = options_.plain || chance(2) ? Order::kFifo : Order::kFair;
  settings.half_life = between(minutes(1), minutes(600));
  if (!options_.plain) {
    settings.oversubscribe = chance(3) ? 1500 : 1000;
    settings.default_memory = chance(3) ? 20 * kGiB : 0;
    settings.max_time = chance(3) ? between(minutes(5), minutes(40)) : kNoLimit;
    settings.preempt = chance(3);
    if (chance(2)) settings.limits.priority_cap = 0;
  }
  tell(SettingsChanged{settings});
  for (std::uint32_t i = 0; i < gpus; ++i) {
    book_.gpus.emplace_back();
    book_.gpus.back().capacity = chance(4) && !options_.plain ? kCapacity / 2 : kCapacity;
    tell(GpuAdded{GpuIndex{i}, book_.gpus.back().capacity});
  }
  tell(SchedulingHeld{false});
  in(Duration(0), {Later::Kind::kSubmit, kNoJob, 0, 0, false});
  if (options_.faults) in(minutes(1), {Later::Kind::kFault, kNoJob, 0, 0, false});
}

JobSpec Simulation::random_spec() {
  JobSpec spec;
  spec.id = JobId{++last_id_};
  spec.uid = 1000 + static_cast<std::uint32_t>(pick(users_));
  const auto gpus = static_cast<std::uint32_t>(book_.gpus.size());
  spec.gpu_count = chance(3) ? static_cast<std::uint32_t>(1 + pick(gpus)) : 1;
  if (chance(4)) {
    for (std::uint32_t i = 0; i < gpus; ++i) {
      if (chance(2)) spec.gpus.insert(GpuIndex{i});
    }
  }
  if (chance(2)) spec.memory = (1 + pick(8)) * 5 * kGiB;
  spec.exclusive = chance(20);
  if (options_.plain || chance(2)) spec.time_limit = between(seconds(30), kMostWork);
  if (options_.plain) {
    spec.on_limit = OnLimit::kCancel;
    return spec;
  }
  spec.on_limit = chance(4) ? OnLimit::kCancel : OnLimit::kSuspend;
  spec.priority = chance(3) ? static_cast<std::int32_t>(pick(4)) - 1 : 0;
  spec.requeue = chance(2);
  spec.held = options_.faults && chance(40);  // released when nothing disturbs any more
  if (chance(8)) {
    if (const JobId on = any_job(); on != kNoJob)
      spec.after.push_back({on, false, chance(2) ? Dependency::Need::kOk : Dependency::Need::kAny, {}});
  }
  if (array_left_ > 0) {
    --array_left_;
    spec.array = array_;
    spec.array_limit = array_limit_;
  } else if (chance(20)) {
    array_ = spec.array = spec.id;
    array_left_ = static_cast<std::uint32_t>(pick(12));
    array_limit_ = spec.array_limit = static_cast<std::uint32_t>(pick(4));
  }
  return spec;
}

void Simulation::submit() {
  if (calm()) return;
  // About `backlog_` jobs wait: fewer are followed sooner.
  const std::uint64_t there = book_.jobs.size();
  in(there < backlog_ ? between(Duration(0), seconds(5)) : between(seconds(10), minutes(10)),
     {Later::Kind::kSubmit, kNoJob, 0, 0, false});
  const JobSpec spec = random_spec();
  if (const auto refused = core_->refusal(spec)) {
    ++outcome_.refusals;
    ++submitted_;  // so that there is an end
    tell(Submitted{spec});
    return;
  }
  ++submitted_;
  BookedJob job;
  job.spec = spec;
  job.submitted = now_;
  job.work = chance(10) ? kMostWork : between(milliseconds(1), minutes(15));
  job.fails = chance(5);
  if (options_.plain && !options_.faults) {
    // All that are there, one after the other, each as long as a job may last.
    job.patience = (kMostWork + 3 * kMostDelay) * static_cast<std::int64_t>(there + 1);
  }
  book_.jobs.emplace(spec.id, job);
  tell(Submitted{spec, chance(4)});
}

void Simulation::happen(const Later& what) {
  const bool is_move = what.kind == Later::Kind::kSuspended || what.kind == Later::Kind::kResumed;
  if (!is_move || what.refused) ++happened_;
  if (what.kind == Later::Kind::kSubmit) return submit();
  if (what.kind == Later::Kind::kFault) return disturb();
  const auto found = book_.jobs.find(what.job);
  if (found == book_.jobs.end() || what.turn != turns_[what.job]) return;
  BookedJob& job = found->second;
  switch (what.kind) {
    case Later::Kind::kConfirm:
      if (what.refused) {
        ++turns_[what.job];
        book_.remove(what.job);
        if (chance(3)) return tell(Ended{what.job, what.attempt, End::kFailed});
        return tell(StartFailed{what.job, what.attempt});
      }
      begin_to_run(job);
      tell(StartConfirmed{what.job, what.attempt});
      return;
    case Later::Kind::kEnd: {
      ++turns_[what.job];
      book_.remove(what.job);
      const End end = options_.faults && chance(30) ? End::kLost : job.fails ? End::kFailed : End::kOk;
      job.running = job.suspended = job.leaving = false;
      job.slice = Duration(0);
      tell(Ended{what.job, what.attempt, end});
      return;
    }
    case Later::Kind::kSuspended:
      if (what.refused) {
        job.refused_until = now_ + kAskedAgain;
        job.leaving = false;
        begin_to_run(job);
        tell(SuspendRefused{what.job, what.attempt});
        return;
      }
      book_.remove(what.job);
      job.suspended = true;
      job.leaving = false;
      if (job.time_is_over) job.slice = Duration(0);
      tell(Suspended{what.job, what.attempt});
      return;
    case Later::Kind::kResumed:
      begin_to_run(job);
      tell(Resumed{what.job, what.attempt});
      return;
    default: return;
  }
}

void Simulation::begin_to_run(BookedJob& job) {
  job.running = true;
  job.since = job.slice_since = now_;
  in(job.work, {Later::Kind::kEnd, job.spec.id, job.attempt, 0, false});
}

void Simulation::stop_running(BookedJob& job) {
  if (job.running) {
    job.work -= std::min(job.work, now_ - job.since);
    job.slice += now_ - job.slice_since;
  }
  job.running = false;
  ++turns_[job.spec.id];
}

// ---- what people, drivers and machines do --------------------------------------------------------

void Simulation::disturb() {
  if (calm()) {
    // Nothing is in the way any more.
    for (std::uint32_t i = 0; i < book_.gpus.size(); ++i) {
      BookedGpu& gpu = book_.gpus[i];
      gpu.foreign = 0;
      tell(ForeignUse{GpuIndex{i}, 0});
      gpu.drained = false;
      tell(GpuDrained{GpuIndex{i}, false});
      gpu.sick = false;
      tell(GpuHealth{GpuIndex{i}, false});
      gpu.present = true;
      tell(GpuAdded{GpuIndex{i}, gpu.capacity});
    }
    std::vector<JobId> all;
    for (const auto& [id, job] : book_.jobs) all.push_back(id);
    for (const JobId id : all) tell(ReleaseAsked{id});
    for (std::uint32_t user = 0; user < users_; ++user) tell(UserLimitsChanged{1000 + user, std::nullopt});
    return;
  }
  in(between(seconds(1), minutes(20)), {Later::Kind::kFault, kNoJob, 0, 0, false});
  const JobId job = any_job();
  const auto index = static_cast<std::uint32_t>(pick(book_.gpus.size()));
  BookedGpu& gpu = book_.gpus[index];
  switch (pick(13)) {
    case 0: return tell(CancelAsked{job});
    case 1: return tell(HoldAsked{job});
    case 2: return tell(ReleaseAsked{job});
    case 3:
      return options_.plain ? void() : tell(PriorityAsked{job, static_cast<std::int32_t>(pick(4)) - 1, chance(4)});
    case 4: gpu.foreign = chance(2) ? 0 : pick(gpu.capacity / 2); return tell(ForeignUse{GpuIndex{index}, gpu.foreign});
    case 5:
      if (chance(2)) {
        gpu.sick = !gpu.sick;
        return tell(GpuHealth{GpuIndex{index}, gpu.sick});
      }
      gpu.drained = !gpu.drained;
      return tell(GpuDrained{GpuIndex{index}, gpu.drained});
    case 6:
      gpu.present = !gpu.present;
      return gpu.present ? tell(GpuAdded{GpuIndex{index}, gpu.capacity}) : tell(GpuRemoved{GpuIndex{index}});
    case 7: {
      if (options_.plain) return;
      book_.settings.order = chance(2) ? Order::kFifo : Order::kFair;
      book_.settings.max_time = chance(2) ? between(minutes(5), minutes(40)) : kNoLimit;
      book_.settings.preempt = chance(2);
      return tell(SettingsChanged{book_.settings});
    }
    case 8: {
      UserLimits limits;
      limits.running = static_cast<std::uint32_t>(1 + pick(4));
      limits.gpus = static_cast<std::uint32_t>(1 + pick(8));
      limits.priority_cap = static_cast<std::int32_t>(pick(3)) - 1;
      const auto uid = 1000 + static_cast<std::uint32_t>(pick(users_));
      if (chance(2)) return tell(UserLimitsChanged{uid, limits});
      return tell(UserLimitsChanged{uid, std::nullopt});
    }
    case 9: return restart();
    default: return options_.plain ? void() : change(job);
  }
}

// Users change jobs by hand.
void Simulation::change(JobId id) {
  const auto found = book_.jobs.find(id);
  if (found == book_.jobs.end()) return;
  const BookedJob& job = found->second;
  if (chance(4)) return tell(SuspendAsked{id});
  if (chance(4)) return tell(RequeueAsked{id});
  jobs::Request request = job.spec.request();
  request.time_limit = chance(3) ? kNoLimit : between(minutes(1), minutes(60));
  if (!job.on_gpus && !job.suspended) {
    request.gpus = {};
    request.gpu_count = static_cast<std::uint32_t>(1 + pick(book_.gpus.size()));
    request.memory = chance(3) ? 0 : (1 + pick(60)) * kGiB;
  }
  tell(RequestAsked{id, request, chance(2)});
}

// The daemon is gone and comes back. It knows only what was recorded, and what the supervisors say.
void Simulation::restart() {
  ++outcome_.restarts;
  note("restart");
  const std::vector<UserUsage> usage = core_->usage(now_);
  core_ = std::make_unique<JobCore>();
  tell(SettingsChanged{book_.settings});
  for (std::uint32_t i = 0; i < book_.gpus.size(); ++i) {
    const BookedGpu& gpu = book_.gpus[i];
    tell(GpuAdded{GpuIndex{i}, gpu.capacity});
    tell(ForeignUse{GpuIndex{i}, gpu.foreign});
    if (gpu.drained) tell(GpuDrained{GpuIndex{i}});
    if (gpu.sick) tell(GpuHealth{GpuIndex{i}, true});
    if (!gpu.present) tell(GpuRemoved{GpuIndex{i}});
  }
  for (const UserUsage& one : usage) tell(UsageRestored{one.uid, one.gpu_microseconds});
  std::vector<JobId> all;
  for (const auto& [id, job] : book_.jobs) all.push_back(id);
  for (const JobId id : all) {
    BookedJob& job = book_.jobs.at(id);
    Restored restored{job.spec,        job.record.state, job.record.attempt,
                      job.record.gpus, job.record.ran,   job.record.outcome};
    restored.spec.order = job.record.order;
    restored.spec.priority = job.record.priority;
    restored.spec.capped = job.record.capped;
    restored.spec.held = job.record.held;
    for (Dependency& dependency : restored.spec.after) {
      if (!book_.jobs.contains(dependency.on)) dependency.fate = Dependency::Fate::kMet;
    }
    if (job.record.state == JobState::kSuspending) {
      // The question is lost, or it has been carried out.
      ++turns_[id];
      job.leaving = false;
      if (chance(2)) {
        begin_to_run(job);
      } else {
        book_.remove(id);
        job.suspended = true;
        restored.state = job.record.state = JobState::kSuspended;
      }
    } else if (job.record.state == JobState::kResuming) {
      ++turns_[id];
      if (chance(2)) {
        begin_to_run(job);
        restored.state = JobState::kRunning;
      } else {
        book_.remove(id);
        job.suspended = true;
      }
    }
    if (job.running && restored.state == JobState::kRunning) restored.ran = job.slice + (now_ - job.slice_since);
    job.refused_until = {};
    tell(restored);
  }
  tell(SchedulingHeld{false});
}

// ---- the core ------------------------------------------------------------------------------------

void Simulation::tell(const Event& event) {
  ++outcome_.events;
  if (options_.keep_log) note(to_string(event));
  std::vector<Command> commands;
  core_->apply(now_, event, commands);
  const Reservation kept = core_->reservation();
  outcome_.longest_queue = std::max<std::uint64_t>(outcome_.longest_queue, book_.jobs.size());
  for (const Command& command : commands) {
    note(to_string(command));
    const auto* const start = std::get_if<Start>(&command);
    const auto* const resume = std::get_if<Resume>(&command);
    const bool passes = (start != nullptr || resume != nullptr) && book_.settings.order == Order::kFifo &&
                        book_.jobs.contains(kept.job);
    std::optional<TimePoint> before;
    if (passes) before = book_.latest_start(book_.jobs.at(kept.job), now_);
    obey(command);
    if (passes) check_backfill(start != nullptr ? start->job : resume->job, before, kept.job);
    if (!outcome_.wrong.empty()) return;
  }
  const bool check = options_.check_every != 0 && outcome_.events % options_.check_every == 0;
  if (!check) return;
  if (const std::string broken = core_->check_invariants(); !broken.empty())
    wrong(broken + ", after " + to_string(event));
}

// A job that starts behind the one for which GPUs are kept does not move that one's latest start.
void Simulation::check_backfill(JobId started, const std::optional<TimePoint>& before, JobId kept_for) {
  const BookedJob& first = book_.jobs.at(kept_for);
  const BookedJob& second = book_.jobs.at(started);
  if (book_.goes_before(second, first)) return;
  ++outcome_.backfills;
  if (!before) return;
  const std::optional<TimePoint> after = book_.latest_start(first, now_);
  if (!after || *after > *before)
    wrong("job " + std::to_string(started.value) + " delays job " + std::to_string(kept_for.value));
}

void Simulation::obey(const Command& command) {
  std::visit([this](const auto& c) { obey(c); }, command);
}

void Simulation::obey(const Record& c) {
  const auto found = book_.jobs.find(c.job);
  if (found == book_.jobs.end()) return wrong("job " + std::to_string(c.job.value) + " is recorded and is not there");
  BookedJob& job = found->second;
  if (c.attempt < job.record.attempt) return wrong("job " + std::to_string(c.job.value) + " counts back");
  job.record = c;
  job.spec.held = c.held;
  if (c.state != JobState::kDone) return;
  if (job.on_gpus) return wrong("job " + std::to_string(c.job.value) + " is done and runs");
  if (c.outcome == jobs::Outcome::kNone) return wrong("job " + std::to_string(c.job.value) + " ends as nothing");
  turns_.erase(c.job);
  book_.jobs.erase(found);
}

void Simulation::obey(const RecordRequest& c) { book_.jobs.at(c.job).spec.ask(c.request); }

void Simulation::obey(const Start& c) {
  ++outcome_.starts;
  BookedJob& job = book_.jobs.at(c.job);
  if (c.attempt != job.attempt + 1) return wrong("job " + std::to_string(c.job.value) + " starts an attempt twice");
  if (job.record.state != JobState::kStarting || job.record.attempt != c.attempt)
    return wrong("job " + std::to_string(c.job.value) + " is started before that is recorded");
  job.attempt = c.attempt;
  const Duration waited = now_ - job.submitted;
  outcome_.longest_wait = std::max(outcome_.longest_wait, waited);
  if (!job.started && waited > job.patience)
    return wrong("job " + std::to_string(c.job.value) + " has waited too long");
  job.started = true;
  job.slice = Duration(0);
  if (const std::string broken = book_.put(c.job, c.gpus); !broken.empty()) return wrong(broken);
  const bool fails = options_.faults && chance(30);
  in(between(Duration(0), kMostDelay), {Later::Kind::kConfirm, c.job, c.attempt, 0, fails});
}

void Simulation::obey(const Suspend& c) {
  ++outcome_.suspensions;
  BookedJob& job = book_.jobs.at(c.job);
  if (!job.running) return wrong("job " + std::to_string(c.job.value) + " is to be suspended and does not run");
  stop_running(job);
  job.leaving = true;
  job.time_is_over = c.reason == SuspendReason::kTimeLimit;
  if (c.reason == SuspendReason::kPriority && std::exchange(job.made_way_at, happened_) == happened_)
    return wrong("job " + std::to_string(c.job.value) + " makes way twice, and nothing has happened");
  in(between(Duration(0), kMostDelay), {Later::Kind::kSuspended, c.job, c.attempt, 0, options_.faults && chance(6)});
}

void Simulation::obey(const Resume& c) {
  ++outcome_.resumes;
  BookedJob& job = book_.jobs.at(c.job);
  if (job.made_way_at != happened_) ++happened_;
  if (!job.suspended || c.attempt != job.attempt)
    return wrong("job " + std::to_string(c.job.value) + " is to be resumed and is not suspended");
  if (const std::string broken = book_.put(c.job, c.gpus); !broken.empty()) return wrong(broken);
  job.refused_until = {};
  in(between(Duration(0), kMostDelay), {Later::Kind::kResumed, c.job, c.attempt, 0, false});
}

void Simulation::obey(const Cancel& c) {
  BookedJob& job = book_.jobs.at(c.job);
  if (!job.on_gpus && !job.suspended)
    return wrong("job " + std::to_string(c.job.value) + " is to end and does not run");
  stop_running(job);
  job.leaving = true;
  in(between(Duration(0), kMostDelay), {Later::Kind::kEnd, c.job, c.attempt, 0, false});
}

}  // namespace

Outcome simulate(const Options& options) { return Simulation(options).run(); }

}  // namespace gpumux::simjobs

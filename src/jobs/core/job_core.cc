// SPDX-License-Identifier: Apache-2.0
// The core's outside, and the events that are not about one job.
#include "jobs/core/job_core.h"

#include "jobs/core/state.h"

namespace gpumux::jobs {

JobCore::JobCore() : state_(std::make_unique<State>()) {}

JobCore::~JobCore() = default;

std::optional<Refusal> JobCore::refusal(const JobSpec& spec) const { return state_->refusal(spec); }

std::optional<Refusal> JobCore::refusal(const RequestAsked& asked) const { return state_->refusal(asked); }

std::optional<Request> JobCore::request(JobId id) const {
  const Job* const job = state_->find(id);
  return job == nullptr ? std::nullopt : std::optional(job->spec.request());
}

void JobCore::apply(TimePoint now, const Event& event, std::vector<Command>& commands) {
  State& state = *state_;
  const bool is_first = state.common.now == TimePoint{};
  state.common.now = std::max(now, state.common.now);
  if (is_first) state.users.begin_shares();
  state.common.commands = &commands;
  std::visit([&](const auto& e) { state.on(e); }, event);
  if (state.common.dirty && !state.common.held) state.planner.look_through();
  state.common.dirty = false;
  state.common.commands = nullptr;
}

std::optional<TimePoint> JobCore::next_deadline() const { return state_->runs.next_deadline(); }

std::optional<JobStanding> JobCore::standing(JobId id) const {
  const Job* const job = state_->find(id);
  if (job == nullptr) return std::nullopt;
  JobStanding standing;
  standing.state = job->state();
  standing.reason = state_->reason_of(*job);
  standing.place = state_->waiting.place_of(*job);
  standing.priority = job->spec.priority;
  standing.capped = job->spec.capped;
  standing.attempt = job->attempt;
  standing.gpus = job->gpus;
  if (const TimePoint at = state_->runs.limit_at(*job); at != TimePoint::max()) standing.limit_at = at;
  standing.suspend_refused = job->suspend_refused();
  return standing;
}

std::vector<UserUsage> JobCore::usage(TimePoint now) const {
  return state_->users.usage(std::max(now, state_->common.now));
}

std::optional<GpuRoom> JobCore::room(GpuIndex index) const {
  const Gpu* const gpu = state_->gpus.find(index);
  if (gpu == nullptr) return std::nullopt;
  GpuRoom room{gpu->capacity, gpu->promised, gpu->foreign, gpu->present, gpu->drained, gpu->sick, {}};
  for (const Job* const job : gpu->occupants) room.jobs.push_back(job->spec.id);
  return room;
}

std::map<JobId, TimePoint> JobCore::expected_starts() const {
  return state_->common.held ? std::map<JobId, TimePoint>() : state_->planner.expected_starts();
}

const Reservation& JobCore::reservation() const { return state_->gpus.reservation(); }

const JobCounts& JobCore::counts() const { return state_->runs.counts(); }

std::string JobCore::check_invariants() const { return state_->check(); }

// ---- GPUs, settings, limits ---------------------------------------------------------------------

namespace {

constexpr std::uint32_t kMaxOversubscribe = 100'000;  // a hundred times: no administrator means more
// With a year, sums of time stay below 2^63 (Shares::kRenewAfter). No time is charged more often than each second
// (kSettlePeriod).
constexpr Duration kMaxHalfLife = std::chrono::hours(24 * 365);
constexpr Duration kMinHalfLife = std::chrono::seconds(1);

void clamp(QueueSettings& settings) {
  settings.half_life = std::clamp(settings.half_life, kMinHalfLife, kMaxHalfLife);
  settings.oversubscribe = std::clamp(settings.oversubscribe, 1000u, kMaxOversubscribe);
  settings.max_time = std::max(settings.max_time, kNoLimit);
}

}  // namespace

void JobCore::State::on(const GpuAdded& e) {
  if (e.gpu.value >= base::kMaxGpus) return;
  gpus.add(e.gpu, e.capacity);
  waiting.unpark_gpus();
}

void JobCore::State::on(const GpuRemoved& e) {
  Gpu* const gpu = gpus.find(e.gpu);
  if (gpu == nullptr) return;
  gpu->present = false;
  gpus.survey();
  common.dirty = true;
}

void JobCore::State::on(const GpuDrained& e) { close_gpu(e.gpu, &Gpu::drained, e.is_drained); }

void JobCore::State::on(const GpuHealth& e) { close_gpu(e.gpu, &Gpu::sick, e.is_sick); }

void JobCore::State::close_gpu(GpuIndex index, bool Gpu::*why, bool is_closed) {
  Gpu* const gpu = gpus.find(index);
  if (gpu == nullptr || gpu->*why == is_closed) return;
  gpu->*why = is_closed;
  gpus.survey();
  if (!is_closed) waiting.unpark_gpus();
  common.dirty = true;
}

void JobCore::State::on(const ForeignUse& e) {
  Gpu* const gpu = gpus.find(e.gpu);
  if (gpu == nullptr || gpu->foreign == e.bytes) return;
  // More of it makes room for no job, and the reserved job waits all the same.
  common.dirty |= e.bytes < gpu->foreign;
  gpu->foreign = std::min(e.bytes, kMaxCapacity);
}

void JobCore::State::on(const SettingsChanged& e) {
  const QueueSettings before = common.settings;
  common.settings = e.settings;
  clamp(common.settings);
  if (common.settings.half_life != before.half_life) users.change_half_life();
  if (common.settings.order != before.order) waiting.drop_floors();
  waiting.rebuild_ranks();
  if (common.settings.max_time != before.max_time) runs.limits_changed();
  waiting.unpark_gpus();
}

void JobCore::State::on(const UserLimitsChanged& e) {
  users.of(e.uid).limits = e.limits;
  waiting.unpark_gpus();
}

void JobCore::State::on(const SchedulingHeld& e) {
  common.held = e.is_held;
  common.dirty |= !common.held;
}

void JobCore::State::on(const UsageRestored& e) {
  User& user = users.of(e.uid);
  users.restore(user, e.gpu_microseconds);
  waiting.rank(user);
}

void JobCore::State::on(const TimePassed&) { runs.pass_time(); }

}  // namespace gpumux::jobs

// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/trials.h"

#include <string_view>

#include "base/deadline.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

using base::GpuIndex;

constexpr std::string_view kFits = "their memory fits together";

}  // namespace

void Trials::measured(base::SeatId seat, std::uint32_t question, std::uint64_t submissions) {
  if (seat.gpu.value >= gpus_.size()) return;
  OfGpu& gpu = gpus_[seat.gpu.value];
  if (gpu.gain.told(seat, question, submissions)) gpu.has_answer = true;
}

bool Trials::look() {
  gpus_.resize(leases_.gpus().size());
  const auto planned = leases_.take_planned();
  const base::TimePoint now = leases_.now();
  bool any_changed = false;
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    OfGpu& gpu = gpus_[i];
    const bool has_answer = std::exchange(gpu.has_answer, false);
    if (planned[i] || has_answer || base::is_due(gpu.gain.look_again(), now)) any_changed = choose({i}) || any_changed;
  }
  return any_changed;
}

bool Trials::choose(GpuIndex index) {
  Gain& gain = gpus_[index.value].gain;
  const GpuSettings& set = leases_.gpus()[index.value].settings;
  const auto quantum = leases_.machine().leases().quantum(index);
  leases_.machine().leases().uses(leases_.now(), index, situation_.seats);
  situation_.is_open = leases_.machine().is_open(index) && set.auto_by_gain && situation_.seats.size() > 1;
  situation_.turn = settings::kUnlimited;
  if (!quantum.is_unlimited() && !set.in_flight.is_unlimited())
    situation_.turn = quantum.value() + set.in_flight.value();
  const sched::Way before = gain.way();
  const sched::Way way = gain.choose(leases_.now(), situation_);
  if (gain.way() != before && situation_.is_open) {
    const auto& finding = gain.finding();
    server::log_info(gain.way() == sched::Way::kByTurns ? "the programs on a GPU get more done by turns"
                                                        : "the programs on a GPU run at once again",
                     {{"gpu", index.value}, {"why", finding ? finding->why : std::string("one at most has work")}});
  }
  if (const auto question = gain.take_question()) {
    for (const sched::SeatUse& use : situation_.seats) {
      if (ask_) ask_(use.seat, *question);
    }
  }
  if (leases_.machine().way(index) == way) return false;
  leases_.apply(node::WayChosen{index, way});
  return true;
}

std::optional<base::TimePoint> Trials::next_deadline() const {
  std::optional<base::TimePoint> next;
  for (const OfGpu& gpu : gpus_) next = base::earliest(next, gpu.gain.look_again());
  return next;
}

std::string Trials::why(GpuIndex index) const {
  const std::string reason = reason_for(index);
  if (reason.empty()) return {};
  // The consequence is the mode in force, whatever the reason: during a trial the mode is the other one for a moment.
  return reason + (leases_.machine().mode(index) == sched::Mode::kSerial ? ": they take turns" : ": they run at once");
}

std::string Trials::reason_for(GpuIndex index) const {
  const GpuSettings& set = leases_.gpus()[index.value].settings;
  if (set.mode != settings::Mode::kAuto) return {};
  switch (leases_.machine().mode_reason(index)) {
    case sched::MemoryMode::Reason::kSetting:
    case sched::MemoryMode::Reason::kNotKnown: return {};
    case sched::MemoryMode::Reason::kStanding:
      return "its programs differ in priority, share or cap, or end their turns themselves";
    case sched::MemoryMode::Reason::kLeftToDriver:
      return "a program does not report its memory, so it is not known whether all fits";
    case sched::MemoryMode::Reason::kTooMuch: return "their memory does not fit together";
    case sched::MemoryMode::Reason::kFits: break;
  }
  if (!set.auto_by_gain || index.value >= gpus_.size()) return std::string(kFits);
  const Gain& gain = gpus_[index.value].gain;
  if (gain.is_trying())
    return std::string(kFits) + (gain.way() == sched::Way::kAtOnce ? ", and turns are tried for a moment"
                                                                   : ", and at once is tried for a moment");
  if (gain.finding()) return gain.finding()->why;
  return std::string(kFits) + ", and it is not known yet whether turns give more";
}

std::optional<Gain::Finding> Trials::finding(GpuIndex index) const {
  return index.value < gpus_.size() ? gpus_[index.value].gain.finding() : std::nullopt;
}

}  // namespace gpumux::daemon

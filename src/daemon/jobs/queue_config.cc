// SPDX-License-Identifier: Apache-2.0
#include "daemon/jobs/queue_config.h"

#include <algorithm>
#include <array>

#include "base/standing.h"
#include "base/units.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;
using base::Duration;
using sched::jobs::Order;

// The error is completed by set_queue_key, which knows the key's name and what is allowed.
base::Status bad() { return base::fail(base::Code::kInvalid, ""); }

bool ends_in_unit(std::string_view text) { return !text.empty() && (text.back() < '0' || text.back() > '9'); }

base::Status read_time(Duration& target, std::string_view text, Duration minimum, Duration maximum) {
  const auto parsed = ends_in_unit(text) ? base::parse_duration(text, 1ns) : base::fail(base::Code::kInvalid, "");
  if (!parsed || *parsed < minimum || *parsed > maximum) return bad();
  target = *parsed;
  return {};
}

base::Status read_limit(std::uint32_t& target, std::string_view text) {
  if (text == "unlimited") {
    target = sched::jobs::kUnlimitedCount;
    return {};
  }
  const auto parsed = base::parse_integer(text, 0, sched::jobs::kUnlimitedCount - 1);
  if (!parsed) return bad();
  target = static_cast<std::uint32_t>(*parsed);
  return {};
}

// 0: unlimited.
base::Status parse_max_bytes(QueueConfig& c, std::string_view text) {
  if (text == "unlimited") {
    c.max_bytes = 0;
    return {};
  }
  const auto parsed = ends_in_unit(text) ? base::parse_bytes(text, 1) : base::fail(base::Code::kInvalid, "");
  if (!parsed || *parsed == 0) return bad();
  c.max_bytes = *parsed;
  return {};
}

base::Status parse_max_history(QueueConfig& c, std::string_view text) {
  const auto parsed = text == "unlimited" ? base::Result<std::uint64_t>(0) : base::parse_integer(text, 1, INT64_MAX);
  if (!parsed) return bad();
  c.max_history = *parsed;
  return {};
}

base::Status parse_order(QueueConfig& c, std::string_view text) {
  if (text != "fair" && text != "fifo") return bad();
  c.core.order = text == "fair" ? Order::kFair : Order::kFifo;
  return {};
}

// "1.5": three digits behind the point, as all parts are counted in thousandths.
base::Status parse_oversubscribe(QueueConfig& c, std::string_view text) {
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string fraction(text.substr(std::min(point + 1, text.size())));
  if (fraction.size() > 3 || (point < text.size() && fraction.empty())) return bad();
  fraction.resize(3, '0');
  const auto whole = base::parse_integer(text.substr(0, point), 1, 100);
  const auto thousandths = base::parse_integer(fraction, 0, 999);
  if (!whole || !thousandths) return bad();
  c.core.oversubscribe = static_cast<std::uint32_t>(*whole * 1000 + *thousandths);
  return {};
}

base::Status parse_default_memory(QueueConfig& c, std::string_view text) {
  if (text == "whole") {
    c.core.default_memory = 0;
    return {};
  }
  const auto parsed = ends_in_unit(text) ? base::parse_bytes(text, 1) : base::fail(base::Code::kInvalid, "");
  if (!parsed || *parsed == 0) return bad();
  c.core.default_memory = *parsed;
  return {};
}

base::Status parse_max_time(QueueConfig& c, std::string_view text) {
  if (text == "unlimited") {
    c.core.max_time = sched::jobs::kNoLimit;
    return {};
  }
  return read_time(c.core.max_time, text, 1s, 24h * 365);
}

base::Status parse_preempt(QueueConfig& c, std::string_view text) {
  if (text != "true" && text != "false") return bad();
  c.core.preempt = text == "true";
  return {};
}

base::Status parse_privacy(QueueConfig& c, std::string_view text) {
  for (const JobPrivacy privacy : {JobPrivacy::kOpen, JobPrivacy::kLimited, JobPrivacy::kOwn}) {
    if (text != to_string(privacy)) continue;
    c.privacy = privacy;
    return {};
  }
  return bad();
}

base::Status parse_priority_cap(QueueConfig& c, std::string_view text) {
  if (text == "unlimited") {
    c.core.limits.priority_cap = sched::jobs::kNoPriorityCap;
    return {};
  }
  const auto parsed = base::parse_priority(text);
  if (!parsed) return bad();
  c.core.limits.priority_cap = *parsed;
  return {};
}

constexpr std::string_view kCount = "a number, or unlimited";

constexpr std::array<QueueKey, 16> kKeys{{
    {"order", "GPUMUX_QUEUE_ORDER", "fair or fifo",
     "Among jobs of one priority: users in turn, whoever has had the least GPU time lately first; or first come.",
     parse_order},
    {"half_life", "GPUMUX_QUEUE_HALF_LIFE", "a time from 1m to 8760h", "GPU time so long ago counts half (fair).",
     [](QueueConfig& c, std::string_view text) { return read_time(c.core.half_life, text, 1min, 24h * 365); }},
    {"default_mem", "GPUMUX_QUEUE_DEFAULT_MEM", "a number of bytes with a unit, such as 20G, or whole",
     "GPU memory, on each GPU, of a job that does not say how much it needs; whole: all of it.", parse_default_memory},
    {"oversubscribe", "GPUMUX_QUEUE_OVERSUBSCRIBE", "a number from 1 to 100, such as 1.5",
     "How much of a GPU's memory may be promised to running jobs: above 1 they page in turns.", parse_oversubscribe},
    {"max_job_time", "GPUMUX_QUEUE_MAX_JOB_TIME", "a time from 1s to 8760h, or unlimited",
     "A time limit for every job; the smaller of this and its own counts.", parse_max_time},
    {"preempt", "GPUMUX_QUEUE_PREEMPT", "true or false",
     "Whether a higher priority suspends running jobs of lower ones.", parse_preempt},
    {"privacy", "GPUMUX_QUEUE_PRIVACY", "open, limited or own",
     "What users see of others' jobs: names and times; only whose, where and when; nothing.", parse_privacy},
    {"max_running", "GPUMUX_QUEUE_MAX_RUNNING", kCount, "Running jobs of one user, at most.",
     [](QueueConfig& c, std::string_view text) { return read_limit(c.core.limits.running, text); }},
    {"max_queued", "GPUMUX_QUEUE_MAX_QUEUED", kCount, "Waiting jobs of one user, suspended and held ones too, at most.",
     [](QueueConfig& c, std::string_view text) { return read_limit(c.core.limits.queued, text); }},
    {"max_bytes", "GPUMUX_QUEUE_MAX_BYTES", "a number of bytes with a unit, such as 256M, or unlimited",
     "Arguments, environments and dependencies of one user's jobs that are not done, at most.", parse_max_bytes},
    {"max_gpus", "GPUMUX_QUEUE_MAX_GPUS", kCount, "GPUs of all running jobs of one user, at most.",
     [](QueueConfig& c, std::string_view text) { return read_limit(c.core.limits.gpus, text); }},
    {"priority_cap", "GPUMUX_QUEUE_PRIORITY_CAP", "a priority from -1000 to 1000, or unlimited",
     "Against other users' jobs a higher priority counts as this; that of who may change settings counts in full.",
     parse_priority_cap},
    {"cancel_grace", "GPUMUX_QUEUE_CANCEL_GRACE", "a time from 0s to 1h", "From TERM to KILL when a job is cancelled.",
     [](QueueConfig& c, std::string_view text) { return read_time(c.cancel_grace, text, 0s, 1h); }},
    {"suspend_patience", "GPUMUX_QUEUE_SUSPEND_PATIENCE", "a time from 1s to 1h",
     "A job whose work does not drain, or whose memory does not leave its GPUs within this, runs on.",
     [](QueueConfig& c, std::string_view text) { return read_time(c.suspend_patience, text, 1s, 1h); }},
    {"history", "GPUMUX_QUEUE_HISTORY", "a time from 1m to 87600h", "How long jobs that are done are remembered.",
     [](QueueConfig& c, std::string_view text) { return read_time(c.history, text, 1min, 24h * 3650); }},
    {"max_history", "GPUMUX_QUEUE_MAX_HISTORY", kCount,
     "Jobs of one user that are done and remembered, at most; the oldest go first.", parse_max_history},
}};

}  // namespace

std::span<const QueueKey> queue_keys() { return kKeys; }

base::Status set_queue_key(QueueConfig& config, std::string_view name, std::string_view text) {
  std::string known;
  for (const QueueKey& key : kKeys) {
    if (key.name == name) {
      if (key.parse(config, text)) return {};
      return base::fail(base::Code::kInvalid, std::string(name) + " cannot be '" + std::string(text.substr(0, 64)) +
                                                  "': it must be " + std::string(key.allowed));
    }
    known += (known.empty() ? "" : ", ") + std::string(key.name);
  }
  return base::fail(base::Code::kInvalid, "there is no setting '" + std::string(name.substr(0, 64)) +
                                              "' of the queue (there are " + known + ")");
}

std::string_view to_string(JobPrivacy privacy) {
  switch (privacy) {
    case JobPrivacy::kOpen: return "open";
    case JobPrivacy::kLimited: return "limited";
    case JobPrivacy::kOwn: return "own";
  }
  return "";
}

}  // namespace gpumux::daemon

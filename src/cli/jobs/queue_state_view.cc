// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/queue_state_view.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "base/units.h"
#include "cli/frame/table.h"
#include "cli/jobs/job_texts.h"
#include "cli/jobs/job_view.h"

namespace gpumux::cli {
namespace {

using api_client::QueueGpu;
using api_client::QueueState;
using api_client::QueueUser;
using api_client::UserLimits;

std::string name_of(const QueueUser& user) { return user.user.empty() ? std::to_string(user.uid) : user.user; }

std::string state_of(const QueueGpu& gpu) {
  return !gpu.present ? "not there" : gpu.drained ? "drained" : gpu.sick ? "sick" : "takes jobs";
}

// Calls `each` with the words of a limit and its member.
template <class Each>
void each_limit(Each each) {
  each("running", &UserLimits::running);
  each("queued", &UserLimits::queued);
  each("GPUs", &UserLimits::gpus);
  each("priority up to", &UserLimits::priority_cap);
}

void add(std::string& list, const std::string& text) { list += (list.empty() ? "" : ", ") + text; }

std::string limits_text(const UserLimits& limits) {
  std::string text;
  each_limit([&](const char* name, auto limit) {
    if (limits.*limit) add(text, std::string(name) + " " + std::to_string(*(limits.*limit)));
  });
  return text.empty() ? "none" : text;
}

template <class Number>
std::string limit_or_none(const std::optional<Number>& limit) {
  return limit ? std::to_string(*limit) : "unlimited";
}

// A user's own limits before and now (none: those of all users), and all users' limits.
std::string limits_change(const std::optional<UserLimits>& before, const std::optional<UserLimits>& now,
                          const UserLimits& of_all) {
  std::string text;
  if (before.has_value() != now.has_value())
    add(text, now ? "those of all users -> own ones" : "own ones -> those of all users");
  each_limit([&](const char* name, auto limit) {
    const std::string was = limit_or_none(before.value_or(of_all).*limit);
    const std::string is = limit_or_none(now.value_or(of_all).*limit);
    if (was != is) add(text, std::string(name) + " " + was + " -> " + is);
  });
  return text;
}

}  // namespace

std::vector<std::string> queue_state_lines(const QueueState& queue, const Output& output) {
  std::vector<std::string> lines;
  const auto say = [&](const std::string& text) {
    for (std::string& line : wrap(printable(text), output.columns, 2)) lines.push_back(std::move(line));
  };
  const api_client::QueueSettings& settings = queue.settings;
  std::string text = "order " + settings.order;
  if (settings.order == "fair" && settings.half_life > base::Duration::zero())
    text += " (half-life " + base::format_duration(settings.half_life) + ")";
  char oversubscribe[32];
  std::snprintf(oversubscribe, sizeof oversubscribe, "%g", settings.oversubscribe);
  text += std::string(", oversubscribe ") + oversubscribe + ", default memory " +
          (settings.default_memory_bytes == 0 ? "the whole GPU" : base::format_bytes(settings.default_memory_bytes)) +
          ", longest time " +
          (settings.max_job_time > base::Duration::zero() && settings.max_job_time != base::Duration::max()
               ? base::format_time_limit(settings.max_job_time)
               : "unlimited") +
          (settings.preempt ? ", higher priorities suspend lower ones" : "") + ", privacy " + settings.privacy;
  say(text);
  say("limits of each user: " + limits_text(settings.limits));
  for (const api_client::QueueUser& user : queue.users) {
    if (user.limits) say("limits of " + name_of(user) + ": " + limits_text(*user.limits));
  }
  std::string counts;
  for (const auto& [state, count] : queue.jobs)
    counts += (counts.empty() ? "" : ", ") + std::to_string(count) + " " + printable(state);
  if (!counts.empty()) say("jobs: " + counts);
  for (std::string& line : queue_remarks(queue, output)) lines.push_back(std::move(line));
  if (!queue.gpus.empty()) {
    lines.emplace_back();
    Table table({{.title = "GPU"},
                 {.title = "STATE"},
                 {.title = "CAPACITY", .align = Align::kRight},
                 {.title = "PROMISED", .align = Align::kRight},
                 {.title = "OUTSIDE JOBS", .align = Align::kRight, .leave_out = 1}});
    for (const api_client::QueueGpu& gpu : queue.gpus) {
      table.add_row({{std::to_string(gpu.index)},
                     {state_of(gpu), gpu.present && !gpu.drained && !gpu.sick ? Colour::kGreen : Colour::kYellow},
                     {base::format_bytes(gpu.capacity_bytes)},
                     {base::format_bytes(gpu.promised_bytes)},
                     {base::format_bytes(gpu.outside_jobs_bytes)}});
    }
    for (std::string& line : table.lines(output)) lines.push_back(std::move(line));
  }
  if (!queue.users.empty()) {
    lines.emplace_back();
    Table table({{.title = "USER", .minimum = 6},
                 {.title = "RUNNING", .align = Align::kRight},
                 {.title = "WAITING", .align = Align::kRight},
                 {.title = "GPUS", .align = Align::kRight},
                 {.title = "OCCUPIED", .align = Align::kRight, .leave_out = 1}});
    for (const api_client::QueueUser& user : queue.users) {
      table.add_row({{name_of(user)},
                     {std::to_string(user.running)},
                     {std::to_string(user.queued)},
                     {std::to_string(user.gpus)},
                     {time_text(user.used_gpu)}});
    }
    for (std::string& line : table.lines(output)) lines.push_back(std::move(line));
  }
  return lines;
}

std::map<std::uint32_t, std::string> jobs_of_gpus(const QueueState& queue) {
  // A guess: more names are not read, and a line has to end.
  constexpr std::size_t kMostNamed = 8;
  std::map<std::uint32_t, std::string> texts;
  for (const QueueGpu& gpu : queue.gpus) {
    std::string text;
    for (std::size_t i = 0; i < std::min(gpu.jobs.size(), kMostNamed); ++i) {
      const api_client::QueueGpuJob& job = gpu.jobs[i];
      add(text, std::to_string(job.id) + (job.name.empty() ? "" : " (" + job.name + ")") +
                    (job.user.empty() ? "" : " of " + job.user));
    }
    if (gpu.jobs.size() > kMostNamed) text += " and " + std::to_string(gpu.jobs.size() - kMostNamed) + " more";
    if (!text.empty()) text.insert(0, gpu.jobs.size() == 1 ? "job: " : "jobs: ");
    const bool is_kept = queue.reserved && std::find(queue.reserved->gpus.begin(), queue.reserved->gpus.end(),
                                                     gpu.index) != queue.reserved->gpus.end();
    if (is_kept) text += (text.empty() ? "" : "; ") + ("kept for job " + std::to_string(queue.reserved->job));
    if (!text.empty()) texts[gpu.index] = text;
  }
  return texts;
}

std::vector<std::string> queue_change_lines(const QueueState& before, const QueueState& now) {
  std::vector<std::string> lines;
  const auto queue = [](bool paused) { return std::string(paused ? "paused" : "starts jobs"); };
  if (before.paused != now.paused) lines.push_back("queue: " + queue(before.paused) + " -> " + queue(now.paused));
  std::map<std::uint32_t, std::string> gpus;
  for (const QueueGpu& gpu : before.gpus) gpus[gpu.index] = state_of(gpu);
  for (const QueueGpu& gpu : now.gpus) {
    const std::string& was = gpus[gpu.index];
    if (was != state_of(gpu)) lines.push_back("GPU " + std::to_string(gpu.index) + ": " + was + " -> " + state_of(gpu));
  }
  // A user without jobs and without own limits is in no list.
  std::map<std::uint32_t, std::pair<const QueueUser*, const QueueUser*>> users;
  for (const QueueUser& user : before.users) users[user.uid].first = &user;
  for (const QueueUser& user : now.users) users[user.uid].second = &user;
  for (const auto& [uid, user] : users) {
    const auto own = [](const QueueUser* of) { return of != nullptr ? of->limits : std::nullopt; };
    const std::string change = limits_change(own(user.first), own(user.second), now.settings.limits);
    const QueueUser& known = user.second != nullptr ? *user.second : *user.first;
    if (!change.empty()) lines.push_back("limits of " + printable(name_of(known)) + ": " + change);
  }
  if (lines.empty()) lines.emplace_back("nothing has changed: it was so before");
  return lines;
}

}  // namespace gpumux::cli

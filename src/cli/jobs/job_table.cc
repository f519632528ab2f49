// SPDX-License-Identifier: Apache-2.0
// The queue and the history as tables.
#include <algorithm>
#include <set>
#include <tuple>

#include "cli/frame/table.h"
#include "cli/jobs/job_groups.h"
#include "cli/jobs/job_texts.h"
#include "cli/jobs/job_view.h"

namespace gpumux::cli {
namespace {

using api_client::Job;
using api_client::QueueState;

// A command that is cut to less says nothing.
constexpr std::size_t kShortestCommand = 16;

int rank_of(const Job& job) {
  if (job.state == "queued") return job.place ? 2 : 3;
  if (job.state == "held") return 4;
  if (job.state == "suspended") return 1;
  return job.is_done() ? 5 : 0;
}

// Of all of them, in order.
std::string gpus_of(const JobGroup& group) {
  std::set<std::uint32_t> gpus;
  for (const Job& job : group) gpus.insert(job.gpus.begin(), job.gpus.end());
  if (group.size() == 1 || gpus.empty()) return gpus_text(group.front());
  return joined(std::vector<std::uint32_t>(gpus.begin(), gpus.end()));
}

// Of the first that waits, or else of the first that has any.
std::string reason_of(const JobGroup& group) {
  std::string reason;
  for (const Job& job : group) {
    const std::string own = job_reason(job);
    if (job.waits() && !own.empty()) return own;
    if (reason.empty()) reason = own;
  }
  return reason;
}

struct QueueRow {
  std::string label, name, user, state;
  Colour colour = Colour::kNone;
  std::string place, start, priority, gpus, memory, time, limit, command, why;
};

QueueRow queue_row(const JobGroup& group, std::int64_t now) {
  const Job& first = group.front();
  const bool is_one = group.size() == 1;
  QueueRow row;
  row.label = group_label(group);
  row.name = first.name;
  row.user = first.user;
  row.state = is_one ? state_text(first) : counts_text(group);
  row.colour = colour_of(first);
  base::Duration longest = elapsed(first, now);
  for (const Job& job : group) {
    if (row.place.empty() && job.place) row.place = "#" + std::to_string(*job.place);
    if (row.start.empty()) row.start = start_text(job);
    if (!job.waits() && !job.is_done()) longest = std::max(longest, elapsed(job, now));
  }
  if (first.priority != 0 && !first.is_done()) row.priority = std::to_string(first.priority);
  row.gpus = gpus_of(group);
  row.memory = memory_text(first);
  row.time = time_text(longest);
  row.limit = is_one && first.limit_in ? time_left(first) : limit_text(first);
  row.command = first.command;
  row.why = reason_of(group);
  return row;
}

std::vector<std::string> table_of(const std::vector<QueueRow>& rows, const Output& output) {
  Table table({{.title = "ID"},
               {.title = "NAME", .leave_out = 1, .minimum = 8, .hide_if_empty = true},
               {.title = "USER", .leave_out = 5, .minimum = 6},
               {.title = "STATE"},
               {.title = "PLACE", .align = Align::kRight, .leave_out = 2, .hide_if_empty = true},
               {.title = "STARTS", .leave_out = 4, .hide_if_empty = true},
               {.title = "PRIO", .align = Align::kRight, .leave_out = 6, .hide_if_empty = true},
               {.title = "GPUS", .leave_out = 3, .minimum = 6},
               {.title = "MEM", .align = Align::kRight, .leave_out = 8},
               {.title = "TIME", .align = Align::kRight, .leave_out = 7},
               {.title = "LIMIT", .align = Align::kRight, .leave_out = 9, .hide_if_empty = true},
               {.title = "COMMAND", .leave_out = 10, .minimum = kShortestCommand, .hide_if_empty = true},
               {.title = "WHY", .hide_if_empty = true, .below = true}});
  for (const QueueRow& row : rows) {
    table.add_row({{row.label},
                   {row.name},
                   {row.user},
                   {row.state, row.colour},
                   {row.place},
                   {row.start},
                   {row.priority},
                   {row.gpus},
                   {row.memory},
                   {row.time},
                   {row.limit},
                   {row.command},
                   {row.why}});
  }
  return table.lines(output);
}

std::string exits_of(const JobGroup& group) {
  // A guess: more statuses make the column wider than they are worth.
  constexpr std::size_t kMostShown = 3;
  std::set<std::int32_t> statuses;
  for (const Job& job : group) {
    if (job.exit_status) statuses.insert(*job.exit_status);
  }
  if (statuses.size() > kMostShown)
    return joined(std::vector<std::int32_t>(statuses.begin(), std::next(statuses.begin(), kMostShown))) + ",...";
  return statuses.empty() ? "-" : joined(std::vector<std::int32_t>(statuses.begin(), statuses.end()));
}

// From the first start to the last end; "-": none has started.
std::string time_of(const JobGroup& group, std::int64_t now) {
  Job whole = group.front();
  for (const Job& job : group) {
    if (job.started_unix_ns > 0 && (whole.started_unix_ns <= 0 || job.started_unix_ns < whole.started_unix_ns))
      whole.started_unix_ns = job.started_unix_ns;
    whole.ended_unix_ns = std::max(whole.ended_unix_ns, job.ended_unix_ns);
  }
  return whole.started_unix_ns > 0 ? time_text(elapsed(whole, now)) : "-";
}

}  // namespace

void sort_for_queue(std::vector<Job>& jobs) {
  const auto key = [](const Job& job) { return std::tuple(rank_of(job), job.place.value_or(0), job.id); };
  std::stable_sort(jobs.begin(), jobs.end(), [&](const Job& a, const Job& b) { return key(a) < key(b); });
}

std::vector<std::string> queue_lines(const std::vector<JobGroup>& groups, const std::optional<QueueState>& queue,
                                     std::int64_t now, const Output& output) {
  std::vector<std::string> lines;
  std::vector<Job> jobs;
  std::vector<QueueRow> rows;
  for (const JobGroup& group : groups) {
    jobs.insert(jobs.end(), group.begin(), group.end());
    rows.push_back(queue_row(group, now));
  }
  if (!rows.empty()) lines = table_of(rows, output);
  const std::string summary = jobs.empty() ? "No jobs." : summary_text(jobs);
  lines.push_back(paint(output, Colour::kDim, output.columns == 0 ? summary : fit(summary, output.columns)));
  if (queue) {
    for (std::string& line : queue_remarks(*queue, output)) lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> history_lines(const std::vector<JobGroup>& groups, std::int64_t now, const Output& output) {
  if (groups.empty()) return {"No job has ended yet."};
  Table table({{.title = "ID"},
               {.title = "NAME", .leave_out = 2, .minimum = 8, .hide_if_empty = true},
               {.title = "USER", .leave_out = 5, .minimum = 6},
               {.title = "OUTCOME"},
               {.title = "EXIT", .align = Align::kRight, .leave_out = 3},
               {.title = "ENDED", .leave_out = 6},
               {.title = "TIME", .align = Align::kRight, .leave_out = 4},
               {.title = "GPU TIME", .align = Align::kRight, .leave_out = 7, .hide_if_empty = true},
               {.title = "GPUS", .leave_out = 9, .minimum = 6, .hide_if_empty = true},
               {.title = "MEM", .align = Align::kRight, .leave_out = 10},
               {.title = "PEAK", .align = Align::kRight, .leave_out = 8, .hide_if_empty = true},
               {.title = "COMMAND", .leave_out = 11, .minimum = kShortestCommand, .hide_if_empty = true},
               {.title = "NOTE", .hide_if_empty = true, .below = true}});
  for (const JobGroup& group : groups) {
    const Job& first = group.front();
    const auto noted = std::find_if(group.begin(), group.end(), [](const Job& job) { return !job.note.empty(); });
    std::int64_t ended = 0;
    double gpu_seconds = 0;
    std::uint64_t peak = 0;
    for (const Job& job : group) {
      ended = std::max(ended, job.ended_unix_ns);
      gpu_seconds += job.gpu_seconds;
      peak = std::max(peak, job.peak_memory_bytes);
    }
    table.add_row({{group_label(group)},
                   {first.name},
                   {first.user},
                   {group.size() > 1        ? counts_text(group)
                    : first.outcome.empty() ? first.state
                                            : first.outcome,
                    colour_of(first)},
                   {exits_of(group)},
                   {date_text(ended)},
                   {time_of(group, now)},
                   {gpu_time_text(gpu_seconds)},
                   {gpus_of(group)},
                   {memory_text(first)},
                   {peak_text(peak)},
                   {first.command},
                   {noted != group.end() ? noted->note : ""}});
  }
  return table.lines(output);
}

}  // namespace gpumux::cli

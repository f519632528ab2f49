// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/job_view.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/shell_words.h"
#include "base/split.h"
#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/frame/table.h"
#include "cli/jobs/job_texts.h"
#include "os/wall_clock.h"

namespace gpumux::cli {
namespace {

using api_client::Job;
using api_client::QueueState;

std::string reservation_text(const api_client::Reservation& reserved) {
  std::string text = (reserved.gpus.size() == 1 ? "GPU " : "GPUs ") + joined(reserved.gpus) +
                     (reserved.gpus.size() == 1 ? " is" : " are") + " kept for job " + std::to_string(reserved.job);
  if (reserved.starts_in && *reserved.starts_in > base::Duration::zero())
    text += ", which starts in " + time_text(*reserved.starts_in) + " at the latest";
  return text;
}

// As docs/jobs.md has it. All that is shown of why others' jobs wait, where privacy is limited.
std::string words_of_reason(std::string reason) {
  std::replace(reason.begin(), reason.end(), '_', ' ');
  return reason.starts_with("gpu ") ? "GPU " + reason.substr(4) : reason;
}

std::string number_or_empty(std::uint64_t number) { return number == 0 ? "" : std::to_string(number); }
std::string seconds_of(base::Duration duration) { return std::to_string(duration.count() / 1'000'000'000); }
std::string seconds_of(std::int64_t unix_ns) { return unix_ns <= 0 ? "" : std::to_string(unix_ns / 1'000'000'000); }

constexpr std::array<JobField, 32> kFields{{
    {"id", [](const Job& job, std::int64_t) { return std::to_string(job.id); }},
    {"label", [](const Job& job, std::int64_t) { return job_label(job); }},
    {"array", [](const Job& job, std::int64_t) { return job.array ? std::to_string(*job.array) : ""; }},
    {"index", [](const Job& job, std::int64_t) { return job.array_index ? std::to_string(*job.array_index) : ""; }},
    {"name", [](const Job& job, std::int64_t) { return job.name; }},
    {"user", [](const Job& job, std::int64_t) { return job.user; }},
    {"uid", [](const Job& job, std::int64_t) { return std::to_string(job.uid); }},
    {"state", [](const Job& job, std::int64_t) { return job.state; }},
    {"outcome", [](const Job& job, std::int64_t) { return job.outcome; }},
    {"exit", [](const Job& job, std::int64_t) { return job.exit_status ? std::to_string(*job.exit_status) : ""; }},
    {"reason", [](const Job& job, std::int64_t) { return job.reason; }},
    {"why", [](const Job& job, std::int64_t) { return job.why; }},
    {"place", [](const Job& job, std::int64_t) { return job.place ? std::to_string(*job.place) : ""; }},
    {"priority", [](const Job& job, std::int64_t) { return std::to_string(job.priority); }},
    {"gpus", [](const Job& job, std::int64_t) { return joined(job.gpus); }},
    {"gpu-ids", [](const Job& job, std::int64_t) { return joined(job.gpu_ids); }},
    {"gpus-wanted", [](const Job& job, std::int64_t) { return std::to_string(job.gpus_wanted); }},
    {"memory", [](const Job& job, std::int64_t) { return number_or_empty(job.memory_bytes); }},
    {"exclusive", [](const Job& job, std::int64_t) { return std::string(job.exclusive ? "1" : "0"); }},
    {"time-limit", [](const Job& job, std::int64_t) { return job.time_limit ? seconds_of(*job.time_limit) : ""; }},
    {"on-time-limit", [](const Job& job, std::int64_t) { return job.on_time_limit; }},
    {"requeue", [](const Job& job, std::int64_t) { return std::string(job.requeue ? "1" : "0"); }},
    {"attempt", [](const Job& job, std::int64_t) { return number_or_empty(job.attempt); }},
    {"submitted", [](const Job& job, std::int64_t) { return seconds_of(job.submitted_unix_ns); }},
    {"started", [](const Job& job, std::int64_t) { return seconds_of(job.started_unix_ns); }},
    {"ended", [](const Job& job, std::int64_t) { return seconds_of(job.ended_unix_ns); }},
    {"elapsed",
     [](const Job& job, std::int64_t now) {
       // A job that has ended without a start ran for no time; one that waits has waited so long.
       return job.is_done() && job.started_unix_ns <= 0 ? "" : seconds_of(elapsed(job, now));
     }},
    {"gpu-time",
     [](const Job& job, std::int64_t) { return std::to_string(std::llround(std::clamp(job.gpu_seconds, 0.0, 9e9))); }},
    {"peak-memory", [](const Job& job, std::int64_t) { return number_or_empty(job.peak_memory_bytes); }},
    {"note", [](const Job& job, std::int64_t) { return job.note; }},
    {"command", [](const Job& job, std::int64_t) { return job.command; }},
    {"starts-in", [](const Job& job, std::int64_t) { return job.starts_in ? seconds_of(*job.starts_in) : ""; }},
}};

}  // namespace

std::string job_labels(const std::vector<Job>& jobs) {
  // A guess: a sentence with more names is not read.
  constexpr std::size_t kNamed = 3;
  std::string text;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (i < kNamed || jobs.size() == kNamed + 1) text += (i == 0 ? "" : ", ") + job_label(jobs[i]);
  }
  return jobs.size() > kNamed + 1 ? text + " ... " + job_label(jobs.back()) : text;
}

std::string job_reason(const Job& job) {
  if (job.waits() || job.state == "suspended") return !job.why.empty() ? job.why : words_of_reason(job.reason);
  if (!job.note.empty()) return job.note;
  if (job.limit_in && *job.limit_in <= base::Duration::zero() && !job.is_done())
    return "over its time limit for " + time_text(-*job.limit_in);
  if (job.is_done() && job.exit_status && *job.exit_status != 0)
    return "exit status " + std::to_string(*job.exit_status);
  return "";
}

std::string end_text(const Job& job) {
  const std::string name = "job " + job_label(job);
  if (job.outcome.empty())
    return name + " is " + (job.user.empty() ? "another user" : job.user) +
           "'s: only that user and administrators may see how it ended";
  if (job.outcome == "ok" || (job.outcome == "failed" && job.note.empty())) return "";
  return name + ": " + job.outcome + (job.note.empty() ? "" : ": " + job.note);
}

std::string outcome_text(const Job& job) {
  std::string how = job.outcome;
  if (job.exit_status && *job.exit_status != 0)
    how += (how.empty() ? "" : ", ") + std::string("exit status ") + exit_text(job);
  return how.empty() ? how : " (" + how + ")";
}

std::string finished_text(const Job& job) { return "has ended already" + outcome_text(job); }

std::string waiting_text(const Job& job) {
  std::string text = "job " + job_label(job) + (job.waits() ? " waits" : " is " + job.state);
  const std::string reason = job_reason(job);
  if (job.place) text += ": place " + std::to_string(*job.place) + (reason.empty() ? "" : "; " + reason);
  if (!job.place && !reason.empty()) text += ": " + reason;
  if (const std::string start = start_text(job); !start.empty()) text += "; starts " + start;
  return text;
}

std::vector<std::string> show_lines(const Job& job, std::int64_t now, const Output& output) {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view name, const std::string& value, Colour colour = Colour::kNone) {
    if (value.empty()) return;
    std::string title(name);
    title.resize(16, ' ');
    lines.push_back(paint(output, Colour::kDim, title) + paint(output, colour, printable(value)));
  };
  std::string state = job.is_done() && !job.outcome.empty() ? job.outcome : job.state;
  if (job.is_done() && job.exit_status) state += ", exit status " + std::to_string(*job.exit_status);
  add("job", std::to_string(job.id) + (job.array ? " (" + job_label(job) + ")" : ""), Colour::kBold);
  add("name", job.name);
  add("user", job.user + (job.user.empty() ? "" : " ") + "(" + std::to_string(job.uid) + ")");
  add("state", state, colour_of(job));
  if (job.place) add("place", std::to_string(*job.place));
  const std::string start = start_text(job);
  add("expected start", start.empty() ? "" : start + ", by the time limits of the jobs that go first");
  add(job.waits() || job.state == "suspended" ? "waits because" : "remark", job.is_done() ? "" : job_reason(job));
  add("note", job.note == job_reason(job) && !job.is_done() ? "" : job.note);
  if (job.priority != 0) {
    const std::int32_t capped = job.priority_capped.value_or(job.priority);
    const std::string against_others =
        capped == job.priority ? std::string() : "; against other users' jobs it counts as " + std::to_string(capped);
    add("priority", std::to_string(job.priority) + against_others);
  }
  add("GPUs", joined(job.gpus));
  const bool is_one = job.gpu_ids.size() == 1 || (job.gpu_ids.empty() && job.gpus_wanted == 1);
  std::string wanted = job.gpu_ids.empty() ? plural(job.gpus_wanted, "GPU")
                       : is_one            ? "GPU " + joined(job.gpu_ids)
                                           : "GPUs " + joined(job.gpu_ids);
  wanted += job.memory_bytes != 0 ? ", " + base::format_bytes(job.memory_bytes) + (is_one ? " on it" : " on each")
            : is_one              ? ", all of its memory"
                                  : ", all of their memory";
  if (job.exclusive) wanted += ", exclusive";
  add("asked for", wanted);
  const std::string left = time_left(job);
  std::string limit = job.time_limit ? limit_text(job) : left.empty() ? "" : "the queue's";
  if (!limit.empty() && job.on_time_limit == "cancel") limit += ", then it is ended";
  add("time limit", limit + (left.empty() ? "" : " (" + left + ")"));
  add("submitted", date_text(job.submitted_unix_ns));
  if (job.begin_unix_ns > 0 && job.waits()) add("begins at", date_text(job.begin_unix_ns));
  if (job.started_unix_ns > 0) add("started", date_text(job.started_unix_ns));
  if (job.ended_unix_ns > 0) add("ended", date_text(job.ended_unix_ns));
  const bool never_ran = job.is_done() && job.started_unix_ns <= 0;
  if (!never_ran) add(job.waits() ? "has waited" : "time", time_text(elapsed(job, now)));
  add("GPU time", gpu_time_text(job.gpu_seconds));
  if (job.peak_memory_bytes != 0) add("peak memory", peak_text(job.peak_memory_bytes) + " on one GPU");
  if (job.attempt > 1) add("attempt", std::to_string(job.attempt));
  if (job.requeue) add("if it is lost", "it runs again");
  std::string after;
  for (const api_client::JobDependency& dependency : job.after)
    after += (after.empty() ? "" : ", ") + dependency.need + ":" + std::to_string(dependency.job);
  add("after", after);
  add("command", job.arguments.empty() ? job.command : base::shell_words(job.arguments));
  add("set-up command", job.setup_command);
  add("directory", job.directory);
  add("log", job.log);
  add("errors", job.error_output);
  if (job.interactive) add("interactive", job.is_done() ? "yes" : "yes: gpumux attach " + job_label(job));
  if (job.pid > 0) add("process", std::to_string(job.pid));
  if (!job.environment.empty()) lines.push_back(paint(output, Colour::kDim, "environment"));
  for (const std::string& variable : job.environment) lines.push_back("  " + printable(variable));
  return lines;
}

std::vector<std::string> queue_remarks(const QueueState& queue, const Output& output) {
  std::vector<std::string> lines;
  const auto say = [&](Colour colour, const std::string& text) {
    const std::string shown = printable(text);
    lines.push_back(paint(output, colour, output.columns == 0 ? shown : fit(shown, output.columns)));
  };
  if (!queue.unavailable.empty())
    say(Colour::kRed,
        (queue.state == "no_room" ? "New jobs are refused: " : "There is no queue: ") + queue.unavailable);
  if (queue.paused) say(Colour::kYellow, "Paused: no job starts until `gpumux admin unpause`");
  for (const api_client::QueueGpu& gpu : queue.gpus) {
    if (!gpu.present) {
      say(Colour::kYellow, "GPU " + std::to_string(gpu.index) + " is not there");
    } else if (gpu.drained) {
      say(Colour::kYellow, "GPU " + std::to_string(gpu.index) + " is drained: it takes no new jobs");
    } else if (gpu.sick) {
      say(Colour::kYellow,
          "GPU " + std::to_string(gpu.index) + " is sick: it takes no new jobs (`gpumux status` says why)");
    }
  }
  if (queue.reserved) say(Colour::kNone, reservation_text(*queue.reserved));
  return lines;
}

base::Result<std::string> parse_outcomes(std::string_view text) {
  constexpr std::array<std::string_view, 6> kOutcomes{"ok",        "failed", "cancelled",
                                                      "timed out", "lost",   "dependency failed"};
  std::string outcomes;
  for (const std::string_view given : base::split(text, ',')) {
    std::string word(given);
    std::replace_if(
        word.begin(), word.end(), [](char c) { return c == '-' || c == '_'; }, ' ');
    if (std::find(kOutcomes.begin(), kOutcomes.end(), word) == kOutcomes.end())
      return base::fail(base::Code::kInvalid, "'" + std::string(given.substr(0, 64)) +
                                                  "' is none of ok, failed, cancelled, timed-out, lost, "
                                                  "dependency-failed");
    outcomes += (outcomes.empty() ? "" : ",") + word;
  }
  return outcomes;
}

base::Result<std::vector<const JobField*>> parse_fields(std::string_view text) {
  std::vector<const JobField*> fields;
  for (const std::string_view name : base::split(text, ',')) {
    const auto found =
        std::find_if(kFields.begin(), kFields.end(), [&](const JobField& field) { return field.name == name; });
    if (found == kFields.end()) {
      std::vector<std::string_view> names;
      for (const JobField& field : kFields) names.push_back(field.name);
      const std::string_view guess = nearest(name, names);
      return base::fail(base::Code::kInvalid, "there is no field '" + std::string(name.substr(0, 64)) + "'" +
                                                  (guess.empty() ? "" : " (did you mean " + std::string(guess) + "?)") +
                                                  "; there are " + field_names());
    }
    fields.push_back(&*found);
  }
  return fields;
}

std::string field_names() {
  std::string names;
  for (const JobField& field : kFields) names += (names.empty() ? "" : ", ") + std::string(field.name);
  return names;
}

std::string format_fields(const std::vector<const JobField*>& fields, const Job& job, std::int64_t now) {
  std::string line;
  for (const JobField* field : fields) line += (field == fields.front() ? "" : "\t") + printable(field->text(job, now));
  return line;
}

std::int64_t now_unix_ns() { return os::wall_clock_ns(); }

}  // namespace gpumux::cli

// SPDX-License-Identifier: Apache-2.0
// gpumux trace: which program ran when.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <deque>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "api_client/client.h"
#include "api_client/holds.h"
#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/jobs/job_calls.h"
#include "cli/timeline/timeline.h"
#include "cli/views/settings_change.h"
#include "cli/views/times.h"
#include "cli/views/trace_history.h"
#include "cli/views/trace_view.h"
#include "os/file_descriptor.h"
#include "os/output_file.h"
#include "os/system_clock.h"

namespace gpumux::cli {
namespace {

constexpr char kName[] = "trace";

base::Duration now_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return base::Duration(time.tv_sec * 1'000'000'000 + time.tv_nsec);
}

// The file of a timeline. It is written piece by piece, so that it is whole whenever the command ends.
class TimelineFile {
 public:
  base::Status open(const std::string& path) {
    path_ = path;
    auto opened = os::open_output(path, os::Write::kAnew, 0644);
    if (!opened) return tl::unexpected(opened.error());
    file_ = std::move(*opened);
    return {};
  }
  void add(const std::string& bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= kPiece) flush();
  }
  // The first failure of all writes.
  base::Status flush() {
    for (std::size_t done = 0; status_ && done < buffer_.size();) {
      const ssize_t written = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) status_ = base::fail_errno(errno, "cannot write " + path_);
      if (written > 0) done += static_cast<std::size_t>(written);
    }
    buffer_.clear();
    return status_;
  }

 private:
  static constexpr std::size_t kPiece = 1 << 16;
  std::string path_;
  os::FileDescriptor file_;
  std::string buffer_;
  base::Status status_;
};

// All jobs that are not done and that the user may see. None if this daemon has no queue, or not for this user.
base::Result<std::vector<api_client::Job>> unfinished_jobs(const api_client::Client& client) {
  auto page = all_jobs(client, {}, std::numeric_limits<std::uint64_t>::max());
  if (page) return std::move(page->jobs);
  if (page.error().code == base::Code::kUnavailable || page.error().code == base::Code::kDenied) return {};
  return tl::unexpected(page.error());
}

// The events that the command line asks for.
struct Wanted {
  std::uint64_t since = 0;                      // the number of the first event
  std::optional<base::TimePoint> not_before{};  // CLOCK_MONOTONIC
  std::optional<std::uint32_t> gpu{};
  std::string name;

  bool has_filter() const { return gpu || !name.empty() || not_before; }
  // That there is none, for people.
  std::string none() const {
    if (!has_filter() && since == 0) return "there are no events yet: no program has used a GPU";
    return "the daemon keeps no event" + (gpu ? " of GPU " + std::to_string(*gpu) : "") +
           (name.empty() ? "" : " of a program or job '" + name + "'") + (not_before ? " since then" : "") +
           (since == 0 ? "" : " from number " + std::to_string(since) + " on");
  }
  bool takes(const api_client::TraceEvent& event) const {
    if (not_before && event.time < *not_before) return false;
    // A tenant that goes is gone from all GPUs.
    if (gpu && event.gpu.value_or(*gpu) != *gpu) return false;
    return name.empty() || event.program == name || event.name == name ||
           (event.pid != 0 && std::to_string(event.pid) == name);
  }
};

// The present phases of the programs that are asked for, in the order in which they began. To be read before the trace,
// so that the trace says what has changed since.
base::Result<std::vector<api_client::TraceEvent>> phases_now(const api_client::Client& client, Wanted wanted) {
  const auto snapshot = client.snapshot();
  if (!snapshot) return tl::unexpected(snapshot.error());
  wanted.not_before.reset();
  auto phases = api_client::phases_of(*snapshot, base::TimePoint(now_of(CLOCK_MONOTONIC)));
  std::erase_if(phases, [&](const api_client::TraceEvent& phase) { return !wanted.takes(phase); });
  std::sort(phases.begin(), phases.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return phases;
}

// Reads the trace, with each event parsed. `take` returns whether it wants more.
class Reader {
 public:
  Reader(const api_client::Client& client, std::uint64_t since) : client_(client), next_(since) {}

  using Take = std::function<bool(const api_client::TraceEvent&, std::string_view line)>;
  base::Status read(bool follow, const Take& take, std::optional<std::uint64_t> last = {}) {
    base::Status readable;
    const auto read = client_.trace(
        follow, next_,
        [&](std::string_view line) {
          const auto event = api_client::parse_trace_event(line);
          if (!event) {
            readable = tl::unexpected(event.error());
            return false;
          }
          next_ = event->sequence + 1;
          return take(*event, line);
        },
        last);
    return readable ? read : readable;
  }

 private:
  const api_client::Client& client_;
  std::uint64_t next_;
};

int write_timeline(const api_client::Client& client, const Wanted& wanted, const std::string& path, bool follow) {
  TimelineFile file;
  if (const auto opened = file.open(path); !opened) return report_error(kName, opened.error());
  Timeline timeline({now_of(CLOCK_REALTIME), now_of(CLOCK_MONOTONIC), now_of(CLOCK_BOOTTIME)},
                    [&file](const std::string& bytes) { file.add(bytes); });
  const auto jobs = unfinished_jobs(client);
  if (!jobs) return report_error(kName, jobs.error());
  timeline.expect(*jobs);
  auto phases = phases_now(client, wanted);
  if (!phases) return report_error(kName, phases.error());
  Reader reader(client, wanted.since);
  base::Status written;
  // A program that has held its GPU since before the first event may have no event.
  const auto add_phases = [&](base::TimePoint first) {
    for (const api_client::TraceEvent& phase : std::exchange(*phases, {})) {
      if (phase.time < first && phase.detail == "holding") timeline.add(phase);
    }
  };
  bool is_empty = true;
  const auto add = [&](const api_client::TraceEvent& event, std::string_view) {
    if (wanted.takes(event)) {
      add_phases(event.time);
      timeline.add(event);
      is_empty = false;
    }
    if (follow) written = file.flush();
    return written.has_value();
  };
  base::Status read = reader.read(false, add);
  add_phases(base::TimePoint::max());
  // Jobs that no event has named are as they were before the first event.
  timeline.show_unchanged();
  if (follow && written) written = file.flush();
  if (follow && read && written) read = reader.read(true, add);
  if (written) written = file.flush();
  if (!written) return report_error(kName, written.error());
  if (!read) return report_error(kName, read.error());
  if (is_empty) say_error(kName, wanted.none());
  return kExitOk;
}

int show_history(const api_client::Client& client, const Wanted& wanted, bool picture, bool summary) {
  TraceHistory history(wanted.not_before);
  Reader reader(client, wanted.since);
  // Events before the time that is asked for say who had the GPU then.
  Wanted all = wanted;
  all.not_before.reset();
  const auto phases = phases_now(client, wanted);
  if (!phases) return report_error(kName, phases.error());
  bool is_empty = true;
  const auto read = reader.read(false, [&](const api_client::TraceEvent& event, std::string_view) {
    if (all.takes(event)) {
      history.add(event);
      is_empty = false;
    }
    return true;
  });
  if (!read) return report_error(kName, read.error());
  for (const api_client::TraceEvent& phase : *phases) history.add_phase(phase);
  // Other programs may have had GPUs.
  if (is_empty && phases->empty() && all.has_filter()) {
    say_error(kName, all.none());
    return kExitOk;
  }
  history.finish(base::TimePoint(now_of(CLOCK_MONOTONIC)));
  const Output output = look_at_stdout();
  std::vector<std::string> lines = picture ? history.picture(output) : std::vector<std::string>();
  if (summary) {
    if (!lines.empty()) lines.emplace_back();
    for (std::string& line : history.summary(output)) lines.push_back(std::move(line));
  }
  print_lines(lines);
  return kExitOk;
}

// `most`: lines of events that there are already; none: all. If there is no line to show, a person is told.
int show_lines(const api_client::Client& client, const Wanted& wanted, std::optional<std::uint64_t> most, bool follow,
               const std::function<std::string(const api_client::TraceEvent&, std::string_view)>& line_of) {
  Reader reader(client, wanted.since);
  bool is_empty = true;
  const auto print = [&](const api_client::TraceEvent& event, std::string_view line) {
    if (wanted.takes(event)) {
      is_empty = false;
      std::cout << line_of(event, line);
    }
    if (follow) std::cout << std::flush;
    return std::cout.good();
  };
  base::Status read;
  if (!most || *most == 0 || !wanted.has_filter()) {
    read = reader.read(follow, print, most);
  } else {
    // The daemon cannot count what is filtered here.
    std::deque<std::string> lines;
    read = reader.read(false, [&](const api_client::TraceEvent& event, std::string_view line) {
      if (!wanted.takes(event)) return true;
      lines.push_back(line_of(event, line));
      if (lines.size() > *most) lines.pop_front();
      return true;
    });
    is_empty = lines.empty();
    for (const std::string& line : lines) std::cout << line;
    std::cout << std::flush;
    if (read && follow) read = reader.read(true, print);
  }
  std::cout << std::flush;
  if (!read) return report_error(kName, read.error());
  if (is_empty && !follow && most != 0) say_error(kName, wanted.none());
  return kExitOk;
}

}  // namespace

int trace_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  Wanted wanted;
  bool json = false;
  bool follow = false;
  bool epochs = false;
  bool picture = false;
  bool summary = false;
  std::string begin;
  std::string gpu;
  std::string perfetto;
  std::uint64_t lines = 0;
  CLI::App app("Shows which program held which GPU when: the daemon's last 65,536 lease events, oldest first.",
               "gpumux trace");
  auto* const following = app.add_flag("-f,--follow", follow,
                                       "Print each event as it happens, from now on, until Ctrl-C. "
                                       "-n and --since add earlier ones");
  auto* const counted =
      app.add_option("-n,--lines", lines, "Print only the last N events")->type_name("N")->check(whole_number(0));
  auto* const as_picture = app.add_flag("--picture", picture, "Draw who held each GPU when")->excludes(following);
  auto* const as_summary =
      app.add_flag("--summary", summary, "Show how long each program held each GPU and waited, and what switches cost")
          ->excludes(following);
  auto* const as_json =
      app.add_flag("--json", json, "Print one JSON object per line, as the daemon does (docs/api.md, GET /v1/trace)")
          ->excludes(as_picture)
          ->excludes(as_summary);
  app.add_option("--since", begin, "Begin with event number N, or then: 10s ago, 12:30:15, a date")
      ->type_name("N|TIME");
  add_text(app, "--gpu", "GPU", gpu, "Show only events of this GPU, by index or UUID");
  app.add_option("--name", wanted.name, "Show only events of this program: its name or process id, or a job's name")
      ->type_name("NAME");
  app.add_flag("--epochs", epochs, "Show the number of each lease");
  app.add_option("--perfetto", perfetto, "Write a timeline for https://ui.perfetto.dev to FILE instead")
      ->type_name("FILE")
      ->excludes(as_json)
      ->excludes(as_picture)
      ->excludes(as_summary)
      ->excludes(counted);
  counted->excludes(as_picture)->excludes(as_summary);
  add_runtime_dir(app, options.runtime_dir);
  app.footer(R"(In a picture the shades say for which part of a column's time the program held the GPU: not at all, a
little, about half, all of it. A program holds a GPU from a grant until it submits no more work.

Examples:
  gpumux trace -n 20
  gpumux trace --follow --gpu 0 --name train.py
  gpumux trace --picture --since 10s
  gpumux trace --summary --since 12:30
  gpumux trace --perfetto trace.pftrace
  gpumux trace --json | jq -r 'select(.event == "grant") | .program'

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running (or it ended), 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const base::Duration to_wall = now_of(CLOCK_REALTIME) - now_of(CLOCK_MONOTONIC);
  if (const auto number = base::parse_integer(begin, 0, UINT64_MAX)) {
    wanted.since = *number;
  } else if (!begin.empty()) {
    const auto time = parse_time(begin, now_of(CLOCK_REALTIME).count());
    if (!time) return usage_error(kName, "--since: " + time.error().message() + ", or the number of an event");
    wanted.not_before = base::TimePoint(base::Duration(*time) - to_wall);
  }
  const auto client = api_client::Client::connect(options);
  if (!client) return report_error(kName, client.error());
  if (!gpu.empty()) {
    const auto snapshot = client->snapshot();
    if (!snapshot) return report_error(kName, snapshot.error());
    const auto found = find_gpu(snapshot->gpus, gpu);
    if (!found) return report_error(kName, found.error());
    wanted.gpu = (*found)->index;
  }
  if (!perfetto.empty()) return write_timeline(*client, wanted, perfetto, follow);
  if (picture || summary) return show_history(*client, wanted, picture, summary);
  std::optional<std::uint64_t> most;
  if (counted->count() > 0) most = lines;
  if (!most && follow && begin.empty()) most = 0;
  const Output output = look_at_stdout();
  TraceView view(output, to_wall, epochs);
  return show_lines(*client, wanted, most, follow, [&](const api_client::TraceEvent& event, std::string_view line) {
    return json ? json_for(output, line) : view.line(event) + "\n";
  });
}

}  // namespace gpumux::cli

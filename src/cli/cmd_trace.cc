// SPDX-License-Identifier: Apache-2.0
// gpumux trace: who ran when.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <iostream>
#include <optional>

#include "api_client/client.h"
#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/timeline/timeline.h"
#include "cli/views/times.h"
#include "cli/views/trace_view.h"
#include "os/file_descriptor.h"
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
    file_ = os::FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file_) return base::fail_errno(errno, "cannot write " + path_);
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
  std::vector<api_client::Job> jobs;
  api_client::JobQuery query;
  for (bool more = true; more;) {
    auto page = client.jobs(query);
    if (!page && (page.error().code == base::Code::kUnavailable || page.error().code == base::Code::kDenied)) break;
    if (!page) return tl::unexpected(page.error());
    jobs.insert(jobs.end(), page->jobs.begin(), page->jobs.end());
    more = page->more && !page->jobs.empty();
    if (more) query.beyond = page->jobs.back().id;
  }
  return jobs;
}

}  // namespace

int trace_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  bool json = false;
  bool follow = false;
  std::string begin;
  std::optional<std::uint32_t> gpu;
  std::string perfetto;
  CLI::App app("Shows which program held which GPU when: the daemon's last 65,536 lease events, oldest first.",
               "gpumux trace");
  app.add_flag("-f,--follow", follow, "Print each further event as it happens, until Ctrl-C");
  auto* const as_json =
      app.add_flag("--json", json, "Print one JSON object per line, as the daemon does (docs/api.md, GET /v1/trace)");
  app.add_option("--since", begin, "Begin with event number N, or then: 10s ago, 12:30:15, a date")
      ->type_name("N|TIME");
  app.add_option("--gpu", gpu, "Show only events of this GPU")->type_name("N");
  app.add_option("--perfetto", perfetto, "Write a timeline for https://ui.perfetto.dev to FILE instead")
      ->type_name("FILE")
      ->excludes(as_json);
  app.add_option("--runtime-dir", options.runtime_dir, "Ask the daemon whose sockets are in DIR")->type_name("DIR");
  app.footer(R"(Examples:
  gpumux trace
  gpumux trace --follow --gpu 0
  gpumux trace --since 10s
  gpumux trace --perfetto trace.pftrace
  gpumux trace --json | jq -r 'select(.event == "grant") | [.time_ns, .gpu, .program] | @tsv'

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running (or it ended), 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const base::Duration to_wall = now_of(CLOCK_REALTIME) - now_of(CLOCK_MONOTONIC);
  std::uint64_t since = 0;  // the number of the next event that is wanted
  base::TimePoint not_before{};
  if (const auto number = base::parse_integer(begin, 0, UINT64_MAX)) {
    since = *number;
  } else if (!begin.empty()) {
    const auto time = parse_time(begin, now_of(CLOCK_REALTIME).count());
    if (!time) {
      say_error(kName, "--since: " + time.error().message() + ", or the number of an event");
      return kExitUsage;
    }
    not_before = base::TimePoint(base::Duration(*time) - to_wall);
  }
  const auto client = api_client::Client::connect(options);
  if (!client) return report_error(kName, client.error());

  const Output output = look_at_stdout();
  TraceView view(output, to_wall);
  TimelineFile file;
  std::optional<Timeline> timeline;
  if (!perfetto.empty()) {
    if (const auto opened = file.open(perfetto); !opened) return report_error(kName, opened.error());
    timeline.emplace(Timeline::Clocks{now_of(CLOCK_REALTIME), now_of(CLOCK_MONOTONIC), now_of(CLOCK_BOOTTIME)},
                     [&file](const std::string& bytes) { file.add(bytes); });
    const auto jobs = unfinished_jobs(*client);
    if (!jobs) return report_error(kName, jobs.error());
    timeline->expect(*jobs);
  }
  base::Status readable;
  const auto on_line = [&](std::string_view line) {
    const auto event = api_client::parse_trace_event(line);
    if (!event) {
      readable = tl::unexpected(event.error());
      return false;
    }
    since = event->sequence + 1;
    if (event->time < not_before) return true;
    // A tenant that goes is gone from all GPUs.
    if (gpu && event->gpu.value_or(*gpu) != *gpu) return true;
    if (timeline) {
      timeline->add(*event);
      if (follow) readable = file.flush();
      return readable.has_value();
    }
    if (json) {
      std::cout << json_for(output, line);
    } else {
      std::cout << view.line(*event) << "\n";
    }
    if (follow) std::cout << std::flush;
    return std::cout.good();
  };
  base::Status read;
  if (timeline) {
    // Jobs that no event has named are as they were before the first event.
    read = client->trace(false, since, on_line);
    timeline->show_unchanged();
    if (follow && readable) readable = file.flush();
  }
  if (read && readable && (follow || !timeline)) read = client->trace(follow, since, on_line);
  std::cout << std::flush;
  if (timeline && readable) readable = file.flush();
  if (!readable) return report_error(kName, readable.error());
  if (!read) return report_error(kName, read.error());
  return kExitOk;
}

}  // namespace gpumux::cli

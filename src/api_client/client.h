// SPDX-License-Identifier: Apache-2.0
// The daemon's HTTP API, from the user's side: one blocking call each, with a time limit.
//
//   auto client = Client::connect({});               // looks where os::find_runtime_dir says
//   if (!client) ...                                 // kUnavailable: no daemon; kDenied: it does not let us in
//   auto snapshot = client->snapshot();
//
// Errors are sentences for people and say what to do. Their codes: kUnavailable: there is no daemon to talk to (any
// more). kDenied: it refuses this user. kTimeout: it did not answer in time. kProtocol: its answer makes no sense.
// kNotFound and kInvalid: the daemon's own answer to a request.
//
// One connection per call: a daemon that restarts between two calls is not noticed. Not for use from several threads at
// once. Starts no thread and leaves no descriptor open between calls, so a process may fork or exec around it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api_client/jobs.h"
#include "api_client/report.h"
#include "api_client/request.h"
#include "api_client/types.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

struct Options {
  std::string runtime_dir;  // empty: os::find_runtime_dir()
  base::Duration timeout = kDefaultTimeout;
};

class Client {
 public:
  // Finds the daemon's socket and makes one connection to see that a daemon answers there.
  static base::Result<Client> connect(const Options& options);

  const std::string& runtime_dir() const { return runtime_dir_; }

  // `run`: the caps are those of programs of this run; empty: of no run.
  base::Result<DaemonInfo> daemon_info(std::string_view run = {}) const;
  base::Result<Snapshot> snapshot() const;

  // The body as the daemon wrote it, for --json.
  base::Result<std::string> snapshot_text() const;

  // `gpu`: an index, a UUID or "all". `changes`: a JSON object as docs/api.md describes it. The settings now in force.
  base::Result<std::vector<Gpu>> change_settings(std::string_view gpu, const std::string& changes) const;

  // `tenant`: a Seat's. How it stands now.
  base::Result<Seat> change_tenant(std::uint64_t tenant, const std::string& changes) const;

  // Jobs (docs/api.md, "Jobs"). Functions that end in _text give the answer's body as the daemon wrote it.
  //
  // Hands in a job. kUnavailable and kTimeout: there was no answer, and the job is there or not; send it again, with
  // the same token. Every other error is the daemon's word that it is not there.
  base::Result<Submitted> submit(const Submission& submission) const;
  base::Result<JobPage> jobs(const JobQuery& query) const;
  base::Result<std::string> jobs_text(const JobQuery& query) const;
  // `id`: "17", or "17_3". kInvalid for any other word.
  base::Result<Job> job(std::string_view id) const;
  base::Result<std::string> job_text(std::string_view id, bool with_environment = false) const;
  // The job as it is when it is done (or has started), or when `timeout` is over; at most kLongestJobWait.
  base::Result<Job> wait_for_job(std::string_view id, JobMoment moment, base::Duration timeout) const;
  // `which`: ids with commas between them, "user:NAME" or "all". `change`: a JSON object.
  base::Result<std::vector<JobChange>> change_jobs(const std::string& which, const std::string& change) const;
  base::Result<QueueState> queue() const;
  base::Result<std::string> queue_text() const;
  // `what`: "" for the queue itself, "gpus/0", "users/eva". The queue as it is now.
  base::Result<QueueState> change_queue(const std::string& what, const std::string& change) const;

  // The page for scrapers. `accept`: the scraper's own list of formats.
  struct Metrics {
    std::string content_type;
    std::string body;
  };
  base::Result<Metrics> metrics(bool with_names, const std::string& accept) const;

  base::Result<std::string> report_text(const ReportQuery& query) const;

  // Asks a private daemon not to end for want of use while the calling process lives (it keeps its pid across exec).
  base::Status hold() const;

  // Reads the lease trace, oldest event first, one line (without its newline) at a time. It ends when `on_line` returns
  // false, when the trace ends, or, with `follow`, when the daemon goes (kUnavailable). The time limit is for the first
  // byte, and, unless following, for each further one. `last`: at most this many of the events that there are.
  base::Status trace(bool follow, std::uint64_t since, const std::function<bool(std::string_view line)>& on_line,
                     std::optional<std::uint64_t> last = {}) const;

 private:
  Client(std::string runtime_dir, base::Duration timeout) : runtime_dir_(std::move(runtime_dir)), timeout_(timeout) {}

  // An answer, whatever it says; `patience` is how long it may take beyond the time limit of a call.
  base::Result<Answer> exchange(Request request, base::Duration patience = {}) const;
  // An answer that is no error: the body.
  base::Result<std::string> call(Request request, base::Duration patience = {}) const;

  std::string runtime_dir_;
  base::Duration timeout_;
};

}  // namespace gpumux::api_client

// SPDX-License-Identifier: Apache-2.0
// A job's command, its user and its environment, in the form in which they are kept until the job starts.
//
// Pure but for look_at_submitter(), which may wait for a directory service: not for the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/peers/access.h"
#include "wire/runner_records.h"

namespace gpumux::jobs {

class JsonFields;

// The job's user, as kernel and user database say when the job is handed in. A job may do what its submitting process
// could, and nothing more. Its ids, groups and limits are that process's, whatever a login would give its user.
struct Submitter {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string user_name;      // empty: the user database does not know the number
  std::string home;           // the same
  std::vector<gid_t> groups;  // the supplementary ones
  bool no_new_privs = false;  // set-user-ID programs and file capabilities give it nothing
  std::vector<wire::ResourceLimit> limits;
};

// Asks the user database, and the kernel for the limits of the process. kDenied: it is not (or no longer) that user's
// process, it cannot be seen from here, or it is under a seccomp filter. No job could be under that filter.
base::Result<Submitter> look_at_submitter(const server::Peer& peer);

// The restrictions that keep a process from gaining rights, of /proc/PID/status.
struct Confinement {
  bool no_new_privs = false;
  std::uint64_t seccomp_filters = 0;
};
Confinement parse_confinement(std::string_view text);

// /proc/PID/limits.
std::vector<wire::ResourceLimit> parse_limits(std::string_view text);

// The command, its user and how to run it; as stored with the job.
struct JobDocument {
  Submitter submitter;
  std::vector<std::string> arguments;
  std::string directory;
  std::vector<std::string> environment;
  std::string setup_command;
  std::string output;        // the log's pattern, as given; empty: the user's own folder of logs
  std::string error_output;  // the same for standard error; empty: to the log
  bool append = false;
  bool interactive = false;
  wire::WindowSize window;
  std::uint32_t umask = 0022;
  std::int32_t nice = 0;
  std::vector<std::uint32_t> gpu_order;  // those that were asked for by name, in that order
};

std::string to_text(const JobDocument& document);
// kInvalid: not a text of to_text.
base::Result<JobDocument> parse_document(std::string_view text);

// Reads the fields that a submission has, too: arguments, directory, environment, ... kInvalid as parse_submission.
base::Status read_command(JsonFields& fields, JobDocument& document);

}  // namespace gpumux::jobs

// SPDX-License-Identifier: Apache-2.0
// The files of a job's directory: its command (spec), its runner (claim), its end (end).
//
// A record is
//
//   magic (8 bytes, names the kind) | version u32 | reserved u32 | bytes of the whole file u64
//   then fields: tag u32 | reserved u32 | bytes u64 | that many bytes | zeros up to a multiple of 8
//
// in the machine's byte order. Lists are fields with the same tag, in order. Numbers that belong together are one
// field, a struct that only ever grows at its end, as messages do. A field with an unknown tag is refused, not skipped.
// A runner that ignored an unknown field would run a job in another way than it was asked to. So an older program says
// clearly that it cannot, and a newer one reads what an older one has written.
//
// Strings are bytes, kept exactly; only NUL cannot be in them, for they go to the system as C strings. Decoding takes
// any bytes at all. Decoding does not judge the meaning of a path or a user id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "wire/attach_messages.h"
#include "wire/runner_messages.h"

namespace gpumux::wire {

// Arguments and environment beyond what any kernel executes (6 MiB) must still reach the place that says so clearly.
inline constexpr std::size_t kMaxSpecBytes = 64u << 20;
// One argument, one variable and its terminating zero take at least two bytes of those; this bounds the list's own
// cost.
inline constexpr std::size_t kMaxSpecStrings = 1u << 20;
// As Linux has it (NGROUPS_MAX).
inline constexpr std::size_t kMaxGroups = 65536;
// RLIM_NLIMITS is 16; a few more for kernels to come.
inline constexpr std::size_t kMaxResourceLimits = 32;
// A claim or an end; both are a few hundred bytes.
inline constexpr std::size_t kMaxSmallRecordBytes = 8192;

enum class LogOpening : std::uint32_t {
  // The user named the file: made with the user's umask and cut to nothing. A symbolic link is followed only if it is
  // the user's.
  kUsersTruncate = 0,
  kUsersAppend = 1,
  // We named it. Its folders are made as the user with mode 0700, the file with 0600. It is never opened through a
  // symbolic link as the last component, and only if it is a regular file of the user's. The file's content stays:
  // output is only ever appended.
  kOurs = 2,
};

// How a variable of `late_environment` is joined with the set-up command's own value.
enum class SetHow : std::uint32_t {
  kSet = 0,
  kIfUnset = 1,  // PYTHONUNBUFFERED
  kPreload = 2,  // LD_PRELOAD: our library behind the old value, less other copies of it (by file name)
};

struct ResourceLimit {
  std::uint32_t resource = 0;  // RLIMIT_...
  std::uint32_t reserved = 0;
  std::uint64_t soft = 0;  // RLIM_INFINITY is all ones, as the kernel has it
  std::uint64_t hard = 0;
};

struct LateVariable {
  SetHow how = SetHow::kSet;
  std::string entry;  // NAME=value
};

struct RunnerSpec {
  std::uint64_t job = 0;
  std::uint32_t attempt = 0;
  bool interactive = false;
  WindowSize window;

  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::vector<std::uint32_t> groups;  // exactly these
  bool no_new_privs = false;

  std::string directory;                       // absolute: where the command is started
  std::vector<std::string> arguments;          // the command; at least one, and the first not empty
  std::vector<std::string> environment;        // NAME=value, the submitter's
  std::string setup_command;                   // run by bash -l; empty: no shell at all
  std::vector<LateVariable> late_environment;  // applied after the set-up command

  std::string log_path;  // absolute; %-patterns are expanded already
  LogOpening log_opening = LogOpening::kOurs;
  // A file of the user's for the command's standard error; empty: that goes to the log, too.
  std::string error_path;
  LogOpening error_opening = LogOpening::kUsersTruncate;
  std::string attach_path;  // interactive: the place of its attach socket, in a directory that root owns; else empty

  std::vector<ResourceLimit> limits;
  std::uint32_t umask = 0022;
  std::int32_t nice = 0;
  std::int32_t oom_score_adj = 0;
  std::uint64_t leftover_grace_ms = 10'000;  // from TERM to KILL for processes that outlive the main process
  // The directory of a cgroup (v2) under which the job's own is made. Or "auto": the runner's own cgroup, if it was
  // delegated to it. Or "none": processes are found in /proc.
  std::string cgroup_parent = "auto";
};

struct RunnerClaim {
  bool abandoned = false;  // by the daemon: no runner may begin
  std::uint32_t runner_pid = 0;
  std::uint64_t runner_start_ticks = 0;  // field 22 of /proc/PID/stat
  std::string boot_id;                   // /proc/sys/kernel/random/boot_id
  std::string cgroup;                    // the job's own; empty: none
};

using RunnerEnd = RunnerEnded;  // the end file holds the content of the message

std::string encode_spec(const RunnerSpec& spec);
std::string encode_claim(const RunnerClaim& claim);
std::string encode_end(const RunnerEnd& end);

// kInvalid: not such a record, or one that makes no sense (no argument, a relative path, a limit above its own
// ceiling). kUnsupported: written by a newer version in a way that this one cannot follow.
base::Result<RunnerSpec> decode_spec(std::span<const std::byte> bytes);
base::Result<RunnerClaim> decode_claim(std::span<const std::byte> bytes);
base::Result<RunnerEnd> decode_end(std::span<const std::byte> bytes);

}  // namespace gpumux::wire

// SPDX-License-Identifier: Apache-2.0
// The messages between the daemon and the supervisor of one job (gpumux-runner).
//
// Transport, byte order, growth and trust are those of wire/messages.h: whole messages over SOCK_SEQPACKET, a Header
// and one of the structs below. There are two kinds of connections, with the same messages. The runner was started with
// the first one. A restarted daemon makes others through the socket `control` in the job's directory.
//
//   daemon                                   runner
//   Begin               ------------------>  (first connection only, exactly once) claims DIR, reads DIR/spec
//                       <------------------  RunnerState     at once on every connection, and after each change
//   Terminate           ------------------>                  TERM to everything, after the grace KILL
//   Suspend, Resume     ------------------>                  freeze and thaw
//   Signal              ------------------>                  one signal to everything, nothing else
//                       <------------------  RunnerEnded     after DIR/end is durable and nothing of the job is left
//   Noted               ------------------>                  the end is stored; matters to a kEndNotDurable only
//
// A runner ends after RunnerEnded (kEndNotDurable: after Noted). If it may not begin (another process holds the claim),
// its last message is RunnerRefused. Losing a connection changes nothing for the job.
//
// Trust: the runner obeys peers whose SO_PEERCRED is root or its own user, and no others. The daemon reads a runner's
// message as it reads a tenant's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "base/result.h"
#include "wire/messages.h"

namespace gpumux::wire {

inline constexpr std::uint32_t kRunnerProtocolVersion = 1;

// Names in a job's directory.
inline constexpr char kSpecFile[] = "spec";    // the command: wire/runner_records.h; written by the daemon
inline constexpr char kClaimFile[] = "claim";  // the runner that has the job, or that none may; locked while it lives
inline constexpr char kEndFile[] = "end";      // how it ended
inline constexpr char kControlSocket[] = "control";

enum class RunnerType : std::uint32_t {
  kBegin = 1,
  kTerminate = 2,
  kSuspend = 3,
  kResume = 4,
  kNoted = 5,
  kSignal = 6,

  kState = 64,
  kEnded = 65,
  kRefused = 66,
};

// Why a job was ended from outside; goes into the end record. The daemon decides what it means.
enum class EndReason : std::uint32_t {
  kNone = 0,       // it ended by itself
  kCancelled = 1,  // its owner or an administrator said so
  kTimeLimit = 2,
  kShutdown = 3,  // the machine, or the service manager, stops the runner
  kDaemon = 4,    // any other reason of the daemon's
};

// How the job's main process ended, or why there never was one.
enum class EndHow : std::uint32_t {
  kExited = 1,       // code: its exit status
  kSignaled = 2,     // code: the signal
  kNotStarted = 3,   // code: 125, 126 or 127 (kExitNot...); the text says why
  kSetupFailed = 4,  // code: the set-up command's exit status, or 128 + its signal, as shells have it
};

// Exit statuses of jobs whose command never ran, as shells and `env` have them.
inline constexpr std::uint32_t kExitNotStarted = 125;
inline constexpr std::uint32_t kExitNotExecutable = 126;
inline constexpr std::uint32_t kExitNotFound = 127;

enum class RunnerPhase : std::uint32_t {
  kStarting = 1,  // claimed; the command is not running yet
  kSetup = 2,     // the set-up command runs
  kRunning = 3,   // the command itself has been executed
  kStopping = 4,  // Terminate was received: the grace runs
  kCleaning = 5,  // the main process has ended and DIR/end is written; its remaining processes are being ended
  kEnded = 6,
};

enum class Suspension : std::uint32_t {
  kNone = 0,
  kFreezing = 1,
  kFrozen = 2,  // nothing of the job runs
  kFailed = 3,  // a process could not be stopped; the stopped ones go on again after Resume
};

// ---- daemon to runner -------------------------------------------------------------------------------------

// Longer than any sensible state directory. (Sockets in it are named through /proc/self/fd, so their limit of 107 bytes
// does not count.)
inline constexpr std::size_t kRunnerPathBytes = 512;

struct Begin {
  static constexpr RunnerType kType = RunnerType::kBegin;
  static constexpr std::size_t kMinimumBytes = 8 + kRunnerPathBytes;
  std::uint32_t protocol = 0;  // the sender's kRunnerProtocolVersion
  std::uint32_t reserved = 0;
  char directory[kRunnerPathBytes] = {};  // absolute
};

struct Terminate {
  static constexpr RunnerType kType = RunnerType::kTerminate;
  static constexpr std::size_t kMinimumBytes = 16;
  EndReason reason = EndReason::kCancelled;  // the first one received goes into the end record
  std::uint32_t reserved = 0;
  std::uint64_t grace_ms = 0;  // from TERM to KILL; 0: KILL at once. A second Terminate can only shorten it
};

struct Suspend {
  static constexpr RunnerType kType = RunnerType::kSuspend;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t sequence = 0;  // comes back in RunnerState, so that an answer is known from an older one's
};

struct Resume {
  static constexpr RunnerType kType = RunnerType::kResume;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t sequence = 0;
};

// The daemon has stored the end that it was told. Losing the connection says nothing of the kind: the daemon may have
// been killed, and the next one asks again.
struct Noted {
  static constexpr RunnerType kType = RunnerType::kNoted;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t reserved = 0;
};

// A runner that is older than this message closes the connection. The daemon then connects anew.
struct Signal {
  static constexpr RunnerType kType = RunnerType::kSignal;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t number = 0;  // from 1 to kMaxSignal
  std::uint32_t reserved = 0;
};
inline constexpr std::uint32_t kMaxSignal = 64;  // Linux's, on every machine that gpumux runs on

// ---- runner to daemon -------------------------------------------------------------------------------------

struct RunnerState {
  static constexpr RunnerType kType = RunnerType::kState;
  static constexpr std::size_t kMinimumBytes = 72;
  std::uint32_t protocol = kRunnerProtocolVersion;
  std::uint32_t attempt = 0;
  std::uint64_t job = 0;
  RunnerPhase phase = RunnerPhase::kStarting;
  Suspension suspension = Suspension::kNone;
  std::uint64_t sequence = 0;         // of the last Suspend or Resume that `suspension` answers
  std::uint32_t runner_pid = 0;       // in the runner's own pid namespace
  std::uint32_t main_pid = 0;         // 0: none yet
  std::uint64_t started_wall_ns = 0;  // CLOCK_REALTIME at the fork of the main process; 0: not yet
  std::uint64_t running_ns = 0;       // the time that it has run since, suspended time not counted
  std::uint64_t suspended_ns = 0;     // the time that it has been suspended in all
  std::uint32_t uses_cgroup = 0;      // 1: freezes and kills by cgroup; 0: by /proc and signals
  std::uint32_t unstoppable = 0;      // kFailed: how many processes could not be stopped
};
static_assert(sizeof(RunnerState) == 72);

struct RunnerEnded {
  static constexpr RunnerType kType = RunnerType::kEnded;
  static constexpr std::size_t kMinimumBytes = 64;
  std::uint64_t job = 0;
  std::uint32_t attempt = 0;
  EndHow how = EndHow::kExited;
  std::uint32_t code = 0;
  EndReason reason = EndReason::kNone;
  std::uint32_t leftovers = 0;  // processes that outlived the main process and were ended
  std::uint32_t flags = 0;      // kDumpedCore and the others below
  std::uint64_t ended_wall_ns = 0;
  std::uint64_t user_us = 0;  // processor time of everything that was waited for
  std::uint64_t system_us = 0;
  std::uint64_t peak_rss_kib = 0;  // of the largest process
  char text[256] = {};             // why it was not started, or the fault; else empty
};
inline constexpr std::uint32_t kDumpedCore = 1u << 0;
// The end could not be written to disk (it is full, or broken). The message is all there is: the runner keeps on
// trying, and stays until it has succeeded or the daemon has said Noted.
inline constexpr std::uint32_t kEndNotDurable = 1u << 1;
// The job has failed, and the kernel has killed a process of it for want of host memory: for sure, or perhaps.
inline constexpr std::uint32_t kOutOfMemory = 1u << 2;
inline constexpr std::uint32_t kPerhapsOutOfMemory = 1u << 3;

// The runner does nothing, and has done nothing: not claimed, or the claim is another's. The job did not start here.
struct RunnerRefused {
  static constexpr RunnerType kType = RunnerType::kRefused;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t claimed = 0;  // 1: the claim was there already
  std::uint32_t reserved = 0;
  char text[256] = {};
};

using ToRunner = std::variant<Begin, Terminate, Suspend, Resume, Noted, Signal>;
using FromRunner = std::variant<RunnerState, RunnerEnded, RunnerRefused>;

// As decode_from_tenant: any bytes at all are safe.
base::Result<ToRunner> decode_to_runner(std::span<const std::byte> bytes);
base::Result<FromRunner> decode_from_runner(std::span<const std::byte> bytes);

}  // namespace gpumux::wire

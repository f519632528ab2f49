// SPDX-License-Identifier: Apache-2.0
// The ledger that outlives the daemon: programs' use of GPUs, as rows of whole hours and, later, of whole days. Hours
// and days are UTC's.
//
// A row is the use of one GPU in one period by one program of one owner and job. An owner has at most kMaxOwnerRows in
// a period. Further programs are added to the owner's others on that GPU. So an owner with ever new names fills no
// disk, and loses only its own.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jobs/core/events.h"

namespace gpumux::jobs::store {

// Nanoseconds since 1970 (CLOCK_REALTIME), for people and for after a reboot. 0: not yet.
using WallTime = std::int64_t;

// An array of 1,000 jobs in an hour. A row has some 200 bytes: with the built-in retention an owner that does its worst
// takes 150 MB.
inline constexpr std::uint32_t kMaxOwnerRows = 1'000;
// The most rows of one report; those beyond come as a sum.
inline constexpr std::uint32_t kMaxReportRows = 10'000;
// Linux's and Kubernetes' names are shorter.
inline constexpr std::size_t kMaxLedgerTextBytes = 256;

struct LedgerOwner {
  std::optional<std::uint32_t> uid;  // none: it is in a container, whose users are not the host's
  std::string pod_namespace;
  std::string pod;
  auto operator<=>(const LedgerOwner&) const = default;
};

struct LedgerProgram {
  std::string name;
  jobs::JobId job = jobs::kNoJob;
  auto operator<=>(const LedgerProgram&) const = default;
};

// The key of a row within a period.
struct LedgerRow {
  LedgerOwner owner;
  std::optional<LedgerProgram> program;  // none: of the owner's others
  std::string gpu;                       // its UUID
  auto operator<=>(const LedgerRow&) const = default;
};

// In seconds and byte seconds: real numbers, for sums of many seats' waits over years are more nanoseconds than 64 bits
// hold.
struct LedgerSums {
  double held = 0;
  double gpu_time = 0;
  double waited = 0;
  double resident_byte_seconds = 0;
  double evicted_byte_seconds = 0;
  std::uint64_t switches = 0;

  void add(const LedgerSums& other);
  bool operator==(const LedgerSums&) const = default;
};

// ---- changes ----------------------------------------------------------------------------------------------

// To the row of the hour of `at`.
struct AddToLedger {
  WallTime at = 0;
  LedgerRow row;
  LedgerSums sums;
};

// Makes days of hours that began before this, and removes days that began before this. It takes the oldest first, and
// of each at most `at_most` rows at a time, so that a commit stays short.
struct RollUpLedger {
  WallTime hours_before = 0;
  WallTime days_before = 0;
  std::uint32_t at_most = 256;
};

// ---- reports ----------------------------------------------------------------------------------------------

struct LedgerQuery {
  enum class By { kUser, kJob, kPod, kProgram } by = By::kUser;
  // All periods of which a part lies between these.
  WallTime since = 0;
  WallTime until = 0;
  std::optional<std::uint32_t> uid = {};  // only this user's
  // Only this job's: with all of its elements if it is an array's first, or one element.
  std::optional<jobs::JobId> job = {};
  std::optional<std::uint32_t> element = {};
  WallTime now = 0;  // a job that has not ended has run until now
  // Only this user's programs and pods are told apart by their names.
  std::optional<std::uint32_t> names_of = {};
  std::uint32_t at_most = kMaxReportRows;
};

struct LedgerTotal {
  LedgerOwner owner;               // its pod: by pod and by program only
  bool others = false;             // by job and by program: a sum of the rows that found no place
  std::string program;             // by program only
  jobs::JobId job = jobs::kNoJob;  // by job only
  // Of a job that is remembered.
  std::string job_name;
  jobs::JobId array = jobs::kNoJob;
  std::uint32_t array_index = 0;
  // By user and by job: seconds from first starts to ends of jobs that are remembered, suspensions included.
  double run = 0;
  LedgerSums sums;
};

struct LedgerReport {
  // The time that the periods cover; as asked if there are none.
  WallTime since = 0;
  WallTime until = 0;
  std::vector<LedgerTotal> rows;   // the longest held first
  std::optional<LedgerSums> rest;  // of the rows beyond `at_most`
};

}  // namespace gpumux::jobs::store

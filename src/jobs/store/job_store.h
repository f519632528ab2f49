// SPDX-License-Identifier: Apache-2.0
// Where jobs are kept so that no acknowledged change is lost: one interface, and a SQLite file behind it
// (sqlite_store.h).
//
// The promises of a store:
//   1. When commit() has returned without an error, everything in it survives kill -9 and a power cut. When it returns
//      an error (a full disk), nothing of it is there, then or later. Exception: a disk that has failed to sync and
//      loses power before it works again may still turn it up.
//   2. A commit is seen whole or not at all, also by readers on other threads and after a crash.
//   3. A second submission of a user with the same token stores nothing; it is told the first one's id.
//   4. Ids are never given out twice, even when the job with the highest one is pruned.
//   5. On a full disk a commit without anything that grows (an Insert, or the ledger's changes) still succeeds: room
//      for it is reserved (kReserveBytes).
//
// commit() is for one thread at a time (see commit_queue.h). Any thread may call the readers during a commit; they see
// the last commit that has returned, or a later one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "jobs/core/events.h"
#include "jobs/store/ledger.h"

namespace gpumux::jobs::store {

using base::Result;
using base::Status;
using jobs::JobId;

// Exit statuses as a shell gives them, 128 + signal for a job that a signal ended.
inline constexpr int kNoExitStatus = -1;

inline constexpr std::size_t kMaxTokenBytes = 128;           // a UUID has 36
inline constexpr std::size_t kMaxNameBytes = 256;            // longer ones are unreadable in any table
inline constexpr std::size_t kMaxCommandBytes = 256;         // wider than any column of a table
inline constexpr std::size_t kMaxLogBytes = 4096;            // PATH_MAX
inline constexpr std::size_t kMaxNoteBytes = 4096;           // the last lines of a set-up command that failed
inline constexpr std::size_t kMaxDocumentBytes = 16u << 20;  // arguments and environment: Linux takes 6 MiB of them
inline constexpr std::uint32_t kMaxPageJobs = 1'000;         // a page with its reasons takes the loop about 1 ms

// The course of a job until now.
struct Progress {
  jobs::Record core;        // as the core last said
  WallTime started_at = 0;  // the first time
  WallTime ended_at = 0;
  int exit_status = kNoExitStatus;
  std::string note;                           // why it failed, was refused, waits: for people
  std::vector<std::uint32_t> gpu_order = {};  // of the GPUs that it names, if changed; empty: as the document says
};

struct StoredJob : Progress {
  jobs::JobSpec spec;  // the request as it is now; `order`, `priority`, `capped` and `held` as they are in `core`
  std::string name;
  std::string command;  // as a person types it into a shell; its first kMaxCommandBytes
  std::string log;      // the file that its output goes to
  std::string token;    // the client's, by which it submits again without doubling; empty: none
  WallTime submitted_at = 0;
  WallTime begin_at = 0;             // it does not start before; 0: at once
  double gpu_seconds = 0;            // that its programs have had
  std::uint64_t peak_memory = 0;     // bytes that they had allocated on one GPU at once, at most
  std::uint64_t document_bytes = 0;  // only from unfinished()
};

// ---- changes ----------------------------------------------------------------------------------------------

// `document`: the submission in full, as the daemon wants to have it back (JSON); the store does not look into it. It
// is not kept of a job that is done, and neither are the job's dependencies.
struct Insert {
  StoredJob job;
  std::shared_ptr<const std::string> document;  // the elements of an array have one together; null: empty

  std::string_view text() const { return document ? std::string_view(*document) : std::string_view(""); }
};
// The facts of a job that change after its Insert, all of them, as they are now. Of a job that is not there: nothing
// happens.
struct Update : Progress {
  jobs::Request request;  // of `spec`
};
// GPU time that a job's programs have had since the last one. Of a job that is not there: nothing happens.
struct AddToJob {
  JobId job;
  double gpu_seconds = 0;
  std::uint64_t peak_memory = 0;
};
// GPU time that a user has had until `at`, for the fair order to go on with.
struct PutUsage {
  std::uint32_t uid = 0;
  std::uint64_t gpu_microseconds = 0;
  WallTime at = 0;
};
// Anything else that the daemon wants to find again: drained GPUs, users' limits. An empty value removes it.
struct PutValue {
  std::string key;
  std::string value;
};
// Removes jobs that ended before this, the oldest first, and at most `at_most` at a time. So a commit stays short, and
// fits into the bytes that are reserved on a full disk (kReserveBytes). `uid`: only that user's jobs. A job that an
// unfinished job comes after (an array: all of its elements) stays until that job is done. A restarted daemon asks for
// its fate again.
struct Prune {
  WallTime ended_before = 0;
  std::uint32_t at_most = 128;
  std::optional<std::uint32_t> uid = {};
};

using Change = std::variant<Insert, Update, AddToJob, PutUsage, PutValue, Prune, AddToLedger, RollUpLedger>;

// One for each change, in order.
struct Applied {
  bool done = true;            // false: an Insert whose token was there, or an Update of a job that is not there
  std::optional<JobId> first;  // of such an Insert: the job that was submitted with this token
  std::uint32_t pruned = 0;    // by a RollUpLedger: rows that it has worked on
};

// ---- queries ----------------------------------------------------------------------------------------------

struct Query {
  std::optional<std::uint32_t> uid;
  enum class Which { kAll, kUnfinished, kDone } which = Which::kAll;
  std::optional<JobId> array;
  std::optional<std::uint32_t> array_index;  // one element of it
  enum class Order {
    kOldest,     // by id
    kNewest,     // by id, the highest first
    kLatestEnd,  // by the time of their end, the latest first; of jobs that are done
  } order = Order::kOldest;
  JobId beyond;               // the last job of the page before; 0: the first page
  WallTime beyond_ended = 0;  // and when it ended, for kLatestEnd: the job itself may be gone
  // Of kDone only: those that have ended since then, and in one of these ways (empty: in any).
  WallTime ended_since = 0;
  std::vector<jobs::Outcome> outcomes = {};
  std::uint32_t at_most = 100;
};

struct Page {
  std::vector<StoredJob> jobs;  // without their dependencies (`spec.after`)
  bool more = false;            // there is another page beyond the last of these
};

struct Usage {
  std::uint32_t uid = 0;
  std::uint64_t gpu_microseconds = 0;
  WallTime at = 0;
};

class JobStore {
 public:
  virtual ~JobStore() = default;

  // All of it or nothing, durably. kExists: an Insert has the id of a job that is there. kInvalid: a text is longer
  // than the limits above. kExhausted: no room on the disk. kUnavailable: it cannot be written now.
  virtual Result<std::vector<Applied>> commit(const std::vector<Change>& changes) = 0;

  // No job has had this id or a higher one.
  virtual Result<JobId> next_id() const = 0;

  virtual Result<StoredJob> find(JobId job) const = 0;        // with its dependencies; kNotFound
  virtual Result<std::string> document(JobId job) const = 0;  // kNotFound; also of a job that is done
  virtual Result<std::optional<JobId>> find_token(std::uint32_t uid, std::string_view token) const = 0;
  virtual Result<Page> page(const Query& query) const = 0;

  // All jobs that are not done, with their dependencies, in the order in which the core hears of them (by id). A
  // dependency that is done already has its `fate`, as far as that is known.
  virtual Result<std::vector<StoredJob>> unfinished() const = 0;

  // The fate of a dependency now: kPending while it is neither met nor broken. kNotFound: there is no such job.
  virtual Result<jobs::Dependency::Fate> fate(const jobs::Dependency& dependency) const = 0;

  // kExhausted: the disk has too little room for a document of `bytes`. Asked first, so that new jobs are refused
  // before a disk is full. Asks the file system: not for the loop.
  virtual Status room_for(std::uint64_t bytes) const = 0;

  // Users with more than `most` jobs that are done, and how many more.
  virtual Result<std::map<std::uint32_t, std::uint64_t>> with_more_done_than(std::uint64_t most) const = 0;

  // Takes as long as reading all rows of that time, and delays no other reader.
  virtual Result<LedgerReport> report(const LedgerQuery& query) const = 0;

  virtual Result<std::vector<Usage>> usage() const = 0;
  virtual Result<std::map<std::string, std::string>> values() const = 0;
};

}  // namespace gpumux::jobs::store

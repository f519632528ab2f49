// SPDX-License-Identifier: Apache-2.0
// The job store in a SQLite file, with a write-ahead log; docs/decisions/0012-jobs-in-sqlite.md says why.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jobs/store/job_store.h"

namespace gpumux::jobs::store {

// The length of the log, in pages of 4 KiB, at which it is folded into the database. Folding costs a second sync, so it
// is not done at every commit. A longer log makes reading slower.
inline constexpr std::uint32_t kCheckpointPages = 4000;

// The bytes reserved for commits on a full disk, in the database and in the log. The largest commit that the queue
// hands in then changes 128 jobs, and each of them touches some six pages of 4 KiB.
inline constexpr std::uint64_t kReserveBytes = 4u << 20;
// New documents are refused while less than this is free on the disk. It covers the log's growth between two
// checkpoints, and other programs' writes in the time until a person looks.
inline constexpr std::uint64_t kLeastFreeBytes = 64u << 20;

struct SqliteOptions {
  std::string path;  // its folder exists; SQLite makes two more files: path-wal and path-shm
  std::string vfs;   // SQLite's name of the file system layer; empty: the system's. Tests pull the plug there
  std::uint32_t checkpoint_pages = kCheckpointPages;
  std::uint64_t reserve_bytes = kReserveBytes;
  std::uint64_t least_free_bytes = kLeastFreeBytes;
};

// The loss by a damaged file.
struct Damage {
  std::string why;       // what was found first
  std::string moved_to;  // the damaged file
  std::uint64_t jobs_kept = 0;
  std::vector<JobId> jobs_lost;  // those of which another table or an index has the id
  std::string lost;              // all of it, for people
};

// Opens or makes the file, and brings it to this version's form. Readable by the owner alone (mode 0600): documents
// hold environments. kUnsupported: a newer gpumux has written it. kInvalid: another program's database.
//
// A damaged file is put aside, and the rows that can be read from it go into a new one: `damage` is set then. Reads the
// whole file to know.
Result<std::unique_ptr<JobStore>> open_sqlite_store(const SqliteOptions& options,
                                                    std::optional<Damage>* damage = nullptr);

// The SQL that follows "SELECT ... FROM jobs" for a page. ?1 `beyond`, ?2 one more than `at_most`, ?3 `uid`, ?4
// `array`, ?5 `array_index`, ?6 `beyond_ended`, as far as they are set. For the test that asks SQLite for its plan.
std::string page_of(const Query& query);

}  // namespace gpumux::jobs::store

// SPDX-License-Identifier: Apache-2.0
// The job store in a SQLite file, with a write-ahead log; docs/decisions/0012-jobs-in-sqlite.md says why.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/job_store.h"

namespace gpumux::store {

// Of the log, in pages of 4 KiB, before it is folded into the database: that costs a second sync, so not at every
// commit; and reading becomes slower with a longer log.
inline constexpr std::uint32_t kCheckpointPages = 4000;

struct SqliteOptions {
  std::string path;  // its folder is there; two more files appear beside it: path-wal and path-shm
  std::string vfs;   // SQLite's name of the file system layer; empty: the system's. Tests pull the plug there
  std::uint32_t checkpoint_pages = kCheckpointPages;
};

// Opens or makes the file, and brings it to this version's form. Readable by the owner alone (mode 0600): documents
// hold environments. kUnsupported: a newer gpumux has written it. kInvalid: not a job store, or damaged.
Result<std::unique_ptr<JobStore>> open_sqlite_store(const SqliteOptions& options);

}  // namespace gpumux::store

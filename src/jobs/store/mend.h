// SPDX-License-Identifier: Apache-2.0
// A job store's file that is damaged: finding out, and making a new file of the rows that can be read.
//
// The files and the order of the steps. A crash after any of them loses nothing, for each may be done again:
//   1. PATH.mending gets the rows, in one transaction. It is without a log of its own.
//   2. It is renamed to PATH.mended: all rows are there, on the disk.
//   3. PATH-wal and PATH get the names PATH.damaged-N-wal and PATH.damaged-N. N is the first number that is free.
//   4. PATH.mended is renamed to PATH.
// finish_mending() does steps 3 and 4, and every opening begins with it.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <string>

#include "jobs/store/sqlite_store.h"

namespace gpumux::jobs::store {

// Whether SQLite says with this code that the file is damaged, not that it cannot be used now.
bool is_damage(int sqlite_code);

// The first thing that is wrong with the file, empty: nothing is. SQLite's own check, of any version. Reads all of it:
// 1.8 s for 300,000 jobs and 400,000 rows of the ledger (114 MiB, in memory, half a processor).
std::string find_damage(SQLite::Database& db);
// The same for values that SQLite cannot know to be wrong. Of the newest version.
std::string find_unsound(SQLite::Database& db);

// Steps 1 to 4. `why`: what was found. An error leaves the damaged file in its place.
Result<Damage> mend(const SqliteOptions& options, const std::string& why);

// Steps 3 and 4, if there is a file PATH.mended. The new name of the damaged file; empty: there was nothing to do.
Result<std::string> finish_mending(const std::string& path);

}  // namespace gpumux::jobs::store

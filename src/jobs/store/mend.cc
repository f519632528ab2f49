// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/mend.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include "jobs/store/job_row.h"
#include "jobs/store/schema.h"
#include "os/durable_file.h"

namespace gpumux::jobs::store {
namespace {

// Ranges of keys that may fail to be read. Each costs a few pages, so that a file that is damaged all over takes
// seconds. A damaged page of rows takes about 100.
constexpr int kMostFailures = 20'000;
// A row takes more bytes than this. A damaged file may lead in a circle: reading ends after as many rows as fit. Rows
// that come out of order are taken all the same.
constexpr std::int64_t kLeastRowBytes = 8;
// JavaScript's numbers are exact up to here, and it shows ids of jobs.
constexpr std::int64_t kMostId = std::int64_t{1} << 53;
// New ids begin this far behind the last one that is seen if the counter is lost. A guess: the last ones may be lost.
constexpr std::int64_t kIdGap = 1000;
// As many lost jobs have their ids in the log.
constexpr std::size_t kMostListed = 20;

// Rows that the daemon can use. The numbers are those of jobs/core/job.h, and of the types in StoredJob. Another state
// or outcome needs a new version of the file: an earlier gpumux would take its rows for damaged.
static_assert(jobs::JobState::kDone == jobs::JobState{8} && jobs::kOutcomes.back() == jobs::Outcome{6});
struct Rule {
  const char* table;
  const char* holds;
};
constexpr std::array kRules{
    Rule{"jobs",
         "id BETWEEN 1 AND 9007199254740992 AND uid BETWEEN 0 AND 4294967295 AND gpu_count BETWEEN 0 AND 4294967295 "
         "AND time_limit >= 0 AND on_limit IN (0, 1) AND exclusive IN (0, 1) AND requeue IN (0, 1) AND "
         "array_index BETWEEN 0 AND 4294967295 AND array_limit BETWEEN 0 AND 4294967295 AND state BETWEEN 0 AND 8 AND "
         "outcome BETWEEN 0 AND 6 AND attempt BETWEEN 0 AND 4294967295 AND "
         "priority BETWEEN -2147483648 AND 2147483647 AND capped BETWEEN -2147483648 AND 2147483647 AND "
         "held IN (0, 1) AND ran >= 0 AND submitted_at >= 0 AND started_at >= 0 AND ended_at >= 0 AND begin_at >= 0 "
         "AND typeof(gpu_count) = 'integer' AND typeof(time_limit) = 'integer' AND typeof(ran) = 'integer'"},
    Rule{"dependencies", "target > 0 AND whole_array IN (0, 1) AND need IN (0, 1) AND fate BETWEEN 0 AND 2"},
    Rule{"usage", "uid BETWEEN 0 AND 4294967295 AND gpu_microseconds >= 0 AND at >= 0"},
    Rule{"counters", "value BETWEEN 0 AND 9007199254740992"},
    Rule{"ledger", "start BETWEEN 0 AND 9007199254 AND uid BETWEEN -1 AND 4294967295 AND switches >= 0"},
};

// `key`: a column of whole numbers in whose order the table's rows are stored; null: it has few rows. `where`: the
// columns before it.
struct Table {
  const char* name;
  const char* key;
  const char* where;
};
constexpr std::array kTables{
    Table{"counters", nullptr, "1"},
    Table{"kept", nullptr, "1"},
    Table{"usage", "uid", "1"},
    Table{"jobs", "id", "1"},
    Table{"documents", "job", "1"},
    Table{"dependencies", "job", "1"},
    Table{"ledger", "start", "is_day = 0"},
    Table{"ledger", "start", "is_day = 1"},
};

std::string joined(const std::vector<std::string>& columns) {
  std::string text;
  for (const std::string& column : columns) text += (text.empty() ? "" : ", ") + column;
  return text;
}

std::vector<std::string> columns_of(SQLite::Database& db, const std::string& table) {
  std::vector<std::string> columns;
  SQLite::Statement select(db, "SELECT name FROM pragma_table_info('" + table + "')");
  while (select.executeStep()) columns.push_back(select.getColumn(0).getString());
  return columns;
}

class Statement {
 public:
  Statement(sqlite3* db, const std::string& sql) {
    if (const int code = sqlite3_prepare_v2(db, sql.c_str(), -1, &statement_, nullptr); code != SQLITE_OK)
      throw SQLite::Exception(db, code);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  sqlite3_stmt* get() const { return statement_; }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

// Copies the rows of one table that can be read.
class Copy {
 public:
  // The new file's error, not the damaged one's.
  struct Unwritable {
    SQLite::Exception why;
  };

  Copy(SQLite::Database& from, SQLite::Database& to, const Table& table, std::int64_t most_rows)
      : from_(from.getHandle()), to_(to.getHandle()), table_(table), rows_left_(most_rows) {
    const std::vector<std::string> there = columns_of(from, table.name);
    for (const std::string& column : columns_of(to, table.name)) {
      if (std::find(there.begin(), there.end(), column) != there.end()) columns_.push_back(column);
    }
    if (columns_.empty()) throw SQLite::Exception("no such table", SQLITE_CORRUPT);
    std::string places;
    for (std::size_t i = 0; i < columns_.size(); ++i) places += i == 0 ? "?" : ",?";
    // A row may come twice.
    insert_.emplace(to_, std::string("INSERT INTO ") + table.name + " (" + joined(columns_) + ") VALUES (" + places +
                             ") ON CONFLICT DO NOTHING");
  }

  // Whether all rows could be read, and none of them can be wrong for all that is known.
  bool all() {
    if (table_.key == nullptr) {
      std::int64_t ignored = 0;
      if (!scan(0, 0, false, ignored)) {
        is_whole_ = false;
        scan(0, 0, true, ignored);
      }
      return is_whole_;
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges{{INT64_MIN, INT64_MAX}};
    for (int failures = 0; !ranges.empty();) {
      auto [low, high] = ranges.back();
      ranges.pop_back();
      // From both ends towards the damage, and then into the halves of what is between.
      if (scan(low, high, false, low)) continue;
      is_whole_ = false;
      if (++failures > kMostFailures || low == high || scan(low, high, true, high) || low >= high) continue;
      const std::int64_t middle = low + static_cast<std::int64_t>((as_unsigned(high) - as_unsigned(low)) / 2);
      ranges.emplace_back(low, middle);
      ranges.emplace_back(middle + 1, high);
    }
    return is_whole_;
  }

 private:
  // Rows of a range of keys, in their order or from the last one.
  sqlite3_stmt* select_for(bool is_down) {
    std::optional<Statement>& select = selects_[is_down ? 1 : 0];
    if (select) return select->get();
    const bool has_key = table_.key != nullptr;
    const std::string key = has_key ? table_.key : "1";
    select.emplace(from_, "SELECT " + joined(columns_) + ", " + key + " FROM " + table_.name + " NOT INDEXED WHERE " +
                              table_.where + (has_key ? " AND " + key + " BETWEEN ?1 AND ?2" : "") + " ORDER BY " +
                              key + (is_down ? " DESC" : ""));
    return select->get();
  }

  // False: it came to damage. `last`: the key of the last row that was read.
  bool scan(std::int64_t low, std::int64_t high, bool is_down, std::int64_t& last) {
    try {
      sqlite3_stmt* const select = select_for(is_down);
      sqlite3_reset(select);
      if (table_.key != nullptr) {
        sqlite3_bind_int64(select, 1, low);
        sqlite3_bind_int64(select, 2, high);
      }
      const int columns = static_cast<int>(columns_.size());
      std::int64_t before = is_down ? INT64_MAX : INT64_MIN;
      for (int code = sqlite3_step(select); code != SQLITE_DONE; code = sqlite3_step(select)) {
        if (code != SQLITE_ROW) return check(code);
        if (--rows_left_ < 0) return false;
        const std::int64_t key = table_.key != nullptr ? sqlite3_column_int64(select, columns) : 0;
        if (table_.key != nullptr) {
          if (is_down ? key > before : key < before) is_whole_ = false;
          last = before = key;
        }
        put(select);
      }
      return true;
    } catch (const SQLite::Exception& e) {
      return check(e.getErrorCode());
    }
  }

  bool check(int code) const {
    if (!is_damage(code)) throw SQLite::Exception(from_, code);
    return false;
  }

  void put(sqlite3_stmt* row) {
    sqlite3_stmt* const insert = insert_->get();
    for (int i = 0; i < static_cast<int>(columns_.size()); ++i)
      sqlite3_bind_value(insert, i + 1, sqlite3_column_value(row, i));
    const int code = sqlite3_step(insert);
    sqlite3_reset(insert);
    if (code == SQLITE_DONE) return;
    // A value is null where it must not.
    if ((code & 0xff) != SQLITE_CONSTRAINT && (code & 0xff) != SQLITE_MISMATCH)
      throw Unwritable{SQLite::Exception(to_, code)};
    is_whole_ = false;
  }

  sqlite3* const from_;
  sqlite3* const to_;
  const Table& table_;
  std::int64_t rows_left_;
  bool is_whole_ = true;
  std::vector<std::string> columns_;
  std::array<std::optional<Statement>, 2> selects_;
  std::optional<Statement> insert_;
};

// Every id of a job that is anywhere in the damaged file, as far as it can be read.
std::set<std::int64_t> ids_anywhere(SQLite::Database& from, std::int64_t most_rows) {
  std::set<std::int64_t> ids;
  for (const char* column : {"id FROM jobs INDEXED BY jobs_by_user", "id FROM jobs NOT INDEXED", "job FROM documents",
                             "job FROM dependencies", "target FROM dependencies"}) {
    std::int64_t left = most_rows;
    try {
      SQLite::Statement select(from, std::string("SELECT ") + column);
      while (select.executeStep() && --left > 0) {
        const std::int64_t id = select.getColumn(0).getInt64();
        if (id > 0 && id <= kMostId) ids.insert(id);
      }
    } catch (const SQLite::Exception&) {
      // The others may have it.
    }
  }
  return ids;
}

std::set<std::int64_t> ids_of(SQLite::Database& db, const std::string& column) {
  std::set<std::int64_t> ids;
  SQLite::Statement select(db, "SELECT " + column);
  while (select.executeStep()) ids.insert(select.getColumn(0).getInt64());
  return ids;
}

// Brings the rows into agreement with each other.
void settle(SQLite::Database& from, SQLite::Database& to) {
  try {
    const auto there = columns_of(from, "jobs");
    if (std::find(there.begin(), there.end(), "capped") == there.end()) to.exec("UPDATE jobs SET capped = priority");
  } catch (const SQLite::Exception&) {
    // It has no jobs.
  }
  to.exec(R"(
DELETE FROM documents WHERE job NOT IN (SELECT id FROM jobs WHERE state <> 8);
DELETE FROM dependencies WHERE job NOT IN (SELECT id FROM jobs WHERE state <> 8);
UPDATE dependencies SET needed = fate = 0;
)");
}

std::string list_of(const std::vector<JobId>& ids) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ids.size(), kMostListed); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ids[i].value);
  if (ids.size() > kMostListed) text += " and " + std::to_string(ids.size() - kMostListed) + " more";
  return text;
}

void add_line(std::string& lost, const std::string& what) { lost += (lost.empty() ? "" : "; ") + what; }

// Copies what can be read from `from`, which may be empty, into the new file.
void fill(SQLite::Database& from, SQLite::Database& to, Damage& damage) {
  std::int64_t most_rows = 0;
  try {
    most_rows = from.execAndGet("PRAGMA page_count").getInt64() * from.execAndGet("PRAGMA page_size").getInt64() /
                kLeastRowBytes;
  } catch (const SQLite::Exception&) {
    // Then no row can be read.
  }
  SQLite::Transaction transaction(to);
  to.exec("PRAGMA application_id = " + std::to_string(kApplicationId));
  for (const char* step : kSchema) to.exec(step);
  to.exec("PRAGMA user_version = " + std::to_string(kSchema.size()));
  to.exec("DELETE FROM counters");
  std::vector<std::string> incomplete;
  for (const Table& table : kTables) {
    bool is_whole = false;
    try {
      is_whole = Copy(from, to, table, most_rows).all();
    } catch (const SQLite::Exception& e) {
      if (!is_damage(e.getErrorCode())) throw;
    }
    if (!is_whole && (incomplete.empty() || incomplete.back() != table.name)) incomplete.emplace_back(table.name);
  }
  std::set<std::int64_t> ids = ids_anywhere(from, most_rows);
  ids.merge(ids_of(to, "id FROM jobs WHERE id BETWEEN 1 AND " + std::to_string(kMostId)));
  for (const Rule& rule : kRules) {
    const int unsound = to.exec(std::string("DELETE FROM ") + rule.table + " WHERE (" + rule.holds + ") IS NOT TRUE");
    if (unsound > 0 && std::find(incomplete.begin(), incomplete.end(), rule.table) == incomplete.end())
      incomplete.emplace_back(rule.table);
  }
  settle(from, to);
  const auto documents =
      to.execAndGet("SELECT count(*) FROM jobs WHERE state < 2 AND id NOT IN (SELECT job FROM documents)").getInt64();

  const std::int64_t seen = ids.empty() ? 0 : *ids.rbegin();
  const bool has_counter = to.execAndGet("SELECT count(*) FROM counters WHERE name = 'last_id'").getInt() != 0;
  to.exec("INSERT OR IGNORE INTO counters VALUES ('fence', 0), ('last_id', " + std::to_string(seen + kIdGap) + ")");
  if (has_counter) {
    to.exec("UPDATE counters SET value = max(value, (SELECT coalesce(max(id), 0) FROM jobs)) WHERE name = 'last_id'");
  }
  const std::int64_t last = to.execAndGet("SELECT value FROM counters WHERE name = 'last_id'").getInt64();
  const std::set<std::int64_t> kept = ids_of(to, "id FROM jobs");
  for (const std::int64_t id : ids) {
    if (id <= last && !kept.contains(id)) damage.jobs_lost.push_back(JobId{as_unsigned(id)});
  }
  damage.jobs_kept = kept.size();
  transaction.commit();

  if (!damage.jobs_lost.empty()) add_line(damage.lost, "jobs " + list_of(damage.jobs_lost));
  if (documents > 0) add_line(damage.lost, "the descriptions of " + std::to_string(documents) + " jobs that wait");
  for (const std::string& table : incomplete) {
    if (table != "jobs" || damage.jobs_lost.empty()) add_line(damage.lost, "rows of the table " + table);
  }
  if (damage.lost.empty()) damage.lost = "nothing that is known";
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

Status sync_folder(const std::string& path) {
  const std::string folder = folder_of(path);
  const auto opened = os::open_directory(folder.empty() ? "." : folder);
  if (!opened) return tl::unexpected(opened.error());
  if (::fsync(opened->get()) != 0) return base::fail_errno(errno, "cannot sync " + folder);
  return {};
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

Status move(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return base::fail_errno(errno, "cannot rename " + from + " to " + to);
  return {};
}

// The file and those that SQLite makes next to it.
Status remove_database(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    if (::unlink((path + suffix).c_str()) != 0 && errno != ENOENT)
      return base::fail_errno(errno, "cannot remove " + path + suffix);
  }
  return {};
}

}  // namespace

bool is_damage(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_ERROR:  // a table or a column is missing, or is there twice
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG: return true;
    default: return false;
  }
}

std::string find_damage(SQLite::Database& db) {
  const std::string found = db.execAndGet("PRAGMA integrity_check(1)").getString();
  return found == "ok" ? "" : found;
}

std::string find_unsound(SQLite::Database& db) {
  for (const Rule& rule : kRules) {
    SQLite::Statement select(
        db, std::string("SELECT 1 FROM ") + rule.table + " WHERE (" + rule.holds + ") IS NOT TRUE LIMIT 1");
    if (select.executeStep()) return std::string("a row of the table ") + rule.table + " has values that cannot be";
  }
  const std::string last_id = "(SELECT value FROM counters WHERE name = 'last_id')";
  if (db.execAndGet("SELECT " + last_id + " IS NULL OR " + last_id + " < (SELECT max(id) FROM jobs)").getInt() != 0)
    return "the last job's number is lost";
  const char* const kCounts = "(SELECT uid, count(*) AS jobs FROM jobs WHERE state = 8 GROUP BY uid)";
  for (const std::string& tables :
       {std::string(kCounts) + " a LEFT JOIN done b", "done a LEFT JOIN " + std::string(kCounts) + " b"}) {
    SQLite::Statement select(db, "SELECT 1 FROM " + tables + " ON a.uid = b.uid WHERE a.jobs IS NOT b.jobs LIMIT 1");
    if (select.executeStep()) return "the number of a user's jobs that are done is wrong";
  }
  return "";
}

Result<std::string> finish_mending(const std::string& path) {
  const std::string mended = path + ".mended";
  if (!is_there(mended)) return std::string();
  int number = 1;
  while (is_there(path + ".damaged-" + std::to_string(number))) ++number;
  const std::string damaged = path + ".damaged-" + std::to_string(number);
  // The log goes first: it must not be there when the new file gets this name.
  for (const char* suffix : {"-wal", ""}) {
    if (is_there(path + suffix)) GPUMUX_TRY(move(path + suffix, damaged + suffix));
  }
  if (::unlink((path + "-shm").c_str()) != 0 && errno != ENOENT)
    return base::fail_errno(errno, "cannot remove " + path + "-shm");
  GPUMUX_TRY(sync_folder(path));
  GPUMUX_TRY(move(mended, path));
  GPUMUX_TRY(sync_folder(path));
  return damaged;
}

Result<Damage> mend(const SqliteOptions& options, const std::string& why) {
  const std::string part = options.path + ".mending";
  Damage damage;
  damage.why = why;
  GPUMUX_TRY(remove_database(part));
  const int fd = ::open(part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return base::fail_errno(errno, "cannot create " + part);
  ::close(fd);
  std::string failed;
  try {
    SQLite::Database from(options.path, SQLite::OPEN_READWRITE, 0, options.vfs);
    // A table or an index whose statement is damaged then hides no others.
    from.exec("PRAGMA writable_schema = ON");
    SQLite::Database to(part, SQLite::OPEN_READWRITE, 0, options.vfs);
    to.exec("PRAGMA synchronous = FULL");
    fill(from, to, damage);
  } catch (const Copy::Unwritable& e) {
    failed = e.why.what();
  } catch (const SQLite::Exception& e) {
    failed = e.what();
  }
  if (!failed.empty()) {
    static_cast<void>(remove_database(part));
    return base::fail(base::Code::kUnavailable,
                      options.path + " is damaged (" + why + "), and no new file could be made of it: " + failed);
  }
  GPUMUX_TRY(move(part, options.path + ".mended"));
  GPUMUX_TRY(sync_folder(options.path));
  auto moved_to = finish_mending(options.path);
  if (!moved_to) return tl::unexpected(moved_to.error());
  damage.moved_to = std::move(*moved_to);
  return damage;
}

}  // namespace gpumux::jobs::store

// SPDX-License-Identifier: Apache-2.0
// The job store in a SQLite file.
//
// Two connections: one writes, one reads. With a write-ahead log they do not wait for each other. A reader sees the
// last commit while the next one is on its way to the disk. Each has its mutex, for a connection's statements are kept
// prepared and belong to one caller at a time.
//
// A commit that fails leaves nothing. If it failed while its log was being synced, though, its pages may stand in the
// log file complete. A crash would bring them back. So after a failure a small commit of our own (the counter `fence`)
// is written over them; until that has succeeded nothing else is committed.
//
// On a full disk nothing can grow: not the log, by a commit, and not the database, by a page that splits. Nor can the
// database grow by the pages that the log holds for it. So all of it is grown before:
//   - The database's file is as long as its pages in the log need it, before they are written there. So the log can
//     always be folded into it, and start from its beginning.
//   - The table `reserve` has one row of kReserveBytes. Writing it makes the log as long, too.
// A commit that adds no job and nothing to the ledger may find the disk full. It then starts the log from its beginning
// and frees that row's pages. Nothing is added before the row is there again. (A file system that copies on write can
// be too full all the same.)
#include "jobs/store/sqlite_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <unordered_map>

#include "base/units.h"
#include "jobs/store/change_writer.h"
#include "jobs/store/checks.h"
#include "jobs/store/job_row.h"
#include "jobs/store/ledger_reader.h"
#include "jobs/store/mend.h"
#include "jobs/store/schema.h"

namespace gpumux::jobs::store {
namespace {

using base::Code;
using jobs::Dependency;
using jobs::JobState;

// Another process that has the file open (a person with sqlite3) is waited for so long.
constexpr int kBusyMilliseconds = 5000;
// One thread at a time uses either connection, which is seen to here: SQLite need not lock for each column.
int open_flags() { return SQLite::OPEN_READWRITE | SQLite::OPEN_NOMUTEX; }

// The database's file grows by this much at a time, and is up to this much longer than it need be.
constexpr int kGrowthBytes = 1 << 20;
// Of a job without its texts, of a row of the ledger, and of a dependency, in their tables and the indexes.
constexpr std::size_t kRowBytes = 512;
constexpr std::size_t kDependencyRowBytes = 64;

constexpr const char* kMostLogBytes = "67108864";  // the log shrinks to this after a burst

std::string path_of(const SqliteOptions& options) { return "job store " + options.path; }

tl::unexpected<base::Error> failed(const SQLite::Exception& e, const std::string& what) {
  const int code = e.getErrorCode();
  Code as = Code::kInternal;
  if (code == SQLITE_FULL) as = Code::kExhausted;
  if (code == SQLITE_CONSTRAINT) as = Code::kExists;
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) as = Code::kInvalid;
  if (code == SQLITE_IOERR || code == SQLITE_BUSY || code == SQLITE_LOCKED || code == SQLITE_READONLY ||
      code == SQLITE_CANTOPEN)
    as = Code::kUnavailable;
  return base::fail(as, what + ": " + e.what());
}

bool has_end(const Query& query) { return query.order == Query::Order::kLatestEnd && query.beyond != jobs::kNoJob; }

class SqliteStore final : public JobStore {
 public:
  explicit SqliteStore(const SqliteOptions& options)
      : options_(options),
        what_(path_of(options)),
        write_db_(options.path, open_flags(), kBusyMilliseconds, options.vfs),
        read_db_(open_for_reading(options)),
        writer_(write_db_) {
    // If there is no room for it now, the commit of the next document tries again.
    static_cast<void>(make_reserve());
  }

  Result<std::vector<Applied>> commit(const std::vector<Change>& changes) override {
    GPUMUX_TRY(check(changes));
    const bool adds = std::any_of(changes.begin(), changes.end(), [](const Change& change) {
      return std::holds_alternative<Insert>(change) || std::holds_alternative<AddToLedger>(change) ||
             std::holds_alternative<RollUpLedger>(change);
    });
    const std::lock_guard lock(write_mutex_);
    if (adds && !has_reserve_) GPUMUX_TRY(make_reserve());
    const Status grown = grow(changes);
    if (adds && !grown) return tl::unexpected(grown.error());
    auto applied = write(changes);
    const bool is_full = !applied && applied.error().code == Code::kExhausted;
    if (!is_full || adds) return applied;
    restart_log();
    return write(changes, has_reserve_);
  }

  Status room_for(std::uint64_t bytes) const override {
    // Into the log, then into the database.
    return check_free(options_.least_free_bytes + 2 * bytes);
  }

  Result<std::map<std::uint32_t, std::uint64_t>> with_more_done_than(std::uint64_t most) const override {
    return read([&]() -> Result<std::map<std::uint32_t, std::uint64_t>> {
      std::map<std::uint32_t, std::uint64_t> more;
      SQLite::Statement select(read_db_, "SELECT uid, jobs FROM done WHERE jobs > ?");
      select.bind(1, as_signed(most));
      while (select.executeStep()) {
        more[static_cast<std::uint32_t>(select.getColumn(0).getInt64())] =
            as_unsigned(select.getColumn(1).getInt64()) - most;
      }
      return more;
    });
  }

  Result<JobId> next_id() const override {
    return read([&]() -> Result<JobId> {
      SQLite::Statement query(read_db_, "SELECT value FROM counters WHERE name = 'last_id'");
      if (!query.executeStep()) return base::fail(Code::kInvalid, what_ + " has lost its counter of jobs");
      return JobId{as_unsigned(query.getColumn(0).getInt64()) + 1};
    });
  }

  Result<StoredJob> find(JobId id) const override {
    return read([&]() -> Result<StoredJob> {
      SelectJobs query(read_db_, "WHERE id = ?");
      query.bind(1, as_signed(id.value));
      std::optional<StoredJob> job = query.next();
      if (!job) return not_found(id);
      SQLite::Statement after(read_db_,
                              "SELECT target, whole_array, need, fate FROM dependencies WHERE job = ? ORDER BY place");
      after.bind(1, as_signed(id.value));
      while (after.executeStep()) job->spec.after.push_back(read_dependency(after, 0));
      return std::move(*job);
    });
  }

  Result<std::string> document(JobId id) const override {
    return read([&]() -> Result<std::string> {
      SQLite::Statement query(read_db_, "SELECT body FROM documents WHERE job = ?");
      query.bind(1, as_signed(id.value));
      if (!query.executeStep()) return not_found(id);
      return query.getColumn(0).getString();
    });
  }

  Result<std::optional<JobId>> find_token(std::uint32_t uid, std::string_view token) const override {
    return read([&]() -> Result<std::optional<JobId>> {
      SQLite::Statement query(read_db_, "SELECT id FROM jobs WHERE uid = ? AND token = ? AND token <> ''");
      query.bind(1, static_cast<std::int64_t>(uid));
      query.bind(2, std::string(token));
      if (!query.executeStep()) return std::nullopt;
      return JobId{as_unsigned(query.getColumn(0).getInt64())};
    });
  }

  Result<Page> page(const Query& query) const override {
    return read([&]() -> Result<Page> {
      const std::uint32_t at_most = std::clamp(query.at_most, 1u, kMaxPageJobs);
      SelectJobs select(read_db_, page_of(query));
      if (query.beyond != jobs::kNoJob) select.bind(1, as_signed(query.beyond.value));
      select.bind(2, static_cast<std::int64_t>(at_most) + 1);
      if (query.uid) select.bind(3, static_cast<std::int64_t>(*query.uid));
      if (query.array) select.bind(4, as_signed(query.array->value));
      if (query.array_index) select.bind(5, static_cast<std::int64_t>(*query.array_index));
      if (has_end(query)) select.bind(6, query.beyond_ended);
      if (query.ended_since != 0) select.bind(7, query.ended_since);
      Page page;
      while (auto job = select.next()) {
        page.more = page.jobs.size() == at_most;
        if (page.more) break;
        page.jobs.push_back(std::move(*job));
      }
      return page;
    });
  }

  Result<std::vector<StoredJob>> unfinished() const override {
    return read([&]() -> Result<std::vector<StoredJob>> {
      SQLite::Transaction one_moment(read_db_);
      std::vector<StoredJob> all;
      SelectJobs select(read_db_, "WHERE state <> 8 ORDER BY id");
      while (auto job = select.next()) all.push_back(std::move(*job));
      SQLite::Statement after(read_db_,
                              "SELECT d.job, d.target, d.whole_array, d.need, d.fate FROM jobs j JOIN dependencies d "
                              "ON d.job = j.id WHERE j.state <> 8 ORDER BY d.job, d.place");
      // Rows of a damaged file may come in any order.
      std::unordered_map<std::int64_t, StoredJob*> by_id;
      for (StoredJob& job : all) by_id[as_signed(job.spec.id.value)] = &job;
      while (after.executeStep()) {
        const auto job = by_id.find(after.getColumn(0).getInt64());
        if (job == by_id.end()) continue;
        Dependency dependency = read_dependency(after, 1);
        if (dependency.fate == Dependency::Fate::kPending)
          dependency.fate = known_fate(dependency).value_or(Dependency::Fate::kBroken);
        job->second->spec.after.push_back(dependency);
      }
      SQLite::Statement sizes(read_db_, "SELECT job, length(body) FROM documents ORDER BY job");
      while (sizes.executeStep()) {
        const auto job = by_id.find(sizes.getColumn(0).getInt64());
        if (job != by_id.end()) job->second->document_bytes = as_unsigned(sizes.getColumn(1).getInt64());
      }
      return all;
    });
  }

  Result<Dependency::Fate> fate(const Dependency& dependency) const override {
    return read([&]() -> Result<Dependency::Fate> {
      const std::optional<Dependency::Fate> fate = known_fate(dependency);
      if (!fate) return not_found(dependency.on);
      return *fate;
    });
  }

  // The answer of find_unsound().
  std::string unsound() { return find_unsound(write_db_); }

  Result<LedgerReport> report(const LedgerQuery& query) const override {
    try {
      SQLite::Database db = open_reader(options_);
      return read_report(db, query);
    } catch (const SQLite::Exception& e) {
      return failed(e, "cannot read the " + what_);
    }
  }

  Result<std::vector<Usage>> usage() const override {
    return read([&]() -> Result<std::vector<Usage>> {
      std::vector<Usage> all;
      SQLite::Statement select(read_db_, "SELECT uid, gpu_microseconds, at FROM usage ORDER BY uid");
      while (select.executeStep()) {
        all.push_back({static_cast<std::uint32_t>(select.getColumn(0).getInt64()),
                       as_unsigned(select.getColumn(1).getInt64()), select.getColumn(2).getInt64()});
      }
      return all;
    });
  }

  Result<std::map<std::string, std::string>> values() const override {
    return read([&]() -> Result<std::map<std::string, std::string>> {
      std::map<std::string, std::string> all;
      SQLite::Statement select(read_db_, "SELECT key, value FROM kept");
      while (select.executeStep()) all[select.getColumn(0).getString()] = select.getColumn(1).getString();
      return all;
    });
  }

 private:
  // The writing connection has made the file ready before the reading one looks at it.
  SQLite::Database open_for_reading(const SqliteOptions& options) {
    prepare(write_db_, options.checkpoint_pages);
    return open_reader(options);
  }

  static SQLite::Database open_reader(const SqliteOptions& options) {
    SQLite::Database db(options.path, open_flags(), kBusyMilliseconds, options.vfs);
    db.exec("PRAGMA query_only = ON");
    db.exec("PRAGMA temp_store = MEMORY");
    return db;
  }

  static void prepare(SQLite::Database& db, std::uint32_t checkpoint_pages) {
    db.exec("PRAGMA journal_mode = WAL");
    db.exec("PRAGMA synchronous = FULL");
    db.exec("PRAGMA temp_store = MEMORY");
    int growth = kGrowthBytes;
    sqlite3_file_control(db.getHandle(), "main", SQLITE_FCNTL_CHUNK_SIZE, &growth);
    db.exec("PRAGMA wal_autocheckpoint = " + std::to_string(checkpoint_pages));
    db.exec(std::string("PRAGMA journal_size_limit = ") + kMostLogBytes);
    migrate(db);
  }

  static void migrate(SQLite::Database& db) {
    SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
    const int version = db.execAndGet("PRAGMA user_version").getInt();
    const int newest = static_cast<int>(kSchema.size());
    if (version == newest) return;
    if (version == 0) db.exec("PRAGMA application_id = " + std::to_string(kApplicationId));
    for (int step = version; step < newest; ++step) db.exec(kSchema[static_cast<std::size_t>(step)]);
    db.exec("PRAGMA user_version = " + std::to_string(newest));
    transaction.commit();
  }

  // Makes the file long enough for what the changes add. Twice their bytes: pages are half full at worst.
  Status grow(const std::vector<Change>& changes) {
    sqlite3_int64 bytes = kGrowthBytes;
    for (const Change& change : changes) {
      if (std::holds_alternative<AddToLedger>(change)) bytes += static_cast<sqlite3_int64>(2 * kRowBytes);
      if (const auto* roll_up = std::get_if<RollUpLedger>(&change))
        bytes += static_cast<sqlite3_int64>(2 * kRowBytes * roll_up->at_most);
      const auto* insert = std::get_if<Insert>(&change);
      if (insert == nullptr) continue;
      const StoredJob& job = insert->job;
      bytes += static_cast<sqlite3_int64>(2 * (kRowBytes + insert->text().size() + job.name.size() + job.token.size() +
                                               job.log.size() + job.note.size() + job.command.size() +
                                               kDependencyRowBytes * job.spec.after.size()));
    }
    try {
      bytes +=
          write_db_.execAndGet("PRAGMA page_count").getInt64() * write_db_.execAndGet("PRAGMA page_size").getInt64();
      const int code = sqlite3_file_control(write_db_.getHandle(), "main", SQLITE_FCNTL_SIZE_HINT, &bytes);
      if (code != SQLITE_OK && code != SQLITE_NOTFOUND)
        return base::fail(Code::kExhausted, "the disk has no room for another job in the " + what_);
      return {};
    } catch (const SQLite::Exception& e) {
      return failed(e, "cannot read the " + what_);
    }
  }

  Result<std::vector<Applied>> write(const std::vector<Change>& changes, bool frees_reserve = false) {
    try {
      if (fence_wanted_) write_fence();
      SQLite::Transaction transaction(write_db_, SQLite::TransactionBehavior::IMMEDIATE);
      if (frees_reserve) write_db_.exec("DELETE FROM reserve");
      std::vector<Applied> applied;
      applied.reserve(changes.size());
      for (const Change& change : changes) {
        applied.push_back(std::visit([this](const auto& one) { return writer_.apply(one); }, change));
      }
      fence_wanted_ = true;
      transaction.commit();
      fence_wanted_ = false;
      if (frees_reserve) has_reserve_ = false;
      return applied;
    } catch (const SQLite::Exception& e) {
      const auto error = failed(e, "cannot write to the " + what_);
      after_failure();
      return error;
    }
  }

  Status check_free(std::uint64_t wanted) const {
    const std::string folder = options_.path.substr(0, options_.path.rfind('/') + 1);
    struct statvfs disk {};
    if (::statvfs(folder.empty() ? "." : folder.c_str(), &disk) != 0) return {};
    const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    if (free >= wanted) return {};
    return base::fail(Code::kExhausted, "the disk is nearly full: " + folder + " has " + base::format_bytes(free) +
                                            " free. New jobs are refused while less than " +
                                            base::format_bytes(wanted) + " is free: make room there");
  }

  Status make_reserve() {
    // A reserve that could not be written to its end fills the disk, too.
    GPUMUX_TRY(check_free(4 * options_.reserve_bytes));
    try {
      if (fence_wanted_) write_fence();
      SQLite::Transaction transaction(write_db_, SQLite::TransactionBehavior::IMMEDIATE);
      write_db_.exec("DELETE FROM reserve");
      write_db_.exec("INSERT INTO reserve VALUES (zeroblob(" + std::to_string(options_.reserve_bytes) + "))");
      fence_wanted_ = true;
      transaction.commit();
      fence_wanted_ = false;
      has_reserve_ = true;
      restart_log();  // into the database with it
      return {};
    } catch (const SQLite::Exception& e) {
      const auto error = failed(e, "cannot reserve room in the " + what_);
      after_failure();
      return error;
    }
  }

  // Folds the log into the database, so that the next commit is written at the log's beginning.
  void restart_log() {
    try {
      write_db_.exec("PRAGMA wal_checkpoint(RESTART)");
    } catch (const SQLite::Exception&) {
      // Then it goes on where it is.
    }
  }

  void write_fence() {
    write_db_.exec("UPDATE counters SET value = value + 1 WHERE name = 'fence'");
    fence_wanted_ = false;
  }

  void after_failure() {
    if (!fence_wanted_) return;
    try {
      write_fence();
    } catch (const SQLite::Exception&) {
      // The next commit tries again before it does anything.
    }
  }

  static Dependency read_dependency(SQLite::Statement& row, int at) {
    Dependency dependency;
    dependency.on = JobId{as_unsigned(row.getColumn(at).getInt64())};
    dependency.whole_array = row.getColumn(at + 1).getInt() != 0;
    dependency.need = static_cast<Dependency::Need>(row.getColumn(at + 2).getInt());
    dependency.fate = static_cast<Dependency::Fate>(row.getColumn(at + 3).getInt());
    return dependency;
  }

  std::optional<Dependency::Fate> known_fate(const Dependency& dependency) const {
    // One row for each state and outcome there is: these are few, however many elements an array has.
    SQLite::Statement select(read_db_, dependency.whole_array
                                           ? "SELECT DISTINCT state, outcome FROM jobs WHERE array = ? AND array <> 0"
                                           : "SELECT state, outcome FROM jobs WHERE id = ?");
    select.bind(1, as_signed(dependency.on.value));
    std::optional<Dependency::Fate> all;
    while (select.executeStep()) {
      const bool is_done = static_cast<JobState>(select.getColumn(0).getInt()) == JobState::kDone;
      const bool is_ok = static_cast<jobs::Outcome>(select.getColumn(1).getInt()) == jobs::Outcome::kOk;
      if (is_done && !is_ok && dependency.need == Dependency::Need::kOk) return Dependency::Fate::kBroken;
      if (!is_done || !all) all = is_done ? Dependency::Fate::kMet : Dependency::Fate::kPending;
    }
    return all;
  }

  tl::unexpected<base::Error> not_found(JobId job) const {
    return base::fail(Code::kNotFound, "there is no job " + std::to_string(job.value));
  }

  template <class Body>
  auto read(Body body) const -> decltype(body()) {
    const std::lock_guard lock(read_mutex_);
    try {
      return body();
    } catch (const SQLite::Exception& e) {
      return failed(e, "cannot read the " + what_);
    }
  }

  SqliteOptions options_;
  std::string what_;
  mutable std::mutex write_mutex_, read_mutex_;
  SQLite::Database write_db_;
  mutable SQLite::Database read_db_;
  ChangeWriter writer_;
  bool fence_wanted_ = false;  // the log may hold a commit that has failed
  bool has_reserve_ = false;
};

// Whether the file is a job store, or empty. A damaged number of its program does not make it another's.
bool is_ours(SQLite::Database& db) {
  if (db.execAndGet("PRAGMA application_id").getInt() == kApplicationId) return true;
  const int tables = db.execAndGet("SELECT count(*) FROM sqlite_master").getInt();
  const int ours =
      db.execAndGet("SELECT count(*) FROM sqlite_master WHERE name IN ('jobs_by_token', 'jobs_by_end')").getInt();
  return ours != 0 || (tables == 0 && db.execAndGet("PRAGMA user_version").getInt() == 0);
}

// The first thing that is wrong with the file; empty: nothing is.
Result<std::string> look_for_damage(const SqliteOptions& options) {
  SQLite::Database db(options.path, open_flags(), kBusyMilliseconds, options.vfs);
  if (!is_ours(db))
    return base::fail(Code::kInvalid, options.path + " is a database, but not a job store; move it away");
  const int version = db.execAndGet("PRAGMA user_version").getInt();
  if (version < 0) return "its version is " + std::to_string(version);
  if (version > static_cast<int>(kSchema.size()))
    return base::fail(Code::kUnsupported, "the " + path_of(options) + " is of version " + std::to_string(version) +
                                              ", written by a newer gpumux; this one knows versions up to " +
                                              std::to_string(kSchema.size()));
  return find_damage(db);
}

// Null, and `damage` says why: it is damaged.
Result<std::unique_ptr<JobStore>> open_sound(const SqliteOptions& options, std::string& damage) {
  try {
    auto found = look_for_damage(options);
    if (!found) return tl::unexpected(found.error());
    std::unique_ptr<SqliteStore> store;
    if (found->empty()) {
      store = std::make_unique<SqliteStore>(options);
      found = store->unsound();
    }
    if (found->empty()) return store;
    damage = std::move(*found);
    return nullptr;
  } catch (const SQLite::Exception& e) {
    if (!is_damage(e.getErrorCode())) return failed(e, "cannot open the " + path_of(options));
    damage = e.what();
    return nullptr;
  }
}

// Made by us, so that no other user can read it from the first moment: SQLite gives its two other files the same
// rights.
Status make_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return base::fail_errno(errno, "cannot open the job store " + path);
  ::close(fd);
  return {};
}

}  // namespace

// Each condition that is left out leaves SQLite free to take the index that has the order.
std::string page_of(const Query& query) {
  using Order = Query::Order;
  // Written out, not bound: only so can the partial indexes be used.
  std::string sql = query.which == Query::Which::kUnfinished ? "WHERE state <> 8"
                    : query.which == Query::Which::kDone     ? "WHERE state = 8"
                                                             : "WHERE 1";
  if (has_end(query)) {
    sql += " AND (ended_at, id) < (?6, ?1)";
  } else if (query.beyond != jobs::kNoJob) {
    sql += query.order == Order::kOldest ? " AND id > ?1" : " AND id < ?1";
  }
  if (query.uid) sql += " AND uid = ?3";
  if (query.array) sql += " AND array = ?4 AND array <> 0";
  if (query.array_index) sql += " AND array_index = ?5";
  if (query.ended_since != 0) sql += " AND ended_at >= ?7";
  std::string outcomes;
  for (const jobs::Outcome outcome : query.outcomes)
    outcomes += (outcomes.empty() ? "" : ",") + std::to_string(static_cast<int>(outcome));
  if (!outcomes.empty()) sql += " AND outcome IN (" + outcomes + ")";
  sql += query.order == Order::kOldest   ? " ORDER BY id"
         : query.order == Order::kNewest ? " ORDER BY id DESC"
                                         : " ORDER BY ended_at DESC, id DESC";
  return sql + " LIMIT ?2";
}

Result<std::unique_ptr<JobStore>> open_sqlite_store(const SqliteOptions& options, std::optional<Damage>* damage) {
  const auto finished = finish_mending(options.path);
  if (!finished) return tl::unexpected(finished.error());
  if (!finished->empty() && damage != nullptr) {
    damage->emplace();
    (*damage)->why = "an earlier daemon found it, and ended before it could say more";
    (*damage)->moved_to = *finished;
    (*damage)->lost = "not known";
  }
  GPUMUX_TRY(make_file(options.path));
  std::string why;
  auto store = open_sound(options, why);
  if (!store || *store) return store;
  auto mended = mend(options, why);
  if (!mended) return tl::unexpected(mended.error());
  if (damage != nullptr) *damage = std::move(*mended);
  store = open_sound(options, why);
  if (store && *store == nullptr)
    return base::fail(Code::kInvalid, "the " + path_of(options) + " is damaged again: " + why);
  return store;
}

}  // namespace gpumux::jobs::store

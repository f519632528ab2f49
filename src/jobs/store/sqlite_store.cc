// SPDX-License-Identifier: Apache-2.0
// The job store in a SQLite file.
//
// Two connections: one writes, one reads. With a write-ahead log they do not wait for each other: who reads sees the
// last commit while the next one is on its way to the disk. Each has its mutex, for a connection's statements are kept
// prepared and belong to one caller at a time.
//
// A commit that fails leaves nothing. If it failed while its log was being synced, though, its pages may stand in the
// log file complete, and would be found there after a crash. So after a failure a small commit of our own (the counter
// `fence`) is written over them; until that has succeeded nothing else is committed.
//
// On a full disk nothing can grow: neither the log, by a commit, nor the database, by a page that splits or by what the
// log holds for it. So all of it is grown before:
//   - The database's file is as long as its pages in the log need it, before they are written there. So the log can
//     always be folded into it, and start from its beginning.
//   - The table `reserve` has one row of kReserveBytes. Writing it makes the log as long, too.
// A commit without documents that finds the disk full starts the log from its beginning and frees that row's pages. No
// document is taken before the row is there again. (A file system that copies on write can be too full all the same.)
#include "jobs/store/sqlite_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "base/units.h"
#include "jobs/store/checks.h"
#include "jobs/store/schema.h"

namespace gpumux::store {
namespace {

using base::Code;
using jobs::Dependency;
using jobs::GpuSet;
using jobs::JobState;

// Another process that has the file open (a person with sqlite3) is waited for so long.
constexpr int kBusyMilliseconds = 5000;
// One thread at a time uses either connection, which is seen to here: SQLite need not lock for each column.
int open_flags() { return SQLite::OPEN_READWRITE | SQLite::OPEN_NOMUTEX; }

// Old jobs that one Prune looks at, 0.1 s: others may need them all, and then it goes on there the next time.
constexpr std::int64_t kMostLooked = 100'000;

// The database's file grows by so much at a time, and is so much longer than it need be.
constexpr int kGrowthBytes = 1 << 20;
// Of a job without its texts, and of a dependency, in their tables and the indexes.
constexpr std::size_t kRowBytes = 512;
constexpr std::size_t kDependencyRowBytes = 64;

constexpr const char* kMostLogBytes = "67108864";  // what a burst has let grow is given back

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

GpuSet gpu_set(const std::string& text) {
  GpuSet set;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const Result<std::uint64_t> index = base::parse_integer(text.substr(at, comma - at), 0, base::kMaxGpus - 1);
    if (index) set.insert(base::GpuIndex{static_cast<std::uint32_t>(*index)});
    at = comma + 1;
  }
  return set;
}

// SQLite's integers have a sign; ours that have none come back as they were.
std::int64_t as_signed(std::uint64_t value) { return static_cast<std::int64_t>(value); }
std::uint64_t as_unsigned(std::int64_t value) { return static_cast<std::uint64_t>(value); }

constexpr const char* kColumns =
    "id, uid, token, name, wanted, gpu_count, memory, time_limit, on_limit, exclusive, requeue, array, array_index, "
    "array_limit, state, outcome, attempt, given, ord, priority, held, ran, submitted_at, started_at, ended_at, "
    "exit_status, note, log, capped";

bool has_end(const Query& query) { return query.order == Query::Order::kLatestEnd && query.beyond != jobs::kNoJob; }

// A query whose rows are jobs, read straight from SQLite: lists have a hundred thousand of them with 27 columns each,
// and an object for each column costs as much as the reading.
class SelectJobs {
 public:
  // `rest`: what follows "SELECT ... FROM jobs".
  SelectJobs(const SQLite::Database& db, const std::string& rest) : db_(db.getHandle()) {
    const std::string sql = "SELECT " + std::string(kColumns) + " FROM jobs " + rest;
    check(sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement_, nullptr));
  }
  ~SelectJobs() { sqlite3_finalize(statement_); }
  SelectJobs(const SelectJobs&) = delete;
  SelectJobs& operator=(const SelectJobs&) = delete;

  void bind(int place, std::int64_t value) { check(sqlite3_bind_int64(statement_, place, value)); }
  std::optional<StoredJob> next() {
    const int code = sqlite3_step(statement_);
    if (code == SQLITE_ROW) return read();
    if (code != SQLITE_DONE) check(code);
    return std::nullopt;
  }

 private:
  void check(int code) const {
    if (code != SQLITE_OK) throw SQLite::Exception(db_, code);
  }
  StoredJob read() const {
    int at = 0;
    const auto next = [&] { return static_cast<std::int64_t>(sqlite3_column_int64(statement_, at++)); };
    const auto next_unsigned = [&] { return static_cast<std::uint32_t>(next()); };
    const auto next_text = [&] {
      const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, at));
      const int size = sqlite3_column_bytes(statement_, at++);
      return text == nullptr ? std::string() : std::string(text, static_cast<std::size_t>(size));
    };
    StoredJob job;
    job.spec.id = job.core.job = JobId{as_unsigned(next())};
    job.spec.uid = next_unsigned();
    job.token = next_text();
    job.name = next_text();
    job.spec.gpus = gpu_set(next_text());
    job.spec.gpu_count = next_unsigned();
    job.spec.memory = as_unsigned(next());
    job.spec.time_limit = base::Duration(next());
    job.spec.on_limit = static_cast<jobs::OnLimit>(next());
    job.spec.exclusive = next() != 0;
    job.spec.requeue = next() != 0;
    job.spec.array = JobId{as_unsigned(next())};
    job.spec.array_index = next_unsigned();
    job.spec.array_limit = next_unsigned();
    job.core.state = static_cast<JobState>(next());
    job.core.outcome = static_cast<jobs::Outcome>(next());
    job.core.attempt = next_unsigned();
    job.core.gpus = gpu_set(next_text());
    job.spec.order = job.core.order = as_unsigned(next());
    job.spec.priority = job.core.priority = static_cast<std::int32_t>(next());
    job.spec.held = job.core.held = next() != 0;
    job.core.ran = base::Duration(next());
    job.submitted_at = next();
    job.started_at = next();
    job.ended_at = next();
    job.exit_status = static_cast<int>(next());
    job.note = next_text();
    job.log = next_text();
    job.spec.capped = job.core.capped = static_cast<std::int32_t>(next());
    return job;
  }

  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
};

// A statement that is to be used again: reset when this goes, so that it holds no lock on what it read.
class Use {
 public:
  explicit Use(SQLite::Statement& statement) : statement_(statement) {}
  ~Use() {
    statement_.tryReset();
    statement_.clearBindings();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  SQLite::Statement* operator->() { return &statement_; }
  SQLite::Statement& operator*() { return statement_; }

 private:
  SQLite::Statement& statement_;
};

class Writer {
 public:
  explicit Writer(SQLite::Database& db)
      : insert_(db, "INSERT INTO jobs (" + std::string(kColumns) +
                        ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) "
                        "ON CONFLICT (uid, token) WHERE token <> '' DO NOTHING"),
        document_(db, "INSERT INTO documents (job, body) VALUES (?,?)"),
        dependency_(db,
                    "INSERT INTO dependencies (job, place, target, whole_array, need, fate, needed) "
                    "VALUES (?,?,?,?,?,?,?)"),
        token_(db, "SELECT id FROM jobs WHERE uid = ? AND token = ? AND token <> ''"),
        last_id_(db, "UPDATE counters SET value = max(value, ?) WHERE name = 'last_id'"),
        core_(
            db,
            "UPDATE jobs SET state = ?, outcome = ?, attempt = ?, given = ?, ord = ?, priority = ?, held = ?, ran = ?, "
            "capped = ? WHERE id = ?"),
        rest_(db,
              "UPDATE jobs SET started_at = coalesce(?, started_at), ended_at = coalesce(?, ended_at), "
              "exit_status = coalesce(?, exit_status), note = coalesce(?, note) WHERE id = ?"),
        usage_(db, "INSERT OR REPLACE INTO usage (uid, gpu_microseconds, at) VALUES (?,?,?)"),
        keep_(db, "INSERT OR REPLACE INTO kept (key, value) VALUES (?,?)"),
        drop_(db, "DELETE FROM kept WHERE key = ?"),
        old_(db,
             "SELECT ended_at, id, EXISTS (SELECT 1 FROM dependencies WHERE needed <> 0 AND target = jobs.id AND "
             "whole_array = 0) OR EXISTS (SELECT 1 FROM dependencies WHERE needed <> 0 AND target = jobs.array AND "
             "whole_array = 1) FROM jobs WHERE state = 8 AND (ended_at, id) > (?,?) AND ended_at < ? "
             "ORDER BY ended_at, id LIMIT ?"),
        users_old_(db,
                   "SELECT id FROM jobs WHERE state = 8 AND uid = ? AND ended_at < ? AND NOT EXISTS (SELECT 1 FROM "
                   "dependencies WHERE needed <> 0 AND target = jobs.id AND whole_array = 0) AND NOT EXISTS (SELECT 1 "
                   "FROM dependencies WHERE needed <> 0 AND target = jobs.array AND whole_array = 1) "
                   "ORDER BY ended_at, id LIMIT ?"),
        delete_job_(db, "DELETE FROM jobs WHERE id = ?"),
        delete_document_(db, "DELETE FROM documents WHERE job = ?"),
        delete_dependencies_(db, "DELETE FROM dependencies WHERE job = ?") {}

  Applied apply(const Insert& change) {
    const StoredJob& job = change.job;
    {
      Use insert(insert_);
      bind(*insert, job);
      if (insert->exec() == 0) return {false, find_token(job.spec.uid, job.token), 0};
    }
    const std::int64_t id = as_signed(job.spec.id.value);
    Use document(document_);
    document->bind(1, id);
    document->bindNoCopy(2, change.text().data(), static_cast<int>(change.text().size()));
    document->exec();
    int place = 0;
    for (const Dependency& one : job.spec.after) {
      Use dependency(dependency_);
      dependency->bind(1, id);
      dependency->bind(2, place++);
      dependency->bind(3, as_signed(one.on.value));
      dependency->bind(4, one.whole_array ? 1 : 0);
      dependency->bind(5, static_cast<int>(one.need));
      dependency->bind(6, static_cast<int>(one.fate));
      dependency->bind(7, is_needed(job, one) ? 1 : 0);
      dependency->exec();
    }
    Use last_id(last_id_);
    last_id->bind(1, id);
    last_id->exec();
    return {};
  }

  Applied apply(const Update& change) {
    bool there = true;
    if (change.core) {
      Use core(core_);
      core->bind(1, static_cast<int>(change.core->state));
      core->bind(2, static_cast<int>(change.core->outcome));
      core->bind(3, static_cast<std::int64_t>(change.core->attempt));
      core->bind(4, change.core->gpus.to_string());
      core->bind(5, as_signed(change.core->order));
      core->bind(6, change.core->priority);
      core->bind(7, change.core->held ? 1 : 0);
      core->bind(8, static_cast<std::int64_t>(change.core->ran.count()));
      core->bind(9, change.core->capped);
      core->bind(10, as_signed(change.job.value));
      // Before anything else is written: it frees pages.
      if (change.core->state == JobState::kDone) {
        for (SQLite::Statement* statement : {&delete_document_, &delete_dependencies_}) {
          Use one(*statement);
          one->bind(1, as_signed(change.job.value));
          one->exec();
        }
      }
      there = core->exec() > 0;
    }
    if (!change.core || change.started_at || change.ended_at || change.exit_status || change.note) {
      Use rest(rest_);
      if (change.started_at) rest->bind(1, *change.started_at);
      if (change.ended_at) rest->bind(2, *change.ended_at);
      if (change.exit_status) rest->bind(3, *change.exit_status);
      if (change.note) rest->bind(4, *change.note);
      rest->bind(5, as_signed(change.job.value));
      there = rest->exec() > 0;
    }
    return {there, {}, 0};
  }

  Applied apply(const PutUsage& change) {
    Use usage(usage_);
    usage->bind(1, static_cast<std::int64_t>(change.uid));
    usage->bind(2, as_signed(change.gpu_microseconds));
    usage->bind(3, change.at);
    usage->exec();
    return {};
  }

  Applied apply(const PutValue& change) {
    Use statement(change.value.empty() ? drop_ : keep_);
    statement->bind(1, change.key);
    if (!change.value.empty()) statement->bind(2, change.value);
    statement->exec();
    return {};
  }

  Applied apply(const Prune& change) {
    std::vector<std::int64_t> ids;
    std::int64_t looked = 0;
    if (change.uid) {
      Use old(users_old_);
      old->bind(1, static_cast<std::int64_t>(*change.uid));
      old->bind(2, change.ended_before);
      old->bind(3, static_cast<std::int64_t>(change.at_most));
      while (old->executeStep()) ids.push_back(old->getColumn(0).getInt64());
    } else {
      Use old(old_);
      old->bind(1, looked_to_.first);
      old->bind(2, looked_to_.second);
      old->bind(3, change.ended_before);
      old->bind(4, kMostLooked);
      for (; ids.size() < change.at_most && old->executeStep(); ++looked) {
        looked_to_ = {old->getColumn(0).getInt64(), old->getColumn(1).getInt64()};
        if (old->getColumn(2).getInt() == 0) ids.push_back(looked_to_.second);
      }
    }
    if (!change.uid && ids.size() < change.at_most && looked < kMostLooked) looked_to_ = {};
    for (const std::int64_t id : ids) {
      for (SQLite::Statement* statement : {&delete_job_, &delete_document_, &delete_dependencies_}) {
        Use remove(*statement);
        remove->bind(1, id);
        remove->exec();
      }
    }
    return {true, {}, static_cast<std::uint32_t>(ids.size())};
  }

 private:
  std::optional<JobId> find_token(std::uint32_t uid, const std::string& token) {
    Use find(token_);
    find->bind(1, static_cast<std::int64_t>(uid));
    find->bind(2, token);
    if (!find->executeStep()) return std::nullopt;
    return JobId{as_unsigned(find->getColumn(0).getInt64())};
  }

  static void bind(SQLite::Statement& insert, const StoredJob& job) {
    int at = 1;
    const auto put = [&](std::int64_t value) { insert.bind(at++, value); };
    const auto put_text = [&](const std::string& value) { insert.bind(at++, value); };
    put(as_signed(job.spec.id.value));
    put(job.spec.uid);
    put_text(job.token);
    put_text(job.name);
    put_text(job.spec.gpus.to_string());
    put(job.spec.gpu_count);
    put(as_signed(job.spec.memory));
    put(job.spec.time_limit.count());
    put(static_cast<int>(job.spec.on_limit));
    put(job.spec.exclusive ? 1 : 0);
    put(job.spec.requeue ? 1 : 0);
    put(as_signed(job.spec.array.value));
    put(job.spec.array_index);
    put(job.spec.array_limit);
    put(static_cast<int>(job.core.state));
    put(static_cast<int>(job.core.outcome));
    put(job.core.attempt);
    put_text(job.core.gpus.to_string());
    put(as_signed(job.core.order));
    put(job.core.priority);
    put(job.core.held ? 1 : 0);
    put(job.core.ran.count());
    put(job.submitted_at);
    put(job.started_at);
    put(job.ended_at);
    put(job.exit_status);
    put_text(job.note);
    put_text(job.log);
    put(job.core.capped);
  }

  SQLite::Statement insert_, document_, dependency_, token_, last_id_, core_, rest_, usage_, keep_, drop_, old_,
      users_old_, delete_job_, delete_document_, delete_dependencies_;
  std::pair<WallTime, std::int64_t> looked_to_;  // by Prune; from the beginning again when it is through
};

class SqliteStore final : public JobStore {
 public:
  explicit SqliteStore(const SqliteOptions& options)
      : options_(options),
        what_(path_of(options)),
        write_db_(options.path, open_flags(), kBusyMilliseconds, options.vfs),
        read_db_(open_for_reading(options)),
        writer_(write_db_) {
    // That there is no room for it now is seen again when a document comes.
    static_cast<void>(make_reserve());
  }

  Result<std::vector<Applied>> commit(const std::vector<Change>& changes) override {
    GPUMUX_TRY(check(changes));
    const bool has_documents = std::any_of(changes.begin(), changes.end(),
                                           [](const Change& change) { return std::holds_alternative<Insert>(change); });
    const std::lock_guard lock(write_mutex_);
    if (has_documents && !has_reserve_) GPUMUX_TRY(make_reserve());
    const Status grown = grow(changes);
    if (has_documents && !grown) return tl::unexpected(grown.error());
    auto applied = write(changes);
    const bool is_full = !applied && applied.error().code == Code::kExhausted;
    if (!is_full || has_documents) return applied;
    restart_log();
    return write(changes, has_reserve_);
  }

  Status room_for(std::uint64_t bytes) const override {
    // Into the log, then into the database.
    return check_free(options_.least_free_bytes + 2 * bytes);
  }

  Result<std::map<std::uint32_t, std::uint64_t>> with_more_done_than(std::uint64_t most) const override {
    return read<std::map<std::uint32_t, std::uint64_t>>([&]() -> Result<std::map<std::uint32_t, std::uint64_t>> {
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
    return read<JobId>([&]() -> Result<JobId> {
      SQLite::Statement query(read_db_, "SELECT value FROM counters WHERE name = 'last_id'");
      if (!query.executeStep()) return base::fail(Code::kInvalid, what_ + " has lost its counter of jobs");
      return JobId{as_unsigned(query.getColumn(0).getInt64()) + 1};
    });
  }

  Result<StoredJob> find(JobId id) const override {
    return read<StoredJob>([&]() -> Result<StoredJob> {
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
    return read<std::string>([&]() -> Result<std::string> {
      SQLite::Statement query(read_db_, "SELECT body FROM documents WHERE job = ?");
      query.bind(1, as_signed(id.value));
      if (!query.executeStep()) return not_found(id);
      return query.getColumn(0).getString();
    });
  }

  Result<std::optional<JobId>> find_token(std::uint32_t uid, std::string_view token) const override {
    return read<std::optional<JobId>>([&]() -> Result<std::optional<JobId>> {
      SQLite::Statement query(read_db_, "SELECT id FROM jobs WHERE uid = ? AND token = ? AND token <> ''");
      query.bind(1, static_cast<std::int64_t>(uid));
      query.bind(2, std::string(token));
      if (!query.executeStep()) return std::nullopt;
      return JobId{as_unsigned(query.getColumn(0).getInt64())};
    });
  }

  Result<Page> page(const Query& query) const override {
    return read<Page>([&]() -> Result<Page> {
      const std::uint32_t at_most = std::clamp(query.at_most, 1u, kMaxPageJobs);
      SelectJobs select(read_db_, page_of(query));
      if (query.beyond != jobs::kNoJob) select.bind(1, as_signed(query.beyond.value));
      select.bind(2, static_cast<std::int64_t>(at_most) + 1);
      if (query.uid) select.bind(3, static_cast<std::int64_t>(*query.uid));
      if (query.array) select.bind(4, as_signed(query.array->value));
      if (query.array_index) select.bind(5, static_cast<std::int64_t>(*query.array_index));
      if (has_end(query)) select.bind(6, query.beyond_ended);
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
    return read<std::vector<StoredJob>>([&]() -> Result<std::vector<StoredJob>> {
      SQLite::Transaction one_moment(read_db_);
      std::vector<StoredJob> all;
      SelectJobs select(read_db_, "WHERE state <> 8 ORDER BY id");
      while (auto job = select.next()) all.push_back(std::move(*job));
      SQLite::Statement after(read_db_,
                              "SELECT d.job, d.target, d.whole_array, d.need, d.fate FROM jobs j JOIN dependencies d "
                              "ON d.job = j.id WHERE j.state <> 8 ORDER BY d.job, d.place");
      auto job = all.begin();
      while (after.executeStep()) {
        const JobId id{as_unsigned(after.getColumn(0).getInt64())};
        while (job->spec.id != id) ++job;
        Dependency dependency = read_dependency(after, 1);
        if (dependency.fate == Dependency::Fate::kPending)
          dependency.fate = known_fate(dependency).value_or(Dependency::Fate::kBroken);
        job->spec.after.push_back(dependency);
      }
      SQLite::Statement sizes(read_db_, "SELECT job, length(body) FROM documents ORDER BY job");
      job = all.begin();
      while (sizes.executeStep()) {
        const JobId id{as_unsigned(sizes.getColumn(0).getInt64())};
        while (job != all.end() && job->spec.id < id) ++job;
        if (job != all.end() && job->spec.id == id) job->document_bytes = as_unsigned(sizes.getColumn(1).getInt64());
      }
      return all;
    });
  }

  Result<Dependency::Fate> fate(const Dependency& dependency) const override {
    return read<Dependency::Fate>([&]() -> Result<Dependency::Fate> {
      const std::optional<Dependency::Fate> fate = known_fate(dependency);
      if (!fate) return not_found(dependency.on);
      return *fate;
    });
  }

  Result<std::vector<Usage>> usage() const override {
    return read<std::vector<Usage>>([&]() -> Result<std::vector<Usage>> {
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
    return read<std::map<std::string, std::string>>([&]() -> Result<std::map<std::string, std::string>> {
      std::map<std::string, std::string> all;
      SQLite::Statement select(read_db_, "SELECT key, value FROM kept");
      while (select.executeStep()) all[select.getColumn(0).getString()] = select.getColumn(1).getString();
      return all;
    });
  }

 private:
  // The writing connection has made the file what it is to be before the reading one looks at it.
  SQLite::Database open_for_reading(const SqliteOptions& options) {
    prepare(write_db_, options.checkpoint_pages);
    SQLite::Database db(options.path, open_flags(), kBusyMilliseconds, options.vfs);
    db.exec("PRAGMA query_only = ON");
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
      const auto* insert = std::get_if<Insert>(&change);
      if (insert == nullptr) continue;
      const StoredJob& job = insert->job;
      bytes += static_cast<sqlite3_int64>(2 * (kRowBytes + insert->text().size() + job.name.size() + job.token.size() +
                                               job.log.size() + job.note.size() +
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
                                            " free, and new jobs are taken from " + base::format_bytes(wanted) +
                                            " on. Make room there, and hand the job in again");
  }

  Status make_reserve() {
    // What is written in vain fills the disk, too.
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
    // What each state and outcome there is means: there are few, however many elements an array has.
    SQLite::Statement select(read_db_, dependency.whole_array
                                           ? "SELECT DISTINCT state, outcome FROM jobs WHERE array = ? AND array <> 0"
                                           : "SELECT state, outcome FROM jobs WHERE id = ?");
    select.bind(1, as_signed(dependency.on.value));
    std::optional<Dependency::Fate> all;
    while (select.executeStep()) {
      const Dependency::Fate one = fate_of(dependency.need, static_cast<JobState>(select.getColumn(0).getInt()),
                                           static_cast<jobs::Outcome>(select.getColumn(1).getInt()));
      if (one == Dependency::Fate::kBroken) return one;
      if (!all || one == Dependency::Fate::kPending) all = one;
    }
    return all;
  }

  tl::unexpected<base::Error> not_found(JobId job) const {
    return base::fail(Code::kNotFound, "there is no job " + std::to_string(job.value));
  }

  template <class T, class Body>
  Result<T> read(Body body) const {
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
  Writer writer_;
  bool fence_wanted_ = false;  // the log may hold a commit that has failed
  bool has_reserve_ = false;
};

// Ours, empty, or somebody else's.
Status recognise(const SqliteOptions& options) {
  SQLite::Database db(options.path, open_flags(), kBusyMilliseconds, options.vfs);
  const int version = db.execAndGet("PRAGMA user_version").getInt();
  const int application = db.execAndGet("PRAGMA application_id").getInt();
  const int tables = db.execAndGet("SELECT count(*) FROM sqlite_master").getInt();
  if (tables == 0 && version == 0) return {};
  if (application != kApplicationId)
    return base::fail(Code::kInvalid, options.path + " is a database, but not a job store; move it away");
  if (version > static_cast<int>(kSchema.size()))
    return base::fail(Code::kUnsupported, "the " + path_of(options) + " is of version " + std::to_string(version) +
                                              ", written by a newer gpumux; this one knows versions up to " +
                                              std::to_string(kSchema.size()));
  return {};
}

// Made by us, so that nobody else can read it from the first moment: SQLite gives its two other files the same rights.
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
  sql += query.order == Order::kOldest   ? " ORDER BY id"
         : query.order == Order::kNewest ? " ORDER BY id DESC"
                                         : " ORDER BY ended_at DESC, id DESC";
  return sql + " LIMIT ?2";
}

Result<std::unique_ptr<JobStore>> open_sqlite_store(const SqliteOptions& options) {
  GPUMUX_TRY(make_file(options.path));
  try {
    GPUMUX_TRY(recognise(options));
    return std::make_unique<SqliteStore>(options);
  } catch (const SQLite::Exception& e) {
    return failed(e, "cannot open the " + path_of(options));
  }
}

}  // namespace gpumux::store

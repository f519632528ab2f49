// SPDX-License-Identifier: Apache-2.0
// The form of the job store's file, and how each released form becomes the next.
#pragma once

#include <array>

namespace gpumux::jobs::store {

// "gpmx": tells `file` and us that a database is ours.
inline constexpr int kApplicationId = 0x67706d78;

// Step i leads from version i to version i + 1; the version is in `PRAGMA user_version`. A committed step is never
// changed again: a change is another step. Each runs in the transaction that sets the version.
//
// Columns say nothing twice, but for what scheduling and lists need without opening the document. Numbers of states and
// outcomes are those of jobs/core/job.h. GPU sets are text ("0,2"), so that a person can read the file.
inline constexpr std::array kSchema = {
    R"(
CREATE TABLE jobs (
  id           INTEGER PRIMARY KEY,
  uid          INTEGER NOT NULL,
  token        TEXT NOT NULL,
  name         TEXT NOT NULL,
  wanted       TEXT NOT NULL,      -- these GPUs, or
  gpu_count    INTEGER NOT NULL,   -- any so many
  memory       INTEGER NOT NULL,
  time_limit   INTEGER NOT NULL,   -- nanoseconds
  on_limit     INTEGER NOT NULL,
  exclusive    INTEGER NOT NULL,
  requeue      INTEGER NOT NULL,
  array        INTEGER NOT NULL,
  array_index  INTEGER NOT NULL,
  array_limit  INTEGER NOT NULL,
  state        INTEGER NOT NULL,
  outcome      INTEGER NOT NULL,
  attempt      INTEGER NOT NULL,
  given        TEXT NOT NULL,
  ord          INTEGER NOT NULL,
  priority     INTEGER NOT NULL,
  held         INTEGER NOT NULL,
  ran          INTEGER NOT NULL,   -- nanoseconds
  submitted_at INTEGER NOT NULL,
  started_at   INTEGER NOT NULL,
  ended_at     INTEGER NOT NULL,
  exit_status  INTEGER NOT NULL,
  note         TEXT NOT NULL
);
CREATE UNIQUE INDEX jobs_by_token ON jobs (uid, token) WHERE token <> '';
CREATE INDEX jobs_unfinished ON jobs (id) WHERE state <> 8;
CREATE INDEX jobs_by_user ON jobs (uid, id);
CREATE INDEX jobs_by_array ON jobs (array, id) WHERE array <> 0;
CREATE INDEX jobs_by_end ON jobs (ended_at, id) WHERE state = 8;

-- In a table of their own: lists never read them.
CREATE TABLE documents (
  job  INTEGER PRIMARY KEY,
  body BLOB NOT NULL
);

CREATE TABLE dependencies (
  job         INTEGER NOT NULL,
  place       INTEGER NOT NULL,
  target      INTEGER NOT NULL,
  whole_array INTEGER NOT NULL,
  need        INTEGER NOT NULL,
  fate        INTEGER NOT NULL,    -- as it was known when the job was submitted
  PRIMARY KEY (job, place)
) WITHOUT ROWID;

CREATE TABLE usage (
  uid              INTEGER PRIMARY KEY,
  gpu_microseconds INTEGER NOT NULL,
  at               INTEGER NOT NULL
);

CREATE TABLE kept (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE counters (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters VALUES ('last_id', 0), ('fence', 0);
)",
    // A job that an unfinished job comes after is not pruned. `needed` holds from that job's submission until it is
    // done, unless the fate was known then. The index has those alone, so that a look for one always costs the same.
    R"(
ALTER TABLE dependencies ADD COLUMN needed INTEGER NOT NULL DEFAULT 0;
UPDATE dependencies SET needed = 1 WHERE fate = 0 AND job IN (SELECT id FROM jobs WHERE state <> 8);
CREATE INDEX dependencies_needed ON dependencies (target, whole_array) WHERE needed <> 0;
)",
    // The log's path, which people want to know when the job's document is gone.
    R"(
ALTER TABLE jobs ADD COLUMN log TEXT NOT NULL DEFAULT '';
)",
    // A priority as given, and as it counts against others' jobs. Nothing is kept of documents of jobs that are done.
    // `reserve` holds pages that a commit on a full disk may use.
    R"(
ALTER TABLE jobs ADD COLUMN capped INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET capped = priority WHERE state <> 8;
DELETE FROM documents WHERE job IN (SELECT id FROM jobs WHERE state = 8);
CREATE INDEX jobs_done_by_user ON jobs (uid, ended_at, id) WHERE state = 8;
CREATE TABLE reserve (body BLOB NOT NULL);
)",
    // How many jobs of each user are done, so that no look for users with too many counts them. Nothing is kept of the
    // dependencies of jobs that are done. Of those that were done already, `capped` was not set.
    R"(
UPDATE jobs SET capped = priority WHERE state = 8 AND capped = 0;
DELETE FROM dependencies WHERE job IN (SELECT id FROM jobs WHERE state = 8);
CREATE TABLE done (
  uid  INTEGER PRIMARY KEY,
  jobs INTEGER NOT NULL
);
INSERT INTO done SELECT uid, count(*) FROM jobs WHERE state = 8 GROUP BY uid;
CREATE TRIGGER done_stored AFTER INSERT ON jobs WHEN new.state = 8 BEGIN
  INSERT INTO done VALUES (new.uid, 1) ON CONFLICT (uid) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER done_now AFTER UPDATE OF state ON jobs WHEN new.state = 8 AND old.state <> 8 BEGIN
  INSERT INTO done VALUES (new.uid, 1) ON CONFLICT (uid) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER done_no_more AFTER DELETE ON jobs WHEN old.state = 8 BEGIN
  UPDATE done SET jobs = jobs - 1 WHERE uid = old.uid;
  DELETE FROM done WHERE uid = old.uid AND jobs = 0;
END;
)",
    // Programs' use of GPUs (ledger.h). `start` in seconds since 1970; sums in seconds and byte seconds.
    R"(
CREATE TABLE ledger (
  is_day    INTEGER NOT NULL,
  start     INTEGER NOT NULL,
  uid       INTEGER NOT NULL,   -- -1: none
  namespace TEXT NOT NULL,
  pod       TEXT NOT NULL,
  is_others INTEGER NOT NULL,   -- of programs and jobs that found no place
  program   TEXT NOT NULL,
  job       INTEGER NOT NULL,   -- 0: none
  gpu       TEXT NOT NULL,
  held      REAL NOT NULL,
  gpu_time  REAL NOT NULL,
  waited    REAL NOT NULL,
  resident  REAL NOT NULL,
  evicted   REAL NOT NULL,
  switches  INTEGER NOT NULL,
  PRIMARY KEY (is_day, start, uid, namespace, pod, is_others, program, job, gpu)
) WITHOUT ROWID;
)",
    // The command, which lists show, and a history shows when the job's document is gone.
    R"(
ALTER TABLE jobs ADD COLUMN command TEXT NOT NULL DEFAULT '';
)",
    // GPUs that a change has named, in its order ("2,0"); empty: the document has the order.
    R"(
ALTER TABLE jobs ADD COLUMN gpu_order TEXT NOT NULL DEFAULT '';
)",
    // GPU time of a job's programs in seconds, and the most bytes that they had on one GPU.
    R"(
ALTER TABLE jobs ADD COLUMN gpu_time REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN peak_memory INTEGER NOT NULL DEFAULT 0;
)",
    // When a job may start at the earliest; 0: at once.
    R"(
ALTER TABLE jobs ADD COLUMN begin_at INTEGER NOT NULL DEFAULT 0;
)"};

}  // namespace gpumux::jobs::store

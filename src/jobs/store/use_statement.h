// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>

namespace gpumux::jobs::store {

// A statement that is used again: reset when this goes, so that it holds no lock on its rows.
class Use {
 public:
  // `values`: for its first places.
  template <class... Values>
  explicit Use(SQLite::Statement& statement, const Values&... values) : statement_(statement) {
    SQLite::bind(statement, values...);
  }
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

// How many rows it has changed.
template <class... Values>
int execute(SQLite::Statement& statement, const Values&... values) {
  return Use(statement, values...)->exec();
}

}  // namespace gpumux::jobs::store

// SPDX-License-Identifier: Apache-2.0
// The daemon's log: one line an event, a sentence and key=value fields, to standard error (which is the journal under
// systemd).
//
// A thread of the log's own writes the lines, and the loop never waits for it. A reader of standard error that has
// stopped reading must not stop the scheduling. Lines that do not fit are dropped, oldest first. Values are quoted and
// escaped, so that a text from a tenant cannot look like a line or a field of ours.
//
// Any thread may log. This is the only place that knows the logging library.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

#include "settings/structs.gen.h"

namespace gpumux::server {

using settings::LogLevel;

struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  template <std::integral Integer>
  LogField(std::string_view k, Integer v) : key(k), value(std::to_string(v)) {}

  std::string_view key;
  std::string value;
};
using LogFields = std::initializer_list<LogField>;

// Starts the log's thread. Before it, and after stop_log, the calling thread writes its line at once.
void start_log(LogLevel level);
// Writes the lines that are not written yet.
void stop_log();
void set_log_level(LogLevel level);
// Whether lines of this level are written: to be asked before making one costs anything.
bool is_logged(LogLevel level);

void log(LogLevel level, std::string_view sentence, LogFields fields = {});
inline void log_debug(std::string_view sentence, LogFields fields = {}) { log(LogLevel::kDebug, sentence, fields); }
inline void log_info(std::string_view sentence, LogFields fields = {}) { log(LogLevel::kInfo, sentence, fields); }
inline void log_warning(std::string_view sentence, LogFields fields = {}) { log(LogLevel::kWarning, sentence, fields); }
inline void log_error(std::string_view sentence, LogFields fields = {}) { log(LogLevel::kError, sentence, fields); }

// `sentence key=value key="two words"`: a line of the log without its time and level.
std::string format_line(std::string_view sentence, LogFields fields);

// An event or a command of a core, which both have a to_string().
template <class Item>
void debug_text(std::string_view sentence, const Item& item) {
  if (is_logged(LogLevel::kDebug)) log_debug(sentence, {{"what", to_string(item)}});
}

}  // namespace gpumux::server

// SPDX-License-Identifier: Apache-2.0
#include "server/loop/log.h"

// Header-only, formatter too: the program then needs neither library where it runs.
#define FMT_HEADER_ONLY 1
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

#include "base/utf8.h"

namespace gpumux::server {
namespace {

// A second's worth at a rate that no person reads; a slot takes about 400 bytes.
constexpr std::size_t kQueueLines = 1024;

std::shared_ptr<spdlog::details::thread_pool> g_pool;

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::shared_ptr<spdlog::logger> writes_at_once() {
  auto logger = std::make_shared<spdlog::logger>("gpumuxd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("gpumuxd: %l: %v");
  return logger;
}

std::shared_ptr<spdlog::logger> g_logger = writes_at_once();  // set while only one thread runs

void append_value(std::string& line, std::string_view value) {
  bool plain = !value.empty();
  for (const char c : value) plain = plain && c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '=';
  if (plain) {
    line += value;
    return;
  }
  line += '"';
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t special = std::min(value.find_first_of("\"\\\n", at), value.size());
    line += base::escaped(value.substr(at, special - at));
    at = special;
    if (at == value.size()) break;
    line += '\\';
    line += value[at] == '\n' ? 'n' : value[at];
    ++at;
  }
  line += '"';
}

}  // namespace

void start_log(LogLevel level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  g_pool = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  g_logger =
      std::make_shared<spdlog::async_logger>("gpumuxd", sink, g_pool, spdlog::async_overflow_policy::overrun_oldest);
  set_log_level(level);
  g_logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  g_logger->flush_on(spdlog::level::debug);
}

void stop_log() {
  const auto level = g_logger->level();
  g_logger = writes_at_once();
  g_logger->set_level(level);
  g_pool.reset();  // its destructor writes what is queued
}

void set_log_level(LogLevel level) { g_logger->set_level(to_spdlog(level)); }

bool is_logged(LogLevel level) { return g_logger->should_log(to_spdlog(level)); }

void log(LogLevel level, std::string_view sentence, LogFields fields) {
  if (is_logged(level)) g_logger->log(to_spdlog(level), "{}", format_line(sentence, fields));
}

std::string format_line(std::string_view sentence, LogFields fields) {
  std::string line(sentence);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    append_value(line, field.value);
  }
  return line;
}

}  // namespace gpumux::server

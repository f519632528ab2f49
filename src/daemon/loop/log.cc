// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/log.h"

// Header-only, formatter too: the program then needs neither library where it runs.
#define FMT_HEADER_ONLY 1
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

namespace gpumux::daemon {
namespace {

// A second's worth at a rate that nobody reads; a slot takes about 400 bytes.
constexpr std::size_t kQueueLines = 1024;

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::shared_ptr<spdlog::details::thread_pool> g_pool;
std::shared_ptr<spdlog::logger> g_logger;  // set while only one thread runs; null: write at once

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

void append_value(std::string& line, std::string_view value) {
  bool plain = !value.empty();
  for (const char c : value) plain = plain && c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '=';
  if (plain) {
    line += value;
    return;
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  line += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += "\\x";
      line += kDigits[byte >> 4];
      line += kDigits[byte & 15];
    } else {
      line += c;
    }
  }
  line += '"';
}

}  // namespace

std::string_view to_string(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "unknown";
}

void start_log(LogLevel level) {
  set_log_level(level);
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  g_pool = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  g_logger =
      std::make_shared<spdlog::async_logger>("gpumuxd", sink, g_pool, spdlog::async_overflow_policy::overrun_oldest);
  g_logger->set_level(spdlog::level::debug);
  g_logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  g_logger->flush_on(spdlog::level::debug);
}

void stop_log() {
  g_logger.reset();
  g_pool.reset();  // its destructor writes what is queued
}

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

// Pairs with nothing: a line more or less while the level changes does not matter.
bool is_logged(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view sentence, LogFields fields) {
  if (!is_logged(level)) return;
  const std::string line = format_line(sentence, fields);
  if (g_logger != nullptr) {
    g_logger->log(to_spdlog(level), "{}", line);
  } else {
    std::fprintf(stderr, "gpumuxd: %s: %s\n", std::string(to_string(level)).c_str(), line.c_str());
  }
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

}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/log.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <string>

#include "base/utf8.h"

namespace gpumux::kubernetes {
namespace {

const char* word_of(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "unknown";
}

}  // namespace

void log(LogLevel level, std::string_view sentence) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  ::localtime_r(&now.tv_sec, &parts);
  std::array<char, 32> seconds{};
  std::strftime(seconds.data(), seconds.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 64> head{};
  std::snprintf(head.data(), head.size(), "%s.%03ld %s ", seconds.data(), now.tv_nsec / 1'000'000, word_of(level));
  std::string line = head.data();
  line += base::escaped(sentence);
  line += '\n';
  // One write a line: lines of several threads do not mix. A log that cannot be written changes nothing else.
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace gpumux::kubernetes

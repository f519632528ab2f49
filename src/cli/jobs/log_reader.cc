// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/log_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

namespace gpumux::cli {
namespace {

using base::Code;
using base::Result;
using base::Status;

// As much as a pipe holds by default.
constexpr std::size_t kBlock = 64 << 10;

// Two logs of one program that have the same last kTailBytes before the same place count as one.
constexpr std::size_t kTailBytes = 256;

Status write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(wrote));
    } else if (errno == EAGAIN) {
      pollfd item{fd, POLLOUT, 0};
      ::poll(&item, 1, -1);
    } else if (errno != EINTR) {
      return base::fail_errno(errno, "cannot write to the standard output");
    }
  }
  return {};
}

ssize_t read_at(int fd, char* buffer, std::size_t size, off_t offset) {
  ssize_t got;
  do {
    got = ::pread(fd, buffer, size, offset);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace

Result<bool> LogReader::open() {
  if (file_) return true;
  os::FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file && errno == ENOENT) return false;
  if (!file) return base::fail_errno(errno, "cannot read the log " + path_);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return base::fail_errno(errno, "cannot look at the log " + path_);
  if (!S_ISREG(status.st_mode))
    return base::fail(Code::kUnsupported, path_ + " is not a regular file, so the job's output cannot be read from it");
  file_ = std::move(file);
  return true;
}

bool LogReader::was_replaced() const {
  struct stat named {};
  struct stat opened {};
  if (::stat(path_.c_str(), &named) != 0 || ::fstat(file_.get(), &opened) != 0) return false;
  return named.st_ino != opened.st_ino || named.st_dev != opened.st_dev;
}

bool LogReader::is_what_was_shown() const {
  if (tail_.empty()) return true;
  std::array<char, kTailBytes> now;
  const off_t begin = offset_ - static_cast<off_t>(tail_.size());
  const ssize_t got = read_at(file_.get(), now.data(), tail_.size(), begin);
  return got == static_cast<ssize_t>(tail_.size()) && std::string_view(now.data(), tail_.size()) == tail_;
}

void LogReader::begin_anew() {
  offset_ = 0;
  tail_.clear();
}

Result<bool> LogReader::copy_rest() {
  std::array<char, kBlock> block;
  bool anything = false;
  for (;;) {
    const ssize_t got = read_at(file_.get(), block.data(), block.size(), offset_);
    if (got < 0) return base::fail_errno(errno, "cannot read the log " + path_);
    if (got == 0) return anything;
    const std::string_view bytes(block.data(), static_cast<std::size_t>(got));
    GPUMUX_TRY(write_all(output_, bytes));
    anything = true;
    offset_ += got;
    tail_.append(bytes.substr(bytes.size() - std::min(bytes.size(), kTailBytes)));
    if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  }
}

Result<LogReader::Shown> LogReader::show_new() {
  Shown shown;
  const auto opened = open();
  if (!opened) return tl::unexpected(opened.error());
  if (!*opened) return shown;
  shown.there = true;
  const bool had_begun = offset_ > 0;
  if (!is_what_was_shown()) {
    begin_anew();
    shown.began_anew = had_begun;
  }
  // A file that was replaced is shown to its end first.
  auto copied = copy_rest();
  if (!copied) return tl::unexpected(copied.error());
  shown.anything = *copied;
  if (was_replaced()) {
    file_.reset();
    const auto again = open();
    if (!again) return tl::unexpected(again.error());
    if (!*again) return shown;
    shown.began_anew = offset_ > 0;
    begin_anew();
    copied = copy_rest();
    if (!copied) return tl::unexpected(copied.error());
    shown.anything = shown.anything || *copied;
  }
  return shown;
}

Status LogReader::skip_to_last_lines(std::uint64_t lines) {
  const auto opened = open();
  if (!opened) return tl::unexpected(opened.error());
  if (!*opened) return {};
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return base::fail_errno(errno, "cannot look at the log " + path_);
  off_t begin = status.st_size;
  std::array<char, kBlock> block;
  std::uint64_t seen = 0;
  bool first = true;
  while (begin > 0 && lines > 0) {
    const auto size = static_cast<std::size_t>(std::min<off_t>(begin, kBlock));
    const off_t from = begin - static_cast<off_t>(size);
    const ssize_t got = read_at(file_.get(), block.data(), size, from);
    if (got < 0) return base::fail_errno(errno, "cannot read the log " + path_);
    if (got != static_cast<ssize_t>(size)) break;  // it has just been cut
    for (std::size_t i = size; i > 0; --i) {
      // The newline at the very end ends the last line, and begins none.
      const bool counts = block[i - 1] == '\n' && !(first && i == size);
      if (counts && ++seen == lines) {
        offset_ = from + static_cast<off_t>(i);
        return {};
      }
    }
    first = false;
    begin = from;
  }
  offset_ = lines == 0 ? status.st_size : 0;
  return {};
}

}  // namespace gpumux::cli

// SPDX-License-Identifier: Apache-2.0
#include "runners/program/descendants.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "os/durable_file.h"
#include "os/file_descriptor.h"
#include "os/pidfd.h"

namespace gpumux::runners {
namespace {

// Reads /proc/PID/stat (or a thread's). The program's name in it may hold anything, also parentheses and spaces. The
// fields that are read begin after the last parenthesis.
bool read_stat(const std::string& path, Descendant& process) {
  const os::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  char buffer[1024];
  const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
  if (got <= 0) return false;
  std::string_view text(buffer, static_cast<std::size_t>(got));
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 4 > text.size()) return false;
  text.remove_prefix(name_end + 2);
  process.state = text[0];
  // Counted from the state, which is field 3.
  constexpr int kParent = 4;
  constexpr int kStartTime = 22;
  for (int field = 3; field <= kStartTime; ++field) {
    const std::string_view value = text.substr(0, text.find(' '));
    if (field == kParent) std::from_chars(value.data(), value.data() + value.size(), process.parent);
    if (field == kStartTime) {
      return std::from_chars(value.data(), value.data() + value.size(), process.start_ticks).ec == std::errc();
    }
    if (value.size() == text.size()) return false;
    text.remove_prefix(value.size() + 1);
  }
  return false;
}

bool has_ended_state(char state) { return state == 'Z' || state == 'X'; }

template <class Visit>
void for_each_number(const std::string& folder, Visit visit) {
  for (const std::string& name : os::list_directory(folder).value_or(std::vector<std::string>())) {
    pid_t number = 0;
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data(), end, number);
    if (parsed.ec == std::errc() && parsed.ptr == end) visit(number);
  }
}

// The children that one thread has started, and those that it was given as a subreaper. False: the kernel has no list.
bool append_children(pid_t pid, pid_t thread, std::vector<pid_t>& children) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/children";
  const auto text = os::read_unsized_at(AT_FDCWD, path.c_str());
  if (!text) return false;
  const char* const end = text->data() + text->size();
  for (const char* at = text->data(); at < end;) {
    pid_t child = 0;
    const auto parsed = std::from_chars(at, end, child);
    if (parsed.ec != std::errc()) break;
    children.push_back(child);
    at = parsed.ptr + 1;  // a space
  }
  return true;
}

// A process whose first thread has ended looks like a zombie while its other threads run on.
bool has_threads(pid_t pid) {
  // The folder has a link for itself, one for its place in its parent, and one for each thread.
  constexpr nlink_t kLinksOfOneThread = 3;
  struct stat status {};
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  return ::stat(folder.c_str(), &status) == 0 && status.st_nlink > kLinksOfOneThread;
}

std::string stat_path(pid_t pid) { return "/proc/" + std::to_string(pid) + "/stat"; }

bool read_process(pid_t pid, Descendant& process) {
  process.pid = pid;
  return read_stat(stat_path(pid), process);
}

// By the kernel's lists. False: it has none.
bool walk(pid_t except, std::vector<Descendant>& found) {
  std::vector<pid_t> children;
  if (!append_children(::getpid(), ::getpid(), children)) return false;
  for (std::size_t at = 0;; ++at) {
    for (const pid_t child : children) {
      Descendant process;
      if (child != except && read_process(child, process)) found.push_back(process);
    }
    children.clear();
    // A list that grows under us cannot grow for ever; a step that ends is followed by another.
    constexpr std::size_t kMostFound = 1u << 20;
    if (at >= found.size() || at >= kMostFound) return true;
    const pid_t pid = found[at].pid;
    for_each_number("/proc/" + std::to_string(pid) + "/task",
                    [&](pid_t thread) { append_children(pid, thread, children); });
  }
}

// By reading all of /proc.
void scan(pid_t except, std::vector<Descendant>& found) {
  std::vector<Descendant> all;
  for_each_number("/proc", [&](pid_t pid) {
    Descendant process;
    if (read_process(pid, process)) all.push_back(process);
  });
  std::sort(all.begin(), all.end(), [](const Descendant& a, const Descendant& b) { return a.parent < b.parent; });
  const auto append = [&](pid_t parent) {
    auto child = std::lower_bound(all.begin(), all.end(), parent,
                                  [](const Descendant& process, pid_t value) { return process.parent < value; });
    for (; child != all.end() && child->parent == parent; ++child) {
      if (child->pid != except) found.push_back(*child);
    }
  };
  append(::getpid());
  // Each process has one parent and appears once in `all`. A tree that was read while it changed might even close a
  // circle: there are never more than all.
  for (std::size_t at = 0; at < found.size() && found.size() <= all.size(); ++at) append(found[at].pid);
}

}  // namespace

std::vector<Descendant> find_descendants(pid_t except) {
  std::vector<Descendant> found;
  if (!walk(except, found)) scan(except, found);
  return found;
}

bool has_ended(const Descendant& process) { return has_ended_state(process.state) && !has_threads(process.pid); }

bool has_no_descendants(pid_t except) {
  siginfo_t info;
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return true;
  if (except == 0) return false;
  std::vector<pid_t> children;
  if (!append_children(::getpid(), ::getpid(), children)) return find_descendants(except).empty();
  return std::all_of(children.begin(), children.end(), [except](pid_t child) { return child == except; });
}

Signalled signal_descendant(const Descendant& process, const std::vector<Descendant>& known, int signal) {
  const auto pidfd = os::open_pidfd(process.pid);
  if (!pidfd && pidfd.error().system_errno == ESRCH) return Signalled::kGone;
  Descendant now;
  if (!read_process(process.pid, now) || now.start_ticks != process.start_ticks) return Signalled::kGone;
  // Its parent may have ended since: then it is ours, directly or through a subreaper among the known.
  const bool in_tree =
      now.parent == ::getpid() ||
      std::any_of(known.begin(), known.end(), [&](const Descendant& other) { return other.pid == now.parent; });
  // Still the one that was opened: so what was read just now was about it.
  if (!in_tree || (pidfd ? os::has_ended(pidfd->get()) : has_ended(now))) return Signalled::kGone;
  if (pidfd && ::syscall(SYS_pidfd_send_signal, pidfd->get(), signal, nullptr, 0) == 0) return Signalled::kDone;
  if (pidfd && errno == ESRCH) return Signalled::kGone;
  // No descriptor is to be had, or it is of no use: an old kernel, or a sandbox. A child of ours keeps its number until
  // this process has waited for it, so the number means no stranger. The children of those that end are ours next.
  if (now.parent != ::getpid() || ::kill(process.pid, signal) != 0) return Signalled::kDenied;
  return Signalled::kDone;
}

bool is_stopped(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  bool all = true;
  for_each_number(folder, [&](pid_t number) {
    Descendant thread;
    if (!read_stat(folder + "/" + std::to_string(number) + "/stat", thread)) return;
    // 't': stopped by a debugger, which is as good.
    all = all && (thread.state == 'T' || thread.state == 't' || has_ended_state(thread.state));
  });
  return all;
}

std::uint64_t start_ticks_of(pid_t pid) {
  Descendant process;
  return read_process(pid, process) ? process.start_ticks : 0;
}

}  // namespace gpumux::runners

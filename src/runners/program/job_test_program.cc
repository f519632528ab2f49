// SPDX-License-Identifier: Apache-2.0
// The job of the tests: it says what it was given, and misbehaves in every way that a supervisor must stand.
//
//   job describe              everything that it has inherited, one "key value" a line
//   job arguments ...         its arguments, each between brackets on a line of its own (bytes as they are)
//   job exit N | signal N     ends in this way
//   job count FILE            grows FILE by a byte a millisecond, for ever
//   job tree FILE             the same in itself, a child, a grandchild that is orphaned and one in a session of its
//   own job ignore                ignores TERM, HUP and INT, says "ready", waits for ever job leave FILE leaves a
//   daemon of its own behind that grows FILE, and ends with 5 job storm FILE N          N generations of processes,
//   each starting the next and ending; the last grows FILE job close                 closes all its descriptors, then
//   waits for ever job stopped FILE          stops a child of its own, says "ready", grows FILE job write BYTES writes
//   so much and ends with 0, or with 9 and the error's number at its end if it cannot job once FILE             appends
//   one line to FILE, then ends with 3 job echo                  says its terminal's size, then each line that it is
//   given; again after each SIGWINCH
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

extern char** environ;

namespace {

void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) ::_exit(99);
}

[[noreturn]] void grow(const char* path) {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (fd < 0) ::_exit(98);
  for (;;) {
    if (::write(fd, "x", 1) != 1) ::_exit(97);
    ::usleep(1000);
  }
}

[[noreturn]] void wait_for_ever() {
  for (;;) ::pause();
}

std::string link_of(const std::string& path) {
  char buffer[4096];
  const ssize_t size = ::readlink(path.c_str(), buffer, sizeof buffer);
  return size < 0 ? "-" : std::string(buffer, static_cast<std::size_t>(size));
}

void describe() {
  std::string ids = "ids";
  uid_t u[3];
  gid_t g[3];
  ::getresuid(&u[0], &u[1], &u[2]);
  ::getresgid(&g[0], &g[1], &g[2]);
  for (const uid_t id : u) ids += " " + std::to_string(id);
  for (const gid_t id : g) ids += " " + std::to_string(id);
  say(ids);
  gid_t groups[128];
  const int count = ::getgroups(128, groups);
  std::string list = "groups";
  for (int i = 0; i < count; ++i) list += " " + std::to_string(groups[i]);
  say(list);
  say("cwd " + link_of("/proc/self/cwd"));
  const mode_t mask = ::umask(0);
  say("umask " + std::to_string(mask));
  say("nice " + std::to_string(::getpriority(PRIO_PROCESS, 0)));
  say("scheduler " + std::to_string(::sched_getscheduler(0)));
  say("leads_session " + std::to_string(::getsid(0) == ::getpid()));
  say("tty " + std::to_string(::isatty(0) + ::isatty(1) + ::isatty(2)));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  say("nofile " + std::to_string(limit.rlim_cur) + " " + std::to_string(limit.rlim_max));
  say("parent_death_signal_set " + std::to_string([] {
        int signal = 0;
        ::prctl(PR_GET_PDEATHSIG, &signal);
        return signal;
      }()));
  // Every descriptor that is open, without the one that lists them.
  std::string open = "open";
  for (int fd = 0; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) open += " " + std::to_string(fd);
  }
  say(open);
  say("stdin " + link_of("/proc/self/fd/0"));
  if (std::FILE* status = std::fopen("/proc/self/status", "re")) {
    char line[512];
    while (std::fgets(line, sizeof line, status) != nullptr) {
      for (const char* key : {"SigBlk:", "SigIgn:", "CapInh:", "CapPrm:", "CapEff:", "CapAmb:", "NoNewPrivs:"}) {
        if (std::strncmp(line, key, std::strlen(key)) == 0)
          say("status " + std::string(line, std::strcspn(line, "\n")));
      }
    }
    std::fclose(status);
  }
  if (std::FILE* score = std::fopen("/proc/self/oom_score_adj", "re")) {
    char line[32] = {};
    if (std::fgets(line, sizeof line, score) != nullptr) say("oom " + std::string(line, std::strcspn(line, "\n")));
    std::fclose(score);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) say("env " + std::string(*entry));
}

[[noreturn]] void tree(const char* path) {
  if (::fork() == 0) grow(path);
  if (::fork() == 0) {
    if (::fork() == 0) grow(path);  // its parent ends: an orphan
    ::_exit(0);
  }
  if (::fork() == 0) {
    ::setsid();
    if (::fork() == 0) {
      ::setsid();
      grow(path);
    }
    ::_exit(0);
  }
  grow(path);
}

[[noreturn]] void storm(const char* path, int generations) {
  for (; generations > 0; --generations) {
    const pid_t child = ::fork();
    if (child < 0) ::_exit(96);
    if (child > 0) {
      // The first one is the job; the others leave their children behind.
      if (generations % 2 == 0) ::usleep(200);
      ::_exit(0);
    }
  }
  grow(path);
}

void leave_orphan(const char* path) {
  int ready[2];
  if (::pipe(ready) != 0) ::_exit(95);
  if (::fork() == 0) {
    ::setsid();
    if (::fork() == 0) {
      ::signal(SIGTERM, SIG_IGN);
      if (::write(ready[1], "x", 1) != 1) ::_exit(94);
      for (int fd = 0; fd < 64; ++fd) ::close(fd);
      grow(path);
    }
    ::_exit(0);
  }
  char byte;
  if (::read(ready[0], &byte, 1) != 1) ::_exit(93);
}

int write_much(std::size_t bytes) {
  const std::string line(1024, 'y');
  for (; bytes >= line.size(); bytes -= line.size()) {
    const ssize_t wrote = ::write(STDOUT_FILENO, line.data(), line.size());
    if (wrote != static_cast<ssize_t>(line.size())) return 9;
  }
  return 0;
}

volatile sig_atomic_t resized = 0;

void say_size() {
  winsize size{};
  ::ioctl(STDIN_FILENO, TIOCGWINSZ, &size);
  say("size " + std::to_string(size.ws_row) + " " + std::to_string(size.ws_col));
}

[[noreturn]] void echo() {
  struct sigaction action {};
  action.sa_handler = [](int) { resized = 1; };
  ::sigaction(SIGWINCH, &action, nullptr);
  // Only while it waits: a signal that came just before a read would be seen after the next byte only.
  sigset_t resizes;
  sigset_t others;
  ::sigemptyset(&resizes);
  ::sigaddset(&resizes, SIGWINCH);
  ::sigprocmask(SIG_BLOCK, &resizes, &others);
  say_size();
  std::string line;
  for (;;) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int ready = ::ppoll(&input, 1, nullptr, &others);
    if (resized != 0) {
      resized = 0;
      say_size();
    }
    if (ready < 0 && errno == EINTR) continue;
    char byte;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got <= 0) ::_exit(0);
    if (byte != '\n') {
      line += byte;
      continue;
    }
    if (line == "quit") ::_exit(4);
    if (line.rfind("flood ", 0) == 0) {
      ::_exit(write_much(static_cast<std::size_t>(std::atoll(line.c_str() + 6))) == 0 ? 6 : 7);
    }
    say("heard " + line);
    line.clear();
  }
}

}  // namespace

int main(int argc, char** argv) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::string mode = argc > 1 ? argv[1] : "";
  const char* first = argc > 2 ? argv[2] : "";
  if (mode == "describe") {
    describe();
  } else if (mode == "arguments") {
    for (int i = 2; i < argc; ++i) say("[" + std::string(argv[i]) + "]");
  } else if (mode == "exit") {
    return std::atoi(first);
  } else if (mode == "signal") {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::raise(std::atoi(first));
    wait_for_ever();
  } else if (mode == "count") {
    grow(first);
  } else if (mode == "tree") {
    tree(first);
  } else if (mode == "ignore") {
    for (const int signal : {SIGTERM, SIGHUP, SIGINT}) ::signal(signal, SIG_IGN);
    say("ready");
    wait_for_ever();
  } else if (mode == "leave") {
    leave_orphan(first);
    return 5;
  } else if (mode == "storm" && argc > 3) {
    if (::fork() == 0) storm(first, std::atoi(argv[3]));
    wait_for_ever();
  } else if (mode == "close") {
    for (int fd = 0; fd < 1024; ++fd) ::close(fd);
    wait_for_ever();
  } else if (mode == "stopped") {
    const pid_t child = ::fork();
    if (child == 0) {
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, WUNTRACED);
    say("ready " + std::to_string(child));
    grow(first);
  } else if (mode == "write") {
    return write_much(static_cast<std::size_t>(std::atoll(first)));
  } else if (mode == "once") {
    const int fd = ::open(first, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (::write(fd, "ran\n", 4) != 4) return 92;
    return 3;
  } else if (mode == "now") {
    say(std::to_string(now.tv_sec * 1'000'000'000LL + now.tv_nsec));
  } else if (mode == "echo") {
    echo();
  }
  return 0;
}

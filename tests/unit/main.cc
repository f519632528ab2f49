// SPDX-License-Identifier: Apache-2.0
// main() of every unit test: Google Test's, and a deadline. A program that hangs says in which test, and where each of
// its threads is, before it ends. The log of a machine that a reader cannot reach has no other trace of it.
//
// The deadline, in seconds, is the environment's GPUMUX_TEST_DEADLINE; without it there is none, as for a debugger.
#include <dirent.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

// The sanitizers', which prints names and lines, where the program has it.
extern "C" __attribute__((weak)) void __sanitizer_print_stack_trace();

namespace {

using Clock = std::chrono::steady_clock;

struct Now {
  std::atomic<const char*> suite{"none"};
  std::atomic<const char*> test{"none"};
  std::atomic<Clock::rep> since{0};
} now;

class Watch final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    now.suite = test.test_suite_name();
    now.test = test.name();
    now.since = Clock::now().time_since_epoch().count();
  }
};

std::atomic<bool> has_printed{false};

void print_this_thread(int) {
  if (__sanitizer_print_stack_trace != nullptr) {
    __sanitizer_print_stack_trace();
  } else {
    void* frames[64];
    ::backtrace_symbols_fd(frames, ::backtrace(frames, 64), STDERR_FILENO);
  }
  has_printed = true;
}

// In whichever thread: what follows is no place for locks, and hardly for stdio; but this process is at its end.
void end(int) {
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(20);  // should what follows hang too
  const Clock::duration passed = Clock::now().time_since_epoch() - Clock::duration(now.since.load());
  std::fprintf(stderr, "\nThe deadline is over, in %s.%s, which began %.1f s ago. Each thread:\n", now.suite.load(),
               now.test.load(), std::chrono::duration<double>(passed).count());
  DIR* const threads = ::opendir("/proc/self/task");
  while (const dirent* const entry = threads != nullptr ? ::readdir(threads) : nullptr) {
    const int thread = std::atoi(entry->d_name);
    if (thread == 0) continue;
    std::fprintf(stderr, "thread %d%s\n", thread, thread == ::getpid() ? ", the first" : "");
    has_printed = false;
    ::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR2);
    for (int i = 0; i < 200 && !has_printed; ++i) ::usleep(10'000);
  }
  ::abort();
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new Watch);
  if (const char* const text = std::getenv("GPUMUX_TEST_DEADLINE")) {
    void* frame = nullptr;
    ::backtrace(&frame, 1);  // loads what it needs now, and not in a signal handler
    ::signal(SIGUSR2, print_this_thread);
    ::signal(SIGALRM, end);
    ::alarm(static_cast<unsigned>(std::atoi(text)));
  }
  return RUN_ALL_TESTS();
}

// SPDX-License-Identifier: Apache-2.0
// Programs that do unusual things with their process while they use the GPU. --what is one of:
//
//   crash         breaks its context with an illegal access while holding, then sees that the error stays, and ends or
//                 lives on (--hold)
//   fork-before   forks --children workers before using CUDA; each computes (a data loader whose workers use the GPU)
//   fork-after    computes, forks workers that do not use CUDA (a data loader), computes on while they run, waits
//   fork-use      computes, then forks a child that calls the driver: the driver says no, and nothing else happens
//   orphan        computes, forks a child that lives on after its parent has ended, for --hold seconds
//   exec          computes, then replaces itself by `--what compute`
//   thread-exit   computes in a thread that ends the process from there, other threads still computing
//   thread-gone   computes in many short threads, one after the other, each on its own default stream
//   cancel        a thread calls the driver while a request to cancel it is pending, which must wait for the end of
//                 each call; --steps times with every call, then another thread computes
//   replace       computes, puts sockets of its own at the numbers of all descriptors that have come since and whose
//   names
//                 begin with one of --take (separated by commas), computes on, until --until, on two GPUs; nothing may
//                 come out of the sockets, and they stay
//   signals       computes under a storm of signals with handlers that interrupt system calls
//   atexit        submits work from a handler of atexit
//   compute       computes
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

constexpr std::uint64_t kElements = 4096;

struct Session {
  const Api& api;
  CUcontext context = nullptr;
  Kernels kernels;
  CUdeviceptr data = 0, sum = 0;
  std::uint32_t value = 0;

  explicit Session(const Api& driver, int gpu = 0) : api(driver) {
    GPUMUX_CALL(api.cuInit(0));
    CUdevice device = 0;
    GPUMUX_CALL(api.cuDeviceGet(&device, gpu));
    GPUMUX_CALL(api.cuCtxCreate_v2(&context, 0, device));
    kernels = load_kernels(api);
    GPUMUX_CALL(api.cuMemAlloc_v2(&data, kElements * 4));
    GPUMUX_CALL(api.cuMemAlloc_v2(&sum, 8));
    GPUMUX_CALL(api.cuMemsetD32_v2(data, 0, kElements));
  }

  void compute(unsigned steps, unsigned step_us, bool per_thread = false) {
    GPUMUX_CALL(api.cuCtxSetCurrent(context));
    const std::uint64_t spin_ns = std::uint64_t{step_us} * 1000;
    for (unsigned i = 0; i < steps; ++i) {
      launch(api, kernels.spin, nullptr, per_thread, spin_ns);
      launch(api, kernels.increment, nullptr, per_thread, data, kElements);
      ++value;
    }
    GPUMUX_CALL(per_thread ? api.cuStreamSynchronize_ptsz(nullptr) : api.cuStreamSynchronize(nullptr));
    verify();
  }

  void verify() {
    std::uint64_t got = 0;
    launch(api, kernels.checksum, nullptr, false, data, kElements, sum);
    GPUMUX_CALL(api.cuMemcpyDtoH_v2(&got, sum, 8));
    if (got != checksum_of(value, kElements)) wrong("checksum after " + std::to_string(value) + " increments");
  }
};

void done(const char* what) {
  say("done what=%s pid=%d t=%llu", what, static_cast<int>(::getpid()), static_cast<unsigned long long>(now_ns()));
}

void await(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) wrong("a child ended with status " + std::to_string(status));
}

int crash(const Api& api, const Options& options) {
  Session session(api);
  session.compute(3, 200);
  say("ready pid=%d", static_cast<int>(::getpid()));
  const CUdeviceptr nowhere = 4096;
  launch(api, session.kernels.increment, nullptr, false, nowhere, kElements);
  const CUresult first = api.cuCtxSynchronize();
  const CUresult again = api.cuStreamSynchronize(nullptr);
  if (first != CUDA_ERROR_ILLEGAL_ADDRESS || again != CUDA_ERROR_ILLEGAL_ADDRESS) wrong("the error does not stay");
  done("crash");
  ::sleep(static_cast<unsigned>(options.number("hold")));
  return 0;
}

int fork_before(const Api& api, const Options& options) {
  std::vector<pid_t> children;
  for (std::uint64_t i = 0; i < options.number("children"); ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      Session session(api);
      session.compute(static_cast<unsigned>(options.number("steps")), 200);
      done("child");
      return 0;
    }
    children.push_back(child);
  }
  Session session(api);
  session.compute(static_cast<unsigned>(options.number("steps")), 200);
  for (const pid_t child : children) await(child);
  return 0;
}

int fork_after(const Api& api, const Options& options) {
  Session session(api);
  session.compute(5, 200);
  std::vector<pid_t> children;
  for (std::uint64_t i = 0; i < options.number("children"); ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      volatile std::uint64_t sum = 0;
      for (std::uint64_t n = 0; n < 2'000'000; ++n) sum = sum + n;
      ::_exit(0);
    }
    children.push_back(child);
    session.compute(static_cast<unsigned>(options.number("steps")), 200);
  }
  for (const pid_t child : children) await(child);
  session.compute(5, 200);
  return 0;
}

int fork_use(const Api& api, const Options& options) {
  Session session(api);
  session.compute(5, 200);
  const pid_t child = ::fork();
  if (child == 0) {
    const CUresult result = api.cuMemsetD32_v2(session.data, 1, kElements);
    const CUresult launched = api.cuCtxSynchronize();
    say("child results=%d,%d", static_cast<int>(result), static_cast<int>(launched));
    ::_exit(result == CUDA_SUCCESS || launched == CUDA_SUCCESS ? 1 : 0);
  }
  await(child);
  session.compute(static_cast<unsigned>(options.number("steps")), 200);
  return 0;
}

int orphan(const Api& api, const Options& options) {
  Session session(api);
  session.compute(5, 200);
  if (::fork() == 0) {
    say("orphan pid=%d", static_cast<int>(::getpid()));
    ::sleep(static_cast<unsigned>(options.number("hold")));
    ::_exit(0);
  }
  session.compute(5, 200);
  done("orphan");
  ::_exit(0);  // holding, with the child alive
}

int exec_chain(const Api& api, char** argv) {
  Session session(api);
  session.compute(10, 200);
  done("before exec");
  char what[] = "--what", compute[] = "compute";
  char* arguments[] = {argv[0], what, compute, nullptr};
  ::execv("/proc/self/exe", arguments);
  wrong("exec failed");
}

int thread_exit(const Api& api, const Options& options) {
  Session session(api);
  Session second(api);
  GPUMUX_CALL(api.cuCtxSetCurrent(session.context));
  std::thread other([&] {
    while (true) second.compute(2, 100);
  });
  std::thread leaver([&] {
    session.compute(static_cast<unsigned>(options.number("steps")), 200);
    done("thread-exit");
    std::exit(0);
  });
  leaver.join();
  other.join();
  return 1;
}

int thread_gone(const Api& api, const Options& options) {
  Session session(api);
  GPUMUX_CALL(api.cuCtxSynchronize());
  for (std::uint64_t i = 0; i < options.number("steps"); ++i)
    std::thread([&] { session.compute(2, 200, true); }).join();
  return 0;
}

// A call with a request pending: its first cancellation point would end the thread.
struct CancelledCall {
  std::function<CUresult()> call;
  CUresult result = CUDA_ERROR_UNKNOWN;
  bool has_returned = false;
};

void* call_cancelled(void* argument) {
  auto& cancelled = *static_cast<CancelledCall*>(argument);
  pthread_cancel(pthread_self());
  cancelled.result = cancelled.call();
  cancelled.has_returned = true;
  pthread_testcancel();  // natively, too, the thread ends
  return nullptr;
}

void expect_return(const char* name, std::function<CUresult()> call) {
  CancelledCall cancelled{.call = std::move(call)};
  pthread_t thread{};
  void* ended = nullptr;
  if (pthread_create(&thread, nullptr, call_cancelled, &cancelled) != 0) wrong("no thread");
  pthread_join(thread, &ended);
  if (!cancelled.has_returned) wrong(std::string(name) + " was cancelled half-way");
  if (ended != PTHREAD_CANCELED) wrong(std::string(name) + " has lost the request to cancel its thread");
  if (cancelled.result != CUDA_SUCCESS) wrong(std::string(name) + " gave " + std::to_string(cancelled.result));
}

int cancel(const Api& api, const Options& options) {
  GPUMUX_CALL(api.cuInit(0));
  CUdevice device = 0;
  GPUMUX_CALL(api.cuDeviceGet(&device, 0));
  CUcontext context = nullptr;
  // The first call with a context: the process becomes a tenant.
  expect_return("cuCtxCreate", [&] { return api.cuCtxCreate_v2(&context, 0, device); });
  Session session(api);
  const auto in_session = [&](const auto& call) {
    return [&session, &call] {
      GPUMUX_CALL(session.api.cuCtxSetCurrent(session.context));
      return call();
    };
  };
  for (std::uint64_t i = 0; i < options.number("steps"); ++i) {
    CUdeviceptr data = 0;
    std::uint64_t value = 0;
    CUstream stream = nullptr;
    // Long enough that the turn is over by the next call, which has to ask for the GPU.
    expect_return("cuLaunchKernel", in_session([&] {
                    launch(api, session.kernels.spin, nullptr, false, std::uint64_t{6'000'000});
                    return CUDA_SUCCESS;
                  }));
    expect_return("cuStreamSynchronize", in_session([&] { return api.cuStreamSynchronize(nullptr); }));
    expect_return("cuMemAlloc", in_session([&] { return api.cuMemAlloc_v2(&data, std::size_t{64} << 20); }));
    expect_return("cuMemsetD32", in_session([&] { return api.cuMemsetD32_v2(data, 7, 2); }));
    expect_return("cuMemcpyDtoH", in_session([&] { return api.cuMemcpyDtoH_v2(&value, data, sizeof value); }));
    if (value != 0x7'0000'0007) wrong("copied " + std::to_string(value));
    expect_return("cuMemFree", in_session([&] { return api.cuMemFree_v2(data); }));
    expect_return("cuStreamCreate", in_session([&] { return api.cuStreamCreate(&stream, 0); }));
    expect_return("cuStreamDestroy", in_session([&] { return api.cuStreamDestroy_v2(stream); }));
  }
  std::thread([&] { session.compute(5, 200); }).join();
  return 0;
}

// The name of a descriptor in /proc; empty: there is no descriptor of that number.
std::string name_of(int number) {
  char name[4096];
  const std::string path = "/proc/self/fd/" + std::to_string(number);
  const ssize_t length = ::readlink(path.c_str(), name, sizeof name);
  return length > 0 ? std::string(name, static_cast<std::size_t>(length)) : std::string();
}

struct Replaced {
  int number = -1;
  int other_end = -1;
  std::string name;
};

Replaced replace_by_socket(int number) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends) != 0) wrong("no socket");
  if (::dup2(ends[1], number) != number) wrong("cannot replace " + std::to_string(number));
  ::close(ends[1]);
  return {number, ends[0], name_of(number)};
}

int replace(const Api& api, const Options& options) {
  constexpr int kNumbers = 4096;
  std::vector<std::string> before;
  for (int number = 0; number < kNumbers; ++number) before.push_back(name_of(number));
  Session session(api);
  session.compute(5, 200);
  CUipcMemHandle handle{};
  GPUMUX_CALL(api.cuIpcGetMemHandle(&handle, session.data));
  std::vector<Replaced> replaced;
  for (int number = 0; number < kNumbers; ++number) {
    const std::string name = name_of(number);
    std::istringstream prefixes(options.text("take"));
    for (std::string prefix; std::getline(prefixes, prefix, ',');) {
      if (!before[static_cast<std::size_t>(number)].empty() || !name.starts_with(prefix)) continue;
      say("replaced number=%d name=%s", number, name.c_str());
      replaced.push_back(replace_by_socket(number));
      break;
    }
    // The ends of the program's sockets are not the library's.
    if (!replaced.empty()) before[static_cast<std::size_t>(replaced.back().other_end)] = "other end";
  }
  session.compute(static_cast<unsigned>(options.number("steps")), 200);
  while (!options.may_end()) session.compute(5, 200);
  Session second(api, 1);
  second.compute(5, 200);
  for (const Replaced& one : replaced) {
    char byte = 0;
    if (::recv(one.other_end, &byte, 1, MSG_DONTWAIT) >= 0)
      wrong(std::to_string(one.number) + " is written to or closed");
    if (name_of(one.number) != one.name) wrong(std::to_string(one.number) + " is another thing");
  }
  return 0;
}

std::atomic<std::uint64_t> g_signals{0};

int signals(const Api& api, const Options& options) {
  struct sigaction action {};
  action.sa_handler = [](int) { g_signals.fetch_add(1, std::memory_order_relaxed); };
  for (const int number : {SIGALRM, SIGUSR1, SIGUSR2, SIGCHLD}) ::sigaction(number, &action, nullptr);  // no SA_RESTART
  const itimerval every{{0, 500}, {0, 500}};
  ::setitimer(ITIMER_REAL, &every, nullptr);
  Session session(api);
  for (std::uint64_t i = 0; i < options.number("steps"); ++i) {
    session.compute(2, 300);
    ::raise(SIGUSR1);
  }
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  say("signals=%llu", static_cast<unsigned long long>(g_signals.load()));
  return g_signals.load() > options.number("steps") ? 0 : 1;
}

Session* g_at_exit = nullptr;

int at_exit(const Api& api) {
  g_at_exit = new Session(api);
  g_at_exit->compute(5, 200);
  std::atexit([] {
    g_at_exit->compute(5, 200);
    done("atexit");
  });
  return 0;
}

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv,
                        {{"what", "compute"}, {"steps", "20"}, {"children", "3"}, {"hold", "0"}, {"take", ""}});
  static const Api api = open_driver(options.door());  // handlers of atexit use it
  const std::string& what = options.text("what");
  int code = 0;
  if (what == "crash") {
    code = crash(api, options);
  } else if (what == "fork-before") {
    code = fork_before(api, options);
  } else if (what == "fork-after") {
    code = fork_after(api, options);
  } else if (what == "fork-use") {
    code = fork_use(api, options);
  } else if (what == "orphan") {
    code = orphan(api, options);
  } else if (what == "exec") {
    code = exec_chain(api, argv);
  } else if (what == "thread-exit") {
    code = thread_exit(api, options);
  } else if (what == "thread-gone") {
    code = thread_gone(api, options);
  } else if (what == "cancel") {
    code = cancel(api, options);
  } else if (what == "replace") {
    code = replace(api, options);
  } else if (what == "signals") {
    code = signals(api, options);
  } else if (what == "atexit") {
    code = at_exit(api);
  } else if (what == "compute") {
    Session session(api);
    session.compute(static_cast<unsigned>(options.number("steps")), 200);
  } else {
    say("unknown --what %s", what.c_str());
    return 2;
  }
  if (code == 0) done(what.c_str());
  return code;
}

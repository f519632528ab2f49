// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/closer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "os/unix_socket.h"
#include "server/loop/log.h"

// Older glibc does not name the member.
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace gpumux::daemon {
namespace {

// A thread whose lane has nothing more to be closed stays this long: a tenant's end is several descriptors.
constexpr std::chrono::seconds kIdle{1};

int interrupt_signal() { return SIGRTMIN + 3; }

// Sends the calling thread a signal every kInterruptEvery while it is armed.
class Interrupter {
 public:
  Interrupter() {
    sigset_t all;
    ::sigfillset(&all);
    ::sigdelset(&all, interrupt_signal());
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = interrupt_signal();
    event.sigev_notify_thread_id = static_cast<pid_t>(::syscall(SYS_gettid));
    exists_ = ::timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    if (!exists_) server::log_warning("strangers' descriptors may take long to close: no timer can be made");
  }
  ~Interrupter() {
    if (exists_) ::timer_delete(timer_);
  }
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

  void arm() { set(kInterruptEvery); }
  void disarm() { set(std::chrono::milliseconds(0)); }

 private:
  void set(std::chrono::nanoseconds period) {
    itimerspec times{};
    times.it_interval.tv_nsec = times.it_value.tv_nsec = static_cast<long>(period.count());
    if (exists_) ::timer_settime(timer_, 0, &times, nullptr);
  }

  timer_t timer_{};
  bool exists_ = false;
};

}  // namespace

struct Closer::Queue {
  std::deque<os::FileDescriptor> waiting;
  std::size_t unclosed = 0;  // those, and the one that is being closed
  bool has_thread = false;
  std::condition_variable changed;
};

struct Closer::State {
  std::mutex mutex;
  std::map<Lane, Queue> lanes;  // with a thread, or with something that waits for one
  bool has_ended = false;       // nothing more will come
};

Closer::Closer() : state_(std::make_shared<State>()) {
  // Without SA_RESTART: the signal is there to interrupt.
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ::sigaction(interrupt_signal(), &nothing, nullptr);
}

Closer::~Closer() {
  const std::lock_guard guard(state_->mutex);
  state_->has_ended = true;
  for (auto& [name, lane] : state_->lanes) lane.changed.notify_one();
}

void Closer::drop(os::FileDescriptor connection) {
  if (!connection) return;
  // From here on no more can be sent to it: all that it has is in it now.
  ::shutdown(connection.get(), SHUT_RDWR);
  if (os::has_unread(connection.get())) add(std::move(connection), std::nullopt);
}

bool Closer::is_behind() const { return unclosed_in(std::nullopt) >= kMaxUnclosedConnections; }

void Closer::close(os::FileDescriptor received, const server::Account& account) {
  if (received) add(std::move(received), account);
}

std::size_t Closer::unclosed(const server::Account& account) const { return unclosed_in(account); }

std::size_t Closer::unclosed_in(const Lane& name) const {
  const std::lock_guard guard(state_->mutex);
  const auto lane = state_->lanes.find(name);
  if (lane == state_->lanes.end()) return 0;
  // A lane that is full gets nothing more, so add() cannot be the only one that tries again.
  if (!lane->second.has_thread) static_cast<void>(start(state_, name, lane->second));
  return lane->second.unclosed;
}

void Closer::add(os::FileDescriptor fd, const Lane& name) {
  const std::lock_guard guard(state_->mutex);
  Queue& lane = state_->lanes[name];
  lane.waiting.push_back(std::move(fd));
  ++lane.unclosed;
  if (lane.has_thread) return lane.changed.notify_one();
  const base::Status started = start(state_, name, lane);
  // Said once, not for each descriptor that waits with the first.
  if (!started && lane.unclosed == 1) {
    server::log_error("cannot start a thread that closes strangers' descriptors; trying again",
                      {{"of", name ? name->text() : "connections"}, {"why", started.error().message()}});
  }
}

base::Status Closer::start(const std::shared_ptr<State>& state, const Lane& name, Queue& lane) {
  try {
    std::thread([state, name] { run(state, name); }).detach();
    lane.has_thread = true;
    return {};
  } catch (const std::system_error& e) {
    return base::fail(base::Code::kExhausted, e.what());
  }
}

void Closer::run(const std::shared_ptr<State>& state, const Lane& name) {
  Interrupter interrupter;
  std::unique_lock lock(state->mutex);
  Queue& lane = state->lanes.at(name);
  for (;;) {
    lane.changed.wait_for(lock, kIdle, [&] { return !lane.waiting.empty() || state->has_ended; });
    if (lane.waiting.empty()) break;
    interrupter.arm();
    while (!lane.waiting.empty()) {
      os::FileDescriptor fd = std::move(lane.waiting.front());
      lane.waiting.pop_front();
      lock.unlock();
      fd.reset();
      lock.lock();
      --lane.unclosed;
    }
    interrupter.disarm();
  }
  state->lanes.erase(name);
}

}  // namespace gpumux::daemon

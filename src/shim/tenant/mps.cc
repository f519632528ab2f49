// SPDX-License-Identifier: Apache-2.0
#include "shim/tenant/mps.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "os/runtime_dir.h"
#include "shim/process/log.h"

namespace gpumux::shim {
namespace {

constexpr char kPipeDirectory[] = "CUDA_MPS_PIPE_DIRECTORY";
constexpr char kThreadPercentage[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

// Of the daemon that the process would be a tenant of; empty: there is none.
std::string servers_folder() {
  const auto folder = os::find_runtime_dir();
  return folder ? *folder + "/" + os::kMpsDir : std::string();
}

class Locked {
 public:
  explicit Locked(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Locked() { pthread_mutex_unlock(&mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace

bool Mps::may_be_asked() {
  const char* wish = ::secure_getenv("GPUMUX_MPS");
  if (wish != nullptr && wish[0] != '\0') return true;
  const std::string servers = servers_folder();
  return !servers.empty() && ::access(servers.c_str(), F_OK) == 0;
}

bool Mps::begin_asking() {
  const Locked locked(mutex_);
  if (phase_ != Phase::kOutside) return false;
  phase_ = Phase::kWithout;
  if (wanted_ == false) return false;
  if (const char* own = std::getenv(kPipeDirectory); own != nullptr) {
    const std::string servers = servers_folder();
    if (servers.empty() || !std::string_view(own).starts_with(servers + "/")) return false;
    ::unsetenv(kPipeDirectory);
  }
  if (!wanted_ && !may_be_asked()) return false;
  phase_ = Phase::kAsking;
  return true;
}

void Mps::await_answer() {
  const Locked locked(mutex_);
  while (phase_ == Phase::kAsking) pthread_cond_wait(&finished_, &mutex_);
}

void Mps::on_connected(bool answers) {
  {
    const Locked locked(mutex_);
    is_told_ = false;
    if (answers || phase_ != Phase::kAsking) return;
  }
  if (wanted_) write_log(wire::Severity::kWarning, "without MPS: the daemon is older than the library");
  finish(Phase::kWithout);
}

void Mps::announce(client::Agent::Announcement& announcement) {
  const Locked locked(mutex_);
  if (is_told_ || (phase_ != Phase::kAsking && phase_ != Phase::kClient)) return;
  wire::MpsAsked asked{.is_wanted = wanted_ ? 1u : 0u, .server = server_, .thread_percentage = thread_percentage_};
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) wire::set_text(asked.visible_gpus, visible);
  is_told_ = announcement.send(asked);
}

void Mps::on_answer(const wire::MpsAnswered& answer) {
  if (answer.server == 0) {
    const std::string why(wire::text_of(answer.why));
    if (!why.empty()) write_log(wire::Severity::kWarning, "without MPS: " + why);
    return finish(Phase::kWithout);
  }
  {
    const Locked locked(mutex_);
    if (phase_ != Phase::kAsking) return;
    server_ = answer.server;
    thread_percentage_ = answer.thread_percentage;
    ::setenv(kPipeDirectory, std::string(wire::text_of(answer.pipe_directory)).c_str(), 1);
    if (thread_percentage_ < 100) ::setenv(kThreadPercentage, std::to_string(thread_percentage_).c_str(), 1);
  }
  finish(Phase::kClient);
}

void Mps::on_ungated() { finish(Phase::kWithout); }

void Mps::finish(Phase phase) {
  const Locked locked(mutex_);
  if (phase_ != Phase::kAsking) return;
  phase_ = phase;
  pthread_cond_broadcast(&finished_);
}

}  // namespace gpumux::shim

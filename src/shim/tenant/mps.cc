// SPDX-License-Identifier: Apache-2.0
#include "shim/tenant/mps.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "os/futex.h"
#include "os/runtime_dir.h"
#include "shim/process/log.h"

namespace gpumux::shim {
namespace {

constexpr char kPipeDirectory[] = "CUDA_MPS_PIPE_DIRECTORY";
constexpr char kThreadPercentage[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

// The folder of the daemon that the process would be a tenant of; empty: there is none.
std::string servers_folder() {
  const auto folder = os::find_runtime_dir();
  return folder ? *folder + "/" + os::kMpsDir : std::string();
}

}  // namespace

void Mps::drop_inherited() {
  const char* own = std::getenv(kPipeDirectory);
  const std::string servers = own != nullptr ? servers_folder() : std::string();
  if (servers.empty() || !std::string_view(own).starts_with(servers + "/")) return;
  ::unsetenv(kPipeDirectory);
  ::unsetenv(kThreadPercentage);
}

bool Mps::may_be_asked() {
  if (std::getenv(kPipeDirectory) != nullptr) return false;
  const char* wish = ::secure_getenv("GPUMUX_USE_MPS");
  if (wish != nullptr && wish[0] != '\0') return true;
  const std::string servers = servers_folder();
  return !servers.empty() && ::access((servers + "/" + os::kMpsInvitation).c_str(), F_OK) == 0;
}

bool Mps::begin_asking(bool is_possible) {
  std::uint32_t outside = kOutside;
  if (!phase_.compare_exchange_strong(outside, kAsking)) return false;
  if (is_possible && wanted_ != false && may_be_asked()) return true;
  finish(kWithout);
  return false;
}

void Mps::await_answer() const {
  while (phase_.load(std::memory_order_acquire) == kAsking)
    os::futex_wait(phase_, kAsking, base::Duration(-1), os::FutexScope::kProcess);
}

void Mps::on_connected(bool answers) {
  // An older daemon does not know the question.
  is_told_ = !answers;
  if (answers || phase_.load(std::memory_order_acquire) != kAsking) return;
  write_log(wire::Severity::kWarning, "without MPS: the daemon is older than the library");
  finish(kWithout);
}

void Mps::announce(client::Agent::Announcement& announcement) {
  const std::uint32_t phase = phase_.load(std::memory_order_acquire);
  if (is_told_ || (phase != kAsking && phase != kClient)) return;
  wire::MpsAsked asked{
      .is_wanted = wanted_.value_or(false) ? 1u : 0u, .server = server_, .thread_percentage = thread_percentage_};
  // Empty means none to CUDA, and all in the message: so a name that no GPU has.
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    wire::set_text(asked.visible_gpus, visible[0] != '\0' ? visible : "none");
  is_told_ = announcement.send(asked);
}

void Mps::on_answer(const wire::MpsAnswered& answer) {
  if (phase_.load(std::memory_order_acquire) != kAsking) return;
  if (answer.server == 0) {
    const std::string why(wire::text_of(answer.why));
    if (!why.empty()) write_log(wire::Severity::kWarning, "without MPS: " + why);
    return finish(kWithout);
  }
  server_ = answer.server;
  thread_percentage_ = answer.thread_percentage;
  ::setenv(kPipeDirectory, std::string(wire::text_of(answer.pipe_directory)).c_str(), 1);
  if (thread_percentage_ < 100) ::setenv(kThreadPercentage, std::to_string(thread_percentage_).c_str(), 1);
  finish(kClient);
}

void Mps::finish(Phase phase) {
  std::uint32_t asking = kAsking;
  if (phase_.compare_exchange_strong(asking, phase)) os::futex_wake(phase_, os::FutexScope::kProcess);
}

}  // namespace gpumux::shim

// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/gpu_locks.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "server/loop/log.h"

namespace gpumux::daemon {

using boost::asio::posix::stream_descriptor;

GpuLocks::GpuLocks(boost::asio::io_context& io, Leases& leases, Closer& closer, std::string runtime_dir,
                   std::string folder, bool is_private, Events events)
    : io_(io),
      leases_(leases),
      closer_(closer),
      runtime_dir_(std::move(runtime_dir)),
      folder_(std::move(folder)),
      is_private_(is_private),
      events_(std::move(events)) {}

GpuLocks::Gpu& GpuLocks::add(const std::string& uuid, bool wanted) {
  return gpus_.emplace_back(io_, LockRequest{uuid, runtime_dir_, folder_, is_private_}, wanted);
}

void GpuLocks::leave_out(const std::string& uuid) { add(uuid, false); }

base::Status GpuLocks::take(const std::string& uuid) {
  const Gpu& gpu = add(uuid, true);
  std::optional<LockOwner> owner;
  auto lock = GpuLock::take(gpu.request, owner, closer_);
  if (lock) {
    hold({static_cast<std::uint32_t>(gpus_.size() - 1)}, std::move(*lock));
    return {};
  }
  if (lock.error().system_errno != EADDRINUSE) return tl::unexpected(lock.error());
  if (!other_) other_ = owner;
  return base::fail(base::Code::kExists,
                    owner ? "another daemon serves it: " + describe(*owner) : "another daemon serves it");
}

void GpuLocks::hold(base::GpuIndex gpu, GpuLock lock) {
  gpus_[gpu.value].lock.emplace(std::move(lock));
  answer(gpu);
}

bool GpuLocks::has_taken_over() const {
  return std::any_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.lock && gpu.lock->has_taken_over(); });
}

void GpuLocks::answer(base::GpuIndex gpu) {
  Gpu& mine = gpus_[gpu.value];
  if (!mine.waiter.is_open()) {
    const int copy = ::fcntl(mine.lock->fd(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return;  // visitors then learn the pid and not the directory
    mine.waiter.assign(copy);
  }
  mine.waiter.async_wait(stream_descriptor::wait_read, [this, gpu, &mine](const boost::system::error_code& error) {
    if (error) return;
    // Root's daemon takes over: it asks here. The locks go first, for root's daemon waits for them.
    if (const auto roots = mine.lock->overruled_by()) {
      give_up();
      return events_.overruled(gpu, *roots);
    }
    if (!closer_.is_behind()) mine.lock->answer();
    mine.pause.expires_after(closer_.is_behind() ? kInterruptEvery : std::chrono::milliseconds(0));
    mine.pause.async_wait([this, gpu](const boost::system::error_code& stopped) {
      if (!stopped) answer(gpu);
    });
  });
}

void GpuLocks::report_squatter(base::GpuIndex gpu) {
  const Gpu& mine = gpus_[gpu.value];
  if (!mine.lock || !mine.lock->squatter()) return;
  const std::string claimant = describe(*mine.lock->squatter());
  leases_.set_claimed_by(gpu, claimant);
  server::log_warning("a process claims a GPU of this daemon; the daemon ignores the claim",
                      {{"gpu", gpu.value}, {"uuid", mine.request.uuid_text}, {"who", claimant}});
}

void GpuLocks::retry() {
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    Gpu& mine = gpus_[i];
    if (!mine.wanted) continue;
    if (mine.lock) {
      if (mine.lock->squatter() && mine.lock->take_name()) leases_.set_claimed_by({i}, "");
      continue;
    }
    std::optional<LockOwner> ignored;
    auto lock = GpuLock::take(mine.request, ignored, closer_, GpuLock::Patience::kNone);
    if (!lock) continue;
    hold({i}, std::move(*lock));
    report_squatter({i});
    server::log_info("a GPU has become free and is served now", {{"gpu", i}, {"uuid", mine.request.uuid_text}});
    events_.gained({i});
  }
}

void GpuLocks::give_up() {
  for (Gpu& gpu : gpus_) gpu.lock.reset();
}

}  // namespace gpumux::daemon

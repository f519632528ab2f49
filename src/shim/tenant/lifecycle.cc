// SPDX-License-Identifier: Apache-2.0
// When this process becomes a tenant, and what becomes of it in a forked child.
//
// The library does nothing until the program creates a context or submits work. A process that does not use CUDA pays
// only for being loaded. There are no destructors: the program may call CUDA from its own until the very end. The
// kernel closes the connection, and so the daemon knows.
//
// fork copies one thread. The child has no agent. Its copy of the page would be its parent's page. Its copy of the
// socket would speak for the parent, and hold the connection open after the parent's death. So the child forgets the
// tenant, closes what it inherited, and becomes a tenant of its own if it ever uses CUDA. (The driver refuses children
// of an initialised process; then their calls find no context and pass to the driver, which says so.)
#include <pthread.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "base/no_fork.h"
#include "gate/thread_records.h"
#include "shim/process/log.h"
#include "shim/process/real_driver.h"
#include "shim/tenant/tenant.h"

namespace gpumux::shim {
namespace {

std::atomic<Tenant*> g_tenant{nullptr};
std::atomic<bool> g_without{false};  // disabled, or no page could be made: everything goes to the driver
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_mps_mutex = PTHREAD_MUTEX_INITIALIZER;
bool g_has_initialised = false;  // the first cuInit has come; under g_mps_mutex

void in_child() {
  Tenant* const parents = g_tenant.exchange(nullptr, std::memory_order_relaxed);
  pthread_mutex_init(&g_mutex, nullptr);
  pthread_mutex_init(&g_mps_mutex, nullptr);
  g_has_initialised = false;
  base::NoFork::in_child();
  gate::forget_threads_after_fork();
  if (parents != nullptr)
    parents->close_after_fork();  // the object itself is left alone: its locks may be held by threads that are no more
}

Tenant* make_tenant() {
  static bool have_fork_handler = false;
  if (!have_fork_handler)
    have_fork_handler = pthread_atfork(base::NoFork::prepare, base::NoFork::in_parent, in_child) == 0;
  Settings settings = read_settings();
  if (settings.disabled) return nullptr;
  set_log(settings.log);
  auto page = client::LeasePageMemory::make();
  if (!page) {
    tell_user("running without gpumux: " + page.error().message());
    return nullptr;
  }
  return new (std::nothrow) Tenant(driver(), std::move(settings), std::move(*page));
}

}  // namespace

Tenant* tenant_if_any() { return g_tenant.load(std::memory_order_acquire); }

Tenant* tenant() {
  Tenant* tenant = g_tenant.load(std::memory_order_acquire);
  if (tenant != nullptr || g_without.load(std::memory_order_relaxed)) return tenant;
  pthread_mutex_lock(&g_mutex);
  tenant = g_tenant.load(std::memory_order_relaxed);
  if (tenant == nullptr && !g_without.load(std::memory_order_relaxed)) {
    tenant = make_tenant();
    g_without.store(tenant == nullptr, std::memory_order_relaxed);
    g_tenant.store(tenant, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_mutex);
  return tenant;
}

void settle_mps() {
  pthread_mutex_lock(&g_mps_mutex);
  // Later ones find the driver initialised.
  if (!std::exchange(g_has_initialised, true)) {
    Mps::drop_inherited();
    if (tenant_if_any() != nullptr || Mps::may_be_asked()) {
      if (Tenant* const own = tenant()) own->settle_mps();
    }
  }
  pthread_mutex_unlock(&g_mps_mutex);
}

}  // namespace gpumux::shim

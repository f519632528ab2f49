// SPDX-License-Identifier: Apache-2.0
#include "shim/process/real_driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include "base/no_cancellation.h"
#include "shim/process/channels.h"
#include "shim/process/real_doors.h"
#include "shim/process/settings.h"

namespace gpumux::shim {

constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

namespace {

constexpr char kDriverName[] = "libcuda.so.1";
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

void* find(void* handle, const char* symbol) { return real_dlsym(handle, symbol); }

void load_from(void* handle) {
  const base::NoCancellation with_lock;
  pthread_mutex_lock(&g_mutex);
  if (!g_driver_loaded.load(std::memory_order_relaxed)) {
    if (handle != nullptr) {
      cuda::load_driver(g_driver, find, handle);
      if (!is_disabled()) watch_channels(g_driver);
    }
    // A program may call a hook before it has a driver and load one later: only a found driver is final.
    g_driver_loaded.store(handle != nullptr, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_mutex);
}

}  // namespace

void load_real_driver() {
  // dlopen reports "not loaded" through dlerror, which belongs to the program; it was asked for a CUDA call, not for
  // this.
  void* handle = real_dlopen(kDriverName, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) handle = real_dlopen(kDriverName, RTLD_LAZY | RTLD_LOCAL);
  load_from(handle);
}

const cuda::Driver* loaded_driver() {
  if (!g_driver_loaded.load(std::memory_order_acquire)) {
    void* handle = real_dlopen(kDriverName, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) return nullptr;
    load_from(handle);
  }
  return &g_driver;
}

}  // namespace gpumux::shim

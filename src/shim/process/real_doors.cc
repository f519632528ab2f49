// SPDX-License-Identifier: Apache-2.0
#include "shim/process/real_doors.h"

#include <dlfcn.h>

void* gpumux_real_dlsym = nullptr;
void* gpumux_real_dlopen = nullptr;

namespace gpumux::shim {
namespace {

// The base versions of the platform, which every glibc keeps.
#if defined(__x86_64__)
constexpr char kBaseVersion[] = "GLIBC_2.2.5";
#elif defined(__aarch64__)
constexpr char kBaseVersion[] = "GLIBC_2.17";
#endif

}  // namespace

// Both are idempotent, so threads that come here at once do no harm. The data dependency orders the use.
void find_real_doors() {
  if (gpumux_real_dlopen == nullptr) gpumux_real_dlopen = ::dlvsym(RTLD_NEXT, "dlopen", kBaseVersion);
  if (gpumux_real_dlsym == nullptr) gpumux_real_dlsym = ::dlvsym(RTLD_NEXT, "dlsym", kBaseVersion);
}

void* real_dlsym(void* handle, const char* symbol) {
  find_real_doors();
  return reinterpret_cast<void* (*)(void*, const char*)>(gpumux_real_dlsym)(handle, symbol);
}

void* real_dlopen(const char* name, int flags) {
  find_real_doors();
  return reinterpret_cast<void* (*)(const char*, int)>(gpumux_real_dlopen)(name, flags);
}

}  // namespace gpumux::shim

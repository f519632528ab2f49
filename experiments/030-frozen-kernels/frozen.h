// SPDX-License-Identifier: Apache-2.0
// What the programs of this experiment share: they see the channels that libcuda makes in this process, and freeze and
// thaw them. One source file of a program includes it, and is linked with -rdynamic, so that libcuda finds its ioctl.
//
// The control is NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, with the structures of NVIDIA's open kernel modules 580
// (ctrl2080fifo.h, nvos.h).
#pragma once

#include <cuda.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::printf("%s: %s\n", call, name != nullptr ? name : "?");
  std::fflush(stdout);
  ::_exit(3);
}
#define CHECK(call) check(call, #call)

// ---- channels -----------------------------------------------------------------------------------

constexpr unsigned kAlloc = 0x2b, kControl = 0x2a;  // NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL
constexpr std::uint32_t kSubdevice = 0x2080, kGroup = 0xa06c;
bool is_channel(std::uint32_t kind) { return (kind & 0xff) == 0x6f; }  // each generation's GPFIFO class

struct Alloc {  // the head of NVOS21 and NVOS64
  std::uint32_t root, parent, object, kind;
  std::uint64_t parameters;
};
struct Control {  // NVOS54
  std::uint32_t client, object, command, flags;
  std::uint64_t parameters;
  std::uint32_t size, status;
};
struct Disable {  // NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS
  std::uint8_t disable;
  std::uint32_t count;
  std::uint8_t only_scheduling, rewind;
  alignas(8) std::uint64_t event;
  std::uint32_t clients[64], channels[64];
};
struct Object {
  std::uint32_t client, parent, object, kind;
  int fd;
};
std::mutex g_mutex;
std::vector<Object> g_objects;
std::size_t g_first = 0;    // the groups from here on are the kernel's context's
bool g_whole = false;       // freeze all channels of the process, and not only those of that group
std::uint32_t g_count = 0;  // channels that the last control named

std::atomic<bool> g_frozen{false};
std::atomic<std::int64_t> g_frozen_at{0};
std::vector<double> g_took[2];  // milliseconds: thaws, freezes

void set_frozen(bool frozen) {
  const std::lock_guard lock(g_mutex);
  const Object* subdevice = nullptr;
  const Object* group = nullptr;
  for (const Object& one : g_objects) {
    if (one.kind == kSubdevice && subdevice == nullptr) subdevice = &one;
  }
  for (std::size_t i = g_first; i < g_objects.size() && group == nullptr; ++i) {
    if (g_objects[i].kind == kGroup) group = &g_objects[i];
  }
  if (subdevice == nullptr || group == nullptr) {
    std::printf("no channels were seen\n");
    ::_exit(4);
  }
  Disable parameters{};
  parameters.disable = frozen ? 1 : 0;
  for (const Object& one : g_objects) {
    if (!is_channel(one.kind) || (!g_whole && one.parent != group->object) || parameters.count >= 64) continue;
    parameters.clients[parameters.count] = one.client;
    parameters.channels[parameters.count++] = one.object;
  }
  Control control{subdevice->client,
                  subdevice->object,
                  0x2080110b,
                  0,
                  reinterpret_cast<std::uint64_t>(&parameters),
                  sizeof parameters,
                  0};
  g_count = parameters.count;
  const auto begin = Clock::now();
  const long result =
      ::syscall(SYS_ioctl, subdevice->fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', kControl, sizeof control), &control);
  if (result != 0 || control.status != 0) {
    std::printf("the control gave %ld, status %x, for %u channels\n", result, control.status, parameters.count);
    ::_exit(4);
  }
  g_frozen_at = Clock::now().time_since_epoch().count();
  g_frozen = frozen;
  g_took[frozen ? 1 : 0].push_back(ms_since(begin));
}

void watch() {
  for (;;) {
    ::usleep(100'000);
    const Clock::duration since = Clock::now().time_since_epoch() - Clock::duration(g_frozen_at.load());
    if (!g_frozen || since < 5s) continue;
    std::printf("frozen for five seconds: thawing, and ending\n");
    set_frozen(false);
    ::sleep(2);
    ::_exit(9);
  }
}

}  // namespace

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const long result = ::syscall(SYS_ioctl, fd, request, argument);
  if (result == 0 && ((request >> 8) & 0xff) == 'F' && (request & 0xff) == kAlloc) {
    const auto* alloc = static_cast<const Alloc*>(argument);
    const std::lock_guard lock(g_mutex);
    g_objects.push_back({alloc->root, alloc->parent, alloc->object, alloc->kind, fd});
  }
  return static_cast<int>(result);
}

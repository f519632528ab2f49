// SPDX-License-Identifier: Apache-2.0
// Counts every driver call's results, by name, as the program gets them: a library that is preloaded, alone or in front
// of libgpumux.so. It knows no prototypes. Each entry is a stub that puts another return address on the stack in place
// of the caller's, jumps to what the program would have called, and so sees what that returns.
//
//   GPUMUX_RECORD=DIR          each process writes DIR/PID.calls: the table below, in the byte order of the machine
//   GPUMUX_RECORD_ABOVE=FILE   libgpumux.so, where it is preloaded behind this library
//
// Stubs come in two kinds. The first kCalls are exported under the names of the driver's entries, for programs that are
// linked with libcuda.so.1. The others are given out as functions are asked of dlsym and cuGetProcAddress.
//
// The table is a shared mapping of the file, so it is complete however the process ends. A child of fork counts in its
// parent's.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/entries.gen.h"

namespace {

// The debugger's entries, which come last, are no functions that a program calls.
constexpr std::size_t kExported = [] {
  std::size_t count = 0;
  for (const auto& entry : gpumux::cuda::kEntries) count += entry.symbol[2] >= 'A' && entry.symbol[2] <= 'Z' ? 1 : 0;
  return count;
}();
constexpr std::size_t kGivenOut = 1024;  // as in the stubs below
constexpr std::size_t kStubs = kExported + kGivenOut;
constexpr std::size_t kStubBytes = 16;
constexpr std::size_t kResults = 6;
constexpr std::size_t kNameBytes = 80;
constexpr std::size_t kDeepest = 64;  // calls within calls; deeper ones are not counted

struct Call {
  char name[kNameBytes];
  std::atomic<std::uint64_t> counts[kResults];
  std::atomic<std::uint32_t> results[kResults];  // result + 1; 0: free
};

struct Frame {
  void* caller = nullptr;
  std::uint32_t stub = 0;
};

using Dlsym = void* (*)(void*, const char*);
using GetAddress = int (*)(const char*, void**, int, std::uint64_t);
using GetAddressV2 = int (*)(const char*, void**, int, std::uint64_t, void*);

constinit std::atomic<void*> g_targets[kStubs];
constinit std::atomic<std::size_t> g_given_out{0};
constinit std::atomic<bool> g_giving_out{false};
constinit Call* g_calls = nullptr;
constinit Dlsym g_next_dlsym = nullptr;
constinit std::atomic<void*> g_get_address{nullptr};
constinit std::atomic<void*> g_get_address_v2{nullptr};
constinit thread_local Frame t_frames[kDeepest];
constinit thread_local std::size_t t_depth = 0;

void count(std::size_t stub, int result) {
  if (g_calls == nullptr) return;
  Call& call = g_calls[stub];
  const auto wanted = static_cast<std::uint32_t>(result) + 1;
  for (std::size_t i = 0; i < kResults; ++i) {
    std::uint32_t there = 0;
    if (call.results[i].load() == wanted || call.results[i].compare_exchange_strong(there, wanted) || there == wanted) {
      call.counts[i].fetch_add(1);
      return;
    }
  }
}

void name_call(std::size_t stub, const char* name) {
  if (g_calls != nullptr) std::snprintf(g_calls[stub].name, kNameBytes, "%s", name);
}

void open_table() {
  const char* const folder = std::getenv("GPUMUX_RECORD");
  if (folder == nullptr) return;
  char path[512];
  std::snprintf(path, sizeof path, "%s/%d.calls", folder, static_cast<int>(::getpid()));
  const int fd = ::open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  if (::ftruncate(fd, sizeof(Call) * kStubs) == 0) {
    void* const memory = ::mmap(nullptr, sizeof(Call) * kStubs, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) g_calls = static_cast<Call*>(memory);
  }
  ::close(fd);
  for (std::size_t i = 0; i < kExported; ++i) name_call(i, gpumux::cuda::kEntries[i].symbol);
}

void find_next_dlsym() {
  const auto of_libc = reinterpret_cast<Dlsym>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  const char* const above = std::getenv("GPUMUX_RECORD_ABOVE");
  void* const library = above != nullptr ? ::dlopen(above, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  void* const of_gpumux = library != nullptr ? of_libc(library, "dlsym") : nullptr;
  g_next_dlsym = of_gpumux != nullptr ? reinterpret_cast<Dlsym>(of_gpumux) : of_libc;
}

[[gnu::constructor]] void begin() {
  if (g_next_dlsym == nullptr) find_next_dlsym();
  open_table();
}

bool is_of_driver(const char* name) { return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z'; }

}  // namespace

extern "C" {

extern const char gpumux_record_stubs[];

// From a stub: where to go. The caller's address on the stack becomes the way back to gpumux_record_left.
extern const char gpumux_record_back[];
__attribute__((used)) void* gpumux_record_entered(std::uint32_t stub, void** caller) {
  void* target = g_targets[stub].load(std::memory_order_acquire);
  if (target == nullptr) {
    if (g_next_dlsym == nullptr) find_next_dlsym();
    target = reinterpret_cast<Dlsym>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"))(RTLD_NEXT,
                                                                                  gpumux::cuda::kEntries[stub].symbol);
    g_targets[stub].store(target, std::memory_order_release);
  }
  if (target == nullptr) std::abort();  // the program is linked with what the driver does not have
  if (t_depth == kDeepest) return target;
  t_frames[t_depth++] = {*caller, stub};
  *caller = const_cast<char*>(gpumux_record_back);
  return target;
}

// After the call: where the caller goes on.
__attribute__((used)) void* gpumux_record_left(int result) {
  const Frame frame = t_frames[--t_depth];
  count(frame.stub, result);
  return frame.caller;
}

}  // extern "C"

asm(R"(
.text
.globl gpumux_record_back
.hidden gpumux_record_back
.hidden gpumux_record_stubs
gpumux_record_call:
  pushq %rax
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  subq $128, %rsp
  movups %xmm0, (%rsp)
  movups %xmm1, 16(%rsp)
  movups %xmm2, 32(%rsp)
  movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp)
  movups %xmm5, 80(%rsp)
  movups %xmm6, 96(%rsp)
  movups %xmm7, 112(%rsp)
  movl %r11d, %edi
  leaq 184(%rsp), %rsi
  call gpumux_record_entered@PLT
  movq %rax, %r11
  movups (%rsp), %xmm0
  movups 16(%rsp), %xmm1
  movups 32(%rsp), %xmm2
  movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4
  movups 80(%rsp), %xmm5
  movups 96(%rsp), %xmm6
  movups 112(%rsp), %xmm7
  addq $128, %rsp
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  popq %rax
  jmp *%r11
gpumux_record_back:
  subq $32, %rsp
  movq %rax, (%rsp)
  movq %rdx, 8(%rsp)
  movl %eax, %edi
  call gpumux_record_left@PLT
  movq %rax, %r11
  movq (%rsp), %rax
  movq 8(%rsp), %rdx
  addq $32, %rsp
  jmp *%r11
.set gpumux_stub, 0
.macro GPUMUX_STUB
.p2align 4
  movl $gpumux_stub, %r11d
  jmp gpumux_record_call
.set gpumux_stub, gpumux_stub + 1
.endm
.p2align 4
.globl gpumux_record_stubs
gpumux_record_stubs:
)");
#define GPUMUX_EXPORTED(name) \
  asm(".p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\nGPUMUX_STUB\n");
#include "recorder_entries.gen.h"
asm(".rept 1024\nGPUMUX_STUB\n.endr\n");

namespace {

// A stub for a function that the program has asked for.
void* stub_for(const char* name, void* target) {
  while (g_giving_out.exchange(true, std::memory_order_acquire)) {
  }
  const std::size_t given = g_given_out.load();
  std::size_t stub = kExported;
  while (stub < kExported + given &&
         (g_targets[stub].load() != target || (g_calls != nullptr && std::strcmp(g_calls[stub].name, name) != 0)))
    ++stub;
  if (stub == kExported + given && given < kGivenOut) {
    name_call(stub, name);
    g_targets[stub].store(target, std::memory_order_release);
    g_given_out.store(given + 1);
  }
  g_giving_out.store(false, std::memory_order_release);
  if (stub == kStubs) return target;
  return const_cast<char*>(gpumux_record_stubs) + stub * kStubBytes;
}

int record_get_address(const char* symbol, void** function, int version, std::uint64_t flags);
int record_get_address_v2(const char* symbol, void** function, int version, std::uint64_t flags, void* status);

void* wrapped(const char* name, void* target) {
  if (target == nullptr || !is_of_driver(name)) return target;
  if (std::strcmp(name, "cuGetProcAddress_v2") == 0) {
    g_get_address_v2.store(target);
    return reinterpret_cast<void*>(&record_get_address_v2);
  }
  if (std::strcmp(name, "cuGetProcAddress") == 0) {
    g_get_address.store(target);
    return reinterpret_cast<void*>(&record_get_address);
  }
  return stub_for(name, target);
}

// The answer of cuGetProcAddress for itself depends on the version that is asked for.
void* wrapped_answer(const char* symbol, void* target, int version) {
  const bool is_itself = std::strcmp(symbol, "cuGetProcAddress") == 0;
  return wrapped(is_itself && version >= 12000 ? "cuGetProcAddress_v2" : symbol, target);
}

int record_get_address(const char* symbol, void** function, int version, std::uint64_t flags) {
  const int result = reinterpret_cast<GetAddress>(g_get_address.load())(symbol, function, version, flags);
  if (result == 0 && function != nullptr) *function = wrapped_answer(symbol, *function, version);
  return result;
}

int record_get_address_v2(const char* symbol, void** function, int version, std::uint64_t flags, void* status) {
  const int result = reinterpret_cast<GetAddressV2>(g_get_address_v2.load())(symbol, function, version, flags, status);
  if (result == 0 && function != nullptr) *function = wrapped_answer(symbol, *function, version);
  return result;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) {
  if (g_next_dlsym == nullptr) find_next_dlsym();
  // The answer depends on the caller, so this must be compiled to a jump, not to a call.
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) return g_next_dlsym(handle, name);
  return wrapped(name, g_next_dlsym(handle, name));
}

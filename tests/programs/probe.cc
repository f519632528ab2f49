// SPDX-License-Identifier: Apache-2.0
// Asks for every entry of the table by one door, says which library answers. With --call it calls each entry that
// is not forwarded, with nothing but zeros.
//
//   probe --door dlsym|procaddr [--call] [--context]      linked to nothing
//   probe_linked --door linked ...                                       every symbol of the driver is a reference of
//   the program
//
// A line for each answer: `SYMBOL DOOR[:VERSION:FLAGS] LIBRARY [CODE]`. Natively the same calls give the same codes.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "cuda/driver.gen.h"
#include "cuda/entries.h"

#ifdef GPUMUX_PROBE_LINKED
struct LinkedEntry {
  const char* symbol;
  void (*function)();
};
extern "C" const LinkedEntry gpumux_linked_entries[];
extern "C" const unsigned long gpumux_linked_entry_count;
#endif

namespace {

using namespace gpumux::cuda;

using Any = CUresult (*)(std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                         std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t);

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

template <typename... Arguments>
CUresult call_as(CUresult (*Driver::*)(Arguments...), void* function) {
  return reinterpret_cast<CUresult (*)(Arguments...)>(function)(Arguments{}...);
}

CUresult call_with_zeros(std::string_view symbol, void* function) {
  // These have a large structure by value. On arm64 the callee gets its address, and reads it.
  if (symbol == "cuEGLStreamProducerPresentFrame") return call_as(&Driver::cuEGLStreamProducerPresentFrame, function);
  if (symbol == "cuIpcOpenEventHandle") return call_as(&Driver::cuIpcOpenEventHandle, function);
  if (symbol == "cuIpcOpenMemHandle") return call_as(&Driver::cuIpcOpenMemHandle, function);
  if (symbol == "cuIpcOpenMemHandle_v2") return call_as(&Driver::cuIpcOpenMemHandle_v2, function);
  return reinterpret_cast<Any>(function)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

void report(const EntryInfo& info, const std::string& door, void* function, bool calls) {
  Dl_info where{};
  if (function == nullptr) {
    std::printf("%s %s none\n", info.symbol, door.c_str());
    return;
  }
  const char* library = ::dladdr(function, &where) != 0 ? base_name(where.dli_fname) : "?";
  if (!calls || info.action == Action::kForward) {
    std::printf("%s %s %s\n", info.symbol, door.c_str(), library);
    return;
  }
  // A call that never returns should leave its name behind.
  std::fflush(stdout);
  const CUresult result = call_with_zeros(info.symbol, function);
  std::printf("%s %s %s %d\n", info.symbol, door.c_str(), library, static_cast<int>(result));
}

void by_symbol(void* library, bool calls) {
  for (const EntryInfo& info : kEntries) report(info, "dlsym", ::dlsym(library, info.symbol), calls);
}

void by_proc_address(void* library, bool calls, const char* entry_name) {
  using Get = CUresult (*)(const char*, void**, int, std::uint64_t, void*);
  const auto get = reinterpret_cast<Get>(::dlsym(library, entry_name));
  if (get == nullptr) return;
  for (const EntryInfo& info : kEntries) {
    if (info.api_name == nullptr || info.api_name[0] == '\0' || info.since == 0) continue;
    const bool per_thread = info.variant == StreamVariant::kPtsz || info.variant == StreamVariant::kPtds;
    void* function = nullptr;
    const CUresult result = get(info.api_name, &function, static_cast<int>(info.since), per_thread ? 2 : 1, nullptr);
    const std::string door =
        std::string(entry_name) + ":" + std::to_string(info.since) + (per_thread ? ":ptsz" : ":legacy");
    report(info, door, result == CUDA_SUCCESS ? function : nullptr, calls);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string door = "dlsym";
  bool calls = false;
  bool context = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--door" && i + 1 < argc) {
      door = argv[++i];
    } else if (argument == "--call") {
      calls = true;
    } else if (argument == "--context") {
      context = true;
    } else {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      return 2;
    }
  }
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::printf("no driver: %s\n", ::dlerror());
    // A program may still find a name that is exported to all, and call it.
    if (void* const init = ::dlsym(RTLD_DEFAULT, "cuInit"); init != nullptr) {
      std::printf("cuInit gives %d\n", static_cast<int>(reinterpret_cast<CUresult (*)(unsigned)>(init)(0)));
    }
    return 0;
  }
  const auto init = reinterpret_cast<CUresult (*)(unsigned)>(::dlsym(library, "cuInit"));
  std::printf("cuInit %d\n", static_cast<int>(init(0)));
  if (context) {
    CUcontext created = nullptr;
    const auto create =
        reinterpret_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(::dlsym(library, "cuCtxCreate_v2"));
    std::printf("cuCtxCreate_v2 %d\n", static_cast<int>(create(&created, 0, 0)));
  }
  if (door == "dlsym") {
    by_symbol(library, calls);
  } else if (door == "procaddr") {
    by_proc_address(library, calls, "cuGetProcAddress");
    by_proc_address(library, calls, "cuGetProcAddress_v2");
#ifdef GPUMUX_PROBE_LINKED
  } else if (door == "linked") {
    for (unsigned long i = 0; i < gpumux_linked_entry_count; ++i) {
      if (const auto entry = find_symbol(gpumux_linked_entries[i].symbol)) {
        report(info_of(*entry), "linked", reinterpret_cast<void*>(gpumux_linked_entries[i].function), calls);
      }
    }
#endif
  } else {
    std::fprintf(stderr, "--door must be dlsym, procaddr or (probe_linked) linked\n");
    return 2;
  }
  std::printf("end\n");
  return 0;
}

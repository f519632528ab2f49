// SPDX-License-Identifier: Apache-2.0
#include "tests/programs/gpu.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "cuda/entries.h"
#include "cuda/prototypes.gen.h"

namespace gpumux::programs {
namespace {

// Only the names count for the simulated driver; a real one compiles these empty kernels.
constexpr char kImage[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry gpumux_fill(.param .u64 a, .param .u64 b, .param .u32 c) { ret; }\n"
    ".visible .entry gpumux_saxpy(.param .u64 a, .param .u64 b, .param .f32 c, .param .u64 d) { ret; }\n"
    ".visible .entry gpumux_checksum(.param .u64 a, .param .u64 b, .param .u64 c) { ret; }\n"
    ".visible .entry gpumux_spin(.param .u64 a) { ret; }\n"
    ".visible .entry gpumux_increment(.param .u64 a, .param .u64 b) { ret; }\n"
    ".visible .entry gpumux_rendezvous(.param .u64 a, .param .u64 b, .param .u32 c) { ret; }\n";

void* by_dlsym(const char* symbol) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    say("no driver: %s", ::dlerror());
    std::exit(3);
  }
  return ::dlsym(library, symbol);
}

void* by_proc_address(const char* symbol) {
  const auto entry = find_symbol(symbol);
  const auto get = reinterpret_cast<decltype(Driver::cuGetProcAddress_v2)>(by_dlsym("cuGetProcAddress_v2"));
  if (!entry || get == nullptr) return nullptr;
  const EntryInfo& info = info_of(*entry);
  const bool per_thread = info.variant == StreamVariant::kPtsz || info.variant == StreamVariant::kPtds;
  void* function = nullptr;
  GPUMUX_CALL(get(info.api_name, &function, static_cast<int>(info.since), per_thread ? 2 : 0, nullptr));
  return function;
}

}  // namespace

Api open_driver(Door door) {
  Api api;
#define GPUMUX_OPEN(name)                                                                                             \
  if (door == Door::kLinked) {                                                                                        \
    api.name = &cuda::name;                                                                                           \
  } else {                                                                                                            \
    api.name = reinterpret_cast<decltype(api.name)>(door == Door::kDlsym ? by_dlsym(#name) : by_proc_address(#name)); \
  }                                                                                                                   \
  if (api.name == nullptr) wrong("the driver has no " #name);
  GPUMUX_PROGRAM_ENTRIES(GPUMUX_OPEN)
#undef GPUMUX_OPEN
  return api;
}

Options::Options(int argc, char** argv, std::map<std::string, std::string> defaults) : values_(std::move(defaults)) {
  values_.emplace("door", "linked");
  values_.emplace("until", "");
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--") || !values_.contains(argument.substr(2))) {
      say("unknown option %s", argv[i]);
      std::exit(2);
    }
    const bool has_value = i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0;
    values_[argument.substr(2)] = has_value ? argv[++i] : "1";
  }
}

std::uint64_t Options::number(const std::string& name) const {
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text(name).c_str(), &end, 10);
  if (end == text(name).c_str() || *end != '\0') {
    say("--%s must be a number, not %s", name.c_str(), text(name).c_str());
    std::exit(2);
  }
  return value;
}

Door Options::door() const {
  if (text("door") == "linked") return Door::kLinked;
  if (text("door") == "dlsym") return Door::kDlsym;
  if (text("door") == "procaddr") return Door::kProcAddress;
  say("--door must be linked, dlsym or procaddr");
  std::exit(2);
}

std::vector<int> Options::list(const std::string& name) const {
  std::vector<int> values;
  const std::string& all = text(name);
  for (std::size_t at = 0; at <= all.size();) {
    const std::size_t comma = std::min(all.find(',', at), all.size());
    values.push_back(std::atoi(all.substr(at, comma - at).c_str()));
    at = comma + 1;
  }
  return values;
}

bool Options::may_end() const { return text("until").empty() || ::access(text("until").c_str(), F_OK) == 0; }

bool SameCount::goes_on(std::uint64_t done) {
  const std::lock_guard lock(mutex_);
  if (!end_ && options_.may_end()) end_ = std::max(begun_, at_least_);
  if (end_ && done >= *end_) return false;
  begun_ = std::max(begun_, done + 1);
  return true;
}

void fail(const char* what, CUresult result) {
  say("failed code=%d call=%s", static_cast<int>(result), what);
  std::fprintf(stderr, "%s gave %d\n", what, static_cast<int>(result));
  std::_Exit(3);
}

void wrong(const std::string& what) {
  say("wrong %s", what.c_str());
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(4);
}

std::uint64_t now_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

void say(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length < 0) return;
  if (length > static_cast<int>(sizeof line) - 2) length = static_cast<int>(sizeof line) - 2;
  line[length] = '\n';
  for (ssize_t at = 0; at <= length;) {
    const ssize_t written = ::write(STDOUT_FILENO, line + at, static_cast<std::size_t>(length + 1 - at));
    if (written <= 0) return;
    at += written;
  }
}

Kernels load_kernels(const Api& api) {
  Kernels kernels;
  GPUMUX_CALL(api.cuModuleLoadData(&kernels.module, kImage));
  GPUMUX_CALL(api.cuModuleGetFunction(&kernels.fill, kernels.module, "gpumux_fill"));
  GPUMUX_CALL(api.cuModuleGetFunction(&kernels.saxpy, kernels.module, "gpumux_saxpy"));
  GPUMUX_CALL(api.cuModuleGetFunction(&kernels.checksum, kernels.module, "gpumux_checksum"));
  GPUMUX_CALL(api.cuModuleGetFunction(&kernels.spin, kernels.module, "gpumux_spin"));
  GPUMUX_CALL(api.cuModuleGetFunction(&kernels.increment, kernels.module, "gpumux_increment"));
  GPUMUX_CALL(api.cuModuleGetFunction(&kernels.rendezvous, kernels.module, "gpumux_rendezvous"));
  return kernels;
}

std::uint64_t hash(const void* data, std::size_t bytes, std::uint64_t seed) {
  std::uint64_t value = seed;
  for (std::size_t i = 0; i < bytes; ++i) value = (value ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  return value;
}

}  // namespace gpumux::programs

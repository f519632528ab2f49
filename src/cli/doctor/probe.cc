// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/frame/command.h"
#include "cuda/nvml.h"
#include "os/file_descriptor.h"
#include "os/system_clock.h"

namespace gpumux::cli {
namespace {

using base::Duration;
using base::TimePoint;
using nlohmann::json;

// A GPU with more processes than this is full of them: the rest does not matter to the doctor.
constexpr unsigned kMaxProcesses = 256;

// The most that a child's answer may be.
constexpr std::size_t kMaxProbeBytes = 1 << 20;

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string path_of(void* symbol) {
  Dl_info info{};
  return symbol != nullptr && ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string loader_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown error" : text;
}

std::string process_name(unsigned pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

// The text that an NVML function writes. Empty: this NVML has no such function, or it fails.
template <class Function, class... Of>
std::string text_of(Function function, Of... of) {
  std::array<char, cuda::kNvmlUuidBytes> text{};  // no other text is longer
  const bool is_said = function != nullptr && function(of..., text.data(), text.size()) == cuda::NVML_SUCCESS;
  return is_said ? text.data() : "";
}

using ProcessList = cuda::nvmlReturn_t (*)(cuda::nvmlDevice_t, unsigned int*, cuda::nvmlProcessInfo_t*);

void add_processes(json& target, ProcessList list, cuda::nvmlDevice_t device) {
  if (list == nullptr) return;
  std::vector<cuda::nvmlProcessInfo_t> processes(kMaxProcesses);
  unsigned count = kMaxProcesses;
  if (list(device, &count, processes.data()) != cuda::NVML_SUCCESS) return;
  for (unsigned i = 0; i < std::min(count, kMaxProcesses); ++i) {
    target.push_back({{"pid", processes[i].pid}, {"name", process_name(processes[i].pid)}});
  }
}

const char* compute_mode_name(cuda::nvmlComputeMode_t mode) {
  switch (mode) {
    case cuda::NVML_COMPUTEMODE_DEFAULT: return "default";
    case cuda::NVML_COMPUTEMODE_EXCLUSIVE_THREAD: return "exclusive-thread";
    case cuda::NVML_COMPUTEMODE_PROHIBITED: return "prohibited";
    case cuda::NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: return "exclusive-process";
  }
  return "";
}

json look_at_gpu(const cuda::Nvml& nvml, unsigned index, cuda::nvmlDevice_t device) {
  json gpu{{"index", index}, {"processes", json::array()}, {"mps_processes", json::array()}};
  gpu["uuid"] = text_of(nvml.nvmlDeviceGetUUID, device);
  gpu["name"] = text_of(nvml.nvmlDeviceGetName, device);
  auto mode = cuda::NVML_COMPUTEMODE_DEFAULT;
  if (nvml.nvmlDeviceGetComputeMode != nullptr && nvml.nvmlDeviceGetComputeMode(device, &mode) == cuda::NVML_SUCCESS) {
    gpu["compute_mode"] = compute_mode_name(mode);
  }
  add_processes(gpu["processes"], nvml.nvmlDeviceGetComputeRunningProcesses_v3, device);
  add_processes(gpu["processes"], nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, device);
  add_processes(gpu["mps_processes"], nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, device);
  return gpu;
}

void look_at_cuda(json& facts) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    facts["cuda_error"] = loader_error();
    return;
  }
  void* symbol = ::dlsym(library, "cuDriverGetVersion");
  facts["cuda_path"] = path_of(symbol);
  if (symbol == nullptr) {
    facts["cuda_error"] = "it has no cuDriverGetVersion, so it is no CUDA driver";
    return;
  }
  // It needs no cuInit and makes no context.
  int version = 0;
  if (reinterpret_cast<int (*)(int*)>(symbol)(&version) == 0) facts["cuda_version"] = version;
}

void look_at_nvml(json& facts) {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    facts["nvml_error"] = loader_error();
    return;
  }
  facts["simulated"] = ::dlsym(library, cuda::kSimulatedNvmlSymbol) != nullptr;
  cuda::Nvml nvml;
  cuda::load_nvml(
      nvml, [](void* handle, const char* name) { return ::dlsym(handle, name); }, library);
  if (nvml.nvmlInit_v2 == nullptr || nvml.nvmlDeviceGetCount_v2 == nullptr ||
      nvml.nvmlDeviceGetHandleByIndex_v2 == nullptr) {
    facts["nvml_error"] = "it lacks functions that every driver since CUDA 10 has";
    return;
  }
  if (const auto result = nvml.nvmlInit_v2(); result != cuda::NVML_SUCCESS) {
    facts["nvml_error"] =
        nvml.nvmlErrorString != nullptr ? nvml.nvmlErrorString(result) : "error " + std::to_string(result);
    return;
  }
  facts["driver_version"] = text_of(nvml.nvmlSystemGetDriverVersion);
  unsigned count = 0;
  nvml.nvmlDeviceGetCount_v2(&count);
  for (unsigned i = 0; i < count; ++i) {
    cuda::nvmlDevice_t device = nullptr;
    if (nvml.nvmlDeviceGetHandleByIndex_v2(i, &device) == cuda::NVML_SUCCESS)
      facts["gpus"].push_back(look_at_gpu(nvml, i, device));
  }
  if (nvml.nvmlShutdown != nullptr) nvml.nvmlShutdown();
}

std::vector<ProcessFact> processes_of(const json& list) {
  std::vector<ProcessFact> processes;
  for (const json& item : list) processes.push_back({item.value("pid", std::int64_t{0}), item.value("name", "")});
  return processes;
}

}  // namespace

ProbeOutcome run_probe(const std::function<void(int)>& body, Duration limit) {
  ProbeOutcome outcome;
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return {"", "", std::string("cannot create a pipe: ") + ::strerror(errno)};
  os::FileDescriptor out_read(out[0]);
  os::FileDescriptor out_write(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) return {"", "", std::string("cannot create a pipe: ") + ::strerror(errno)};
  os::FileDescriptor err_read(err[0]);
  os::FileDescriptor err_write(err[1]);
  std::cout << std::flush;
  const pid_t child = ::fork();
  if (child < 0) return {"", "", std::string("cannot fork: ") + ::strerror(errno)};
  if (child == 0) {
    ::dup2(err_write.get(), STDERR_FILENO);
    // No core file and no handler: a crash is an answer here.
    body(out_write.get());
    ::_exit(0);
  }
  out_write.reset();
  err_write.reset();

  const os::SystemClock clock;
  const TimePoint deadline = clock.now() + limit;
  std::array<pollfd, 2> items{{{out_read.get(), POLLIN, 0}, {err_read.get(), POLLIN, 0}}};
  while (items[0].fd >= 0 || items[1].fd >= 0) {
    const Duration left = deadline - clock.now();
    if (left <= Duration::zero()) break;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    if (::poll(items.data(), items.size(), static_cast<int>(wait)) <= 0) continue;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].fd < 0 || items[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(items[i].fd, buffer, sizeof buffer);
      std::string& target = i == 0 ? outcome.output : outcome.messages;
      if (got > 0 && target.size() < kMaxProbeBytes) target.append(buffer, static_cast<std::size_t>(got));
      if (got == 0 || (got < 0 && errno != EINTR)) items[i].fd = -1;
    }
  }
  const bool late = items[0].fd >= 0 || items[1].fd >= 0;
  if (late) ::kill(child, SIGKILL);
  int status = 0;
  // A child that hangs in the kernel does not even die. The doctor waits a second for it, and no more.
  pid_t ended = 0;
  const TimePoint last = (late ? clock.now() : std::max(deadline, clock.now())) + std::chrono::seconds(1);
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 && clock.now() < last) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (late) {
    outcome.error =
        "it did not answer within " + std::to_string(std::chrono::ceil<std::chrono::seconds>(limit).count()) + " s";
  } else if (ended == child && WIFSIGNALED(status)) {
    outcome.error = "it crashed (signal " + std::to_string(WTERMSIG(status)) + ")";
  } else if (ended == child && WEXITSTATUS(status) != 0) {
    outcome.error = "it failed (exit status " + std::to_string(WEXITSTATUS(status)) + ")";
  }
  return outcome;
}

DriverFacts probe_driver() {
  // Two children: a driver that hangs in NVML can still say its version.
  const ProbeOutcome cuda = run_probe(
      [](int output) {
        json facts = json::object();
        look_at_cuda(facts);
        write_all(output, dump(facts));
      },
      kProbeLimit);
  const ProbeOutcome nvml = run_probe(
      [](int output) {
        json facts{{"gpus", json::array()}};
        look_at_nvml(facts);
        write_all(output, dump(facts));
      },
      kProbeLimit);
  DriverFacts facts;
  const json cuda_facts = json::parse(cuda.output, nullptr, false);
  if (cuda_facts.is_object()) {
    facts.cuda_path = cuda_facts.value("cuda_path", "");
    facts.cuda_error = cuda_facts.value("cuda_error", "");
    facts.cuda_version = cuda_facts.value("cuda_version", 0);
  }
  if (!cuda.error.empty()) facts.probe_error = "asking libcuda.so.1 for its version: " + cuda.error;
  const json nvml_facts = json::parse(nvml.output, nullptr, false);
  if (nvml_facts.is_object()) {
    facts.nvml_error = nvml_facts.value("nvml_error", "");
    facts.driver_version = nvml_facts.value("driver_version", "");
    facts.simulated = nvml_facts.value("simulated", false);
    for (const json& item : nvml_facts["gpus"]) {
      GpuFact gpu;
      gpu.index = item.value("index", 0u);
      gpu.uuid = item.value("uuid", "");
      gpu.name = item.value("name", "");
      gpu.compute_mode = item.value("compute_mode", "");
      gpu.processes = processes_of(item["processes"]);
      gpu.mps_processes = processes_of(item["mps_processes"]);
      facts.gpus.push_back(std::move(gpu));
    }
  }
  if (!nvml.error.empty()) facts.probe_error = "asking NVML (libnvidia-ml.so.1) for the GPUs: " + nvml.error;
  return facts;
}

void probe_preload(LibraryFacts& library) {
  const ProbeOutcome outcome = run_probe(
      [&library](int output) {
        ::setenv("LD_PRELOAD", library.path.c_str(), 1);
        ::dup2(output, STDOUT_FILENO);
        ::execl("/proc/self/exe", "gpumux", kPreloadProbe, library.path.c_str(), nullptr);
        ::_exit(127);
      },
      kProbeLimit);
  library.mapped = outcome.output == "mapped\n";
  library.loader_message = outcome.messages;
  if (!outcome.error.empty())
    library.error = "a program with " + library.path + " preloaded was started: " + outcome.error;
  if (!outcome.error.empty() && !outcome.messages.empty()) library.error += ": " + outcome.messages;
}

int preload_probe_command(const std::vector<char*>& arguments) {
  if (arguments.empty() || arguments[0] == nullptr) return kExitUsage;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(" " + std::string(arguments[0]))) {
      std::cout << "mapped\n" << std::flush;
      return kExitOk;
    }
  }
  std::cout << "not mapped\n" << std::flush;
  return kExitOk;
}

}  // namespace gpumux::cli

// SPDX-License-Identifier: Apache-2.0
// How fast host memory for evicted data is made, registered and copied to, by kind of file and number of threads.
//
//   host_memory [--gib N] [--rounds N] [--device N]
//
// The files are made as the daemon makes them (daemon/tenants/host_files.h), in chunks of 256 MiB: of memfds; of a
// tmpfs with huge=always that this process mounts, or a child of it (whichever the kernel lets it). With a CUDA driver
// each set is registered, copied to from the GPU, and unregistered, on one thread. Without one, populating is measured
// all the same. One round goes before all others and counts for nothing: a virtual machine gets its memory from its
// host when it touches it for the first time. Prints a line for each figure, and one line `RESULT {json}`: medians, in
// GB/s.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/tenants/host_files.h"
#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {
namespace {

constexpr std::uint64_t kChunkBytes = std::uint64_t{256} << 20;
constexpr std::array<std::size_t, 4> kThreads{1, 4, 8, 16};

struct Options {
  int device = 0;
  std::size_t chunks = 64;
  int rounds = 3;
};

Options read_options(int count, char** arguments) {
  Options options;
  if (count % 2 == 0) fail("every option has a value");
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    const long value = std::atol(arguments[i + 1]);
    if (value < (name == "--device" ? 0 : 1)) fail(name + " has no such value");
    if (name == "--device")
      options.device = static_cast<int>(value);
    else if (name == "--gib")
      options.chunks = static_cast<std::size_t>(value) * 1024 / 256;
    else if (name == "--rounds")
      options.rounds = static_cast<int>(value);
    else
      fail("unknown option " + name);
  }
  return options;
}

class Clock {
 public:
  explicit Clock(std::uint64_t bytes) : bytes_(bytes), begin_(now_ns()) {}
  double gb_per_s() const { return static_cast<double>(bytes_) / static_cast<double>(now_ns() - begin_); }

 private:
  std::uint64_t bytes_;
  std::int64_t begin_;
};

struct Made {
  std::vector<daemon::HostFile> files;
  double gb_per_s = 0;
};

Made make(const daemon::HostFiles& files, std::size_t chunks, std::size_t threads) {
  Made made;
  made.files.resize(chunks);
  const Clock clock(chunks * kChunkBytes);
  std::vector<std::thread> makers;
  for (std::size_t first = 0; first < threads; ++first) {
    makers.emplace_back([&, first] {
      for (std::size_t i = first; i < chunks; i += threads) {
        auto one = files.make(kChunkBytes);
        if (!one) fail(one.error().message());
        made.files[i] = std::move(*one);
      }
    });
  }
  for (std::thread& maker : makers) maker.join();
  made.gb_per_s = clock.gb_per_s();
  return made;
}

// Measures how fast the driver registers, fills and unregisters a set of files.
class Gpu {
 public:
  explicit Gpu(int device) : program_(start_program(device)) {
    check(program_.driver.cuMemAlloc_v2(&memory_, kChunkBytes), "cuMemAlloc");
  }

  struct Rates {
    double registered = 0, copied = 0, unregistered = 0;
  };
  Rates run(const std::vector<daemon::HostFile>& files) {
    const cuda::Driver& driver = program_.driver;
    const std::uint64_t bytes = files.size() * kChunkBytes;
    std::vector<void*> mapped;
    Rates rates;
    const Clock registering(bytes);
    for (const daemon::HostFile& file : files) {
      void* const at = ::mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd.get(), 0);
      if (at == MAP_FAILED) fail("cannot map a file of host memory");
      mapped.push_back(at);
      check(driver.cuMemHostRegister_v2(at, kChunkBytes, cuda::kMemHostRegisterPortable), "cuMemHostRegister");
    }
    rates.registered = registering.gb_per_s();
    const Clock copying(bytes);
    for (void* const at : mapped) check(driver.cuMemcpyDtoHAsync_v2(at, memory_, kChunkBytes, nullptr), "copy");
    check(driver.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    rates.copied = copying.gb_per_s();
    const Clock unregistering(bytes);
    for (void* const at : mapped) {
      check(driver.cuMemHostUnregister(at), "cuMemHostUnregister");
      ::munmap(at, kChunkBytes);
    }
    rates.unregistered = unregistering.gb_per_s();
    return rates;
  }

 private:
  Program program_;
  cuda::CUdeviceptr memory_ = 0;
};

std::string setting() {
  std::string text;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), text);
  return text;
}

void run(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  std::unique_ptr<Gpu> gpu;
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) gpu = std::make_unique<Gpu>(options.device);
  utsname kernel{};
  ::uname(&kernel);
  std::printf("Linux %s, shmem_enabled %s, %u cores, %s\n", kernel.release, setting().c_str(),
              std::thread::hardware_concurrency(), gpu ? "with a CUDA driver" : "without a CUDA driver");

  std::vector<std::pair<std::string, daemon::HostFiles>> kinds;
  kinds.emplace_back("memfd", daemon::HostFiles());
  for (auto& [name, open] :
       {std::pair{"tmpfs", &daemon::HostFiles::open}, {"tmpfs by a child", &daemon::HostFiles::open_by_child}}) {
    daemon::HostFiles files = open();
    if (!files.why_not().empty()) {
      std::printf("%s: the kernel refuses it: %s\n", name, files.why_not().c_str());
    } else {
      kinds.emplace_back(name, std::move(files));
    }
  }
  std::printf("first touch: %.1f GB/s\n", make(kinds.back().second, options.chunks, kThreads[2]).gb_per_s);

  std::string json;
  for (const auto& [name, files] : kinds) {
    std::string of_kind;
    std::vector<double> registered, copied, unregistered;
    std::string got;
    for (const std::size_t threads : kThreads) {
      std::vector<double> rates;
      for (int round = 0; round < options.rounds; ++round) {
        const Made made = make(files, options.chunks, threads);
        got = daemon::name_of(made.files.front().kind);
        rates.push_back(made.gb_per_s);
        if (!gpu || threads != kThreads.front()) continue;
        const Gpu::Rates by_driver = gpu->run(made.files);
        registered.push_back(by_driver.registered);
        copied.push_back(by_driver.copied);
        unregistered.push_back(by_driver.unregistered);
      }
      const double rate = median(rates);
      std::printf("%s (%s): populate with %zu threads %.1f GB/s\n", name.c_str(), got.c_str(), threads, rate);
      std::fflush(stdout);
      char text[64];
      std::snprintf(text, sizeof text, "%s\"populate_%zu\": %.2f", of_kind.empty() ? "" : ", ", threads, rate);
      of_kind += text;
    }
    if (gpu) {
      std::printf("%s (%s): register %.1f, copy out %.1f, unregister %.1f GB/s\n", name.c_str(), got.c_str(),
                  median(registered), median(copied), median(unregistered));
      char text[128];
      std::snprintf(text, sizeof text, ", \"register\": %.2f, \"copy_out\": %.2f, \"unregister\": %.2f",
                    median(registered), median(copied), median(unregistered));
      of_kind += text;
    }
    json += (json.empty() ? "\"" : ", \"") + name + "\": {\"kind\": \"" + got + "\", " + of_kind + "}";
  }
  std::printf("RESULT {%s}\n", json.c_str());
}

}  // namespace
}  // namespace gpumux::tests

int main(int count, char** arguments) {
  gpumux::tests::run(count, arguments);
  return 0;
}

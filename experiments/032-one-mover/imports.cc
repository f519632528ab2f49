// SPDX-License-Identifier: Apache-2.0
// What does it cost to take in another process's chunks, and what makes it dear?
//
//   g++ -std=c++20 -O2 imports.cc -I/usr/local/cuda/include -lcuda -lpthread -o imports
//   ./imports COUNT CHUNK_MIB
//
// One process makes chunks and exports them. Another one imports, maps, gives itself access, unmaps and releases them:
// with nothing else under way, while it copies to the host by itself, while the first process does, and while kernels
// run. The first process then makes, maps, unmaps and releases as many of its own under the same conditions.
#include <cuda.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}
#define CHECK(call)                                \
  do {                                             \
    const CUresult result = (call);                \
    if (result != CUDA_SUCCESS) {                  \
      std::printf("%s: %d\n", #call, int(result)); \
      std::fflush(stdout);                         \
      ::_exit(3);                                  \
    }                                              \
  } while (0)

std::size_t g_chunk = 0;
int g_count = 0;
constexpr std::size_t kCopied = std::size_t{1} << 30;

void send_descriptor(int socket, int descriptor) {
  char byte = 0, room[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  cmsghdr* const control = CMSG_FIRSTHDR(&header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
  if (::sendmsg(socket, &header, 0) < 0) ::_exit(4);
}
int receive_descriptor(int socket) {
  char byte = 0, room[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  if (::recvmsg(socket, &header, 0) <= 0) ::_exit(5);
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof descriptor);
  return descriptor;
}

struct Gpu {
  CUcontext context = nullptr;
  CUdeviceptr region = 0, copied = 0;
  CUstream stream = nullptr;
  void* host = nullptr;
  std::vector<CUmemGenericAllocationHandle> handles;
  CUmemAllocationProp kind{};

  Gpu() : handles(static_cast<std::size_t>(g_count)) {
    CHECK(cuInit(0));
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAddressReserve(&region, g_chunk * handles.size(), 2 << 20, 0, 0));
    CHECK(cuMemAlloc(&copied, kCopied));
    CHECK(cuMemHostAlloc(&host, kCopied, 0));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  // 'o'ut to the host, 'i'n from it, out in pieces of 'p' 2 MiB with a wait after every 16, 'd' within the GPU, or
  // memory is set by a kernel ('k').
  void copy_while(char how, const std::atomic<bool>& going) {
    CHECK(cuCtxSetCurrent(context));
    while (going) {
      switch (how) {
        case 'o': CHECK(cuMemcpyDtoHAsync(host, copied, kCopied, stream)); break;
        case 'i': CHECK(cuMemcpyHtoDAsync(copied, host, kCopied, stream)); break;
        case 'd': CHECK(cuMemcpyDtoDAsync(copied, copied + kCopied / 2, kCopied / 2, stream)); break;
        case 'k': CHECK(cuMemsetD32Async(copied, 7, kCopied / 4, stream)); break;
        case 'p':
          for (std::size_t at = 0; at < std::size_t{32} << 20; at += 2 << 20)
            CHECK(cuMemcpyDtoHAsync(static_cast<char*>(host) + at, copied + at, 2 << 20, stream));
          break;
      }
      CHECK(cuStreamSynchronize(stream));
    }
  }
  double make() {
    const auto begin = Clock::now();
    for (auto& handle : handles) CHECK(cuMemCreate(&handle, g_chunk, &kind, 0));
    return ms_since(begin);
  }
  double map() {
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < handles.size(); ++i) CHECK(cuMemMap(region + i * g_chunk, g_chunk, 0, handles[i], 0));
    return ms_since(begin);
  }
  double access() {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < handles.size(); ++i) CHECK(cuMemSetAccess(region + i * g_chunk, g_chunk, &access, 1));
    return ms_since(begin);
  }
  double access_at_once() {  // REQUIRES: all are mapped, and no kernel uses them
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const auto begin = Clock::now();
    CHECK(cuMemSetAccess(region, g_chunk * handles.size(), &access, 1));
    return ms_since(begin);
  }
  double unmap() {
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < handles.size(); ++i) CHECK(cuMemUnmap(region + i * g_chunk, g_chunk));
    return ms_since(begin);
  }
  double release() {
    const auto begin = Clock::now();
    for (auto& handle : handles) CHECK(cuMemRelease(handle));
    return ms_since(begin);
  }
};

// The process that makes. Commands: 'x' exports all; 'c' copies until 's'; 'o' does as the importer does.
[[noreturn]] void maker(int socket) {
  Gpu gpu;
  std::atomic<bool> going{false};
  std::thread copying;
  char asked = 0;
  gpu.make();
  while (::read(socket, &asked, 1) == 1) {
    if (asked == 'x') {
      const auto begin = Clock::now();
      std::vector<int> descriptors;
      for (const auto handle : gpu.handles) {
        int descriptor = -1;
        CHECK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        descriptors.push_back(descriptor);
      }
      std::printf("  export %.3f ms each\n", ms_since(begin) / g_count);
      for (const int descriptor : descriptors) {
        send_descriptor(socket, descriptor);
        ::close(descriptor);
      }
      continue;
    }
    if (asked == 'c') {
      going = true;
      copying = std::thread([&] { gpu.copy_while('o', going); });
    }
    if (asked == 's') {
      going = false;
      copying.join();
    }
    if (asked == 'o') {
      gpu.release();
      const double make = gpu.make(), map = gpu.map(), access = gpu.access(), unmap = gpu.unmap();
      const double release = gpu.release();
      gpu.make();
      gpu.map();
      const double at_once = gpu.access_at_once();
      gpu.unmap();
      std::printf("  the maker's own: access to all in one call %.3f ms\n", at_once);
      std::printf("  the maker's own: make %.3f, map %.3f, access %.3f, unmap %.3f, release %.3f ms each\n",
                  make / g_count, map / g_count, access / g_count, unmap / g_count, release / g_count);
    }
    if (::write(socket, &asked, 1) != 1) ::_exit(6);
  }
  ::_exit(0);
}

void take_in(Gpu& gpu, int socket) {
  char word = 'x';
  if (::write(socket, &word, 1) != 1) ::_exit(6);
  std::vector<int> descriptors;
  for (int i = 0; i < g_count; ++i) descriptors.push_back(receive_descriptor(socket));
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    CHECK(cuMemImportFromShareableHandle(&gpu.handles[i],
                                         reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptors[i])),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  }
  const double import = ms_since(begin);
  for (const int descriptor : descriptors) ::close(descriptor);
  const double map = gpu.map(), access = gpu.access(), unmap = gpu.unmap(), release = gpu.release();
  std::printf("  the importer: import %.3f, map %.3f, access %.3f, unmap %.3f, release %.3f ms each\n",
              import / g_count, map / g_count, access / g_count, unmap / g_count, release / g_count);
}

void tell(int socket, char word) {
  if (::write(socket, &word, 1) != 1 || ::read(socket, &word, 1) != 1) ::_exit(6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::printf("imports COUNT CHUNK_MIB\n"), 2;
  g_count = std::atoi(argv[1]);
  g_chunk = static_cast<std::size_t>(std::atoi(argv[2])) << 20;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pair[0]);
    maker(pair[1]);
  }
  ::close(pair[1]);
  Gpu gpu;
  std::printf("%d chunks of %s MiB, nothing else under way\n", g_count, argv[2]);
  take_in(gpu, pair[0]);
  take_in(gpu, pair[0]);
  tell(pair[0], 'o');
  const std::pair<char, const char*> hows[] = {{'o', "copies to the host"},
                                               {'p', "copies to the host, 2 MiB at a time"},
                                               {'i', "copies from the host"},
                                               {'d', "copies within the GPU"},
                                               {'k', "sets memory"}};
  for (const auto& [how, words] : hows) {
    std::printf("while the importer %s\n", words);
    std::atomic<bool> going{true};
    std::thread copying([&, how = how] { gpu.copy_while(how, going); });
    take_in(gpu, pair[0]);
    tell(pair[0], 'o');
    going = false;
    copying.join();
  }
  std::printf("while the maker copies to the host\n");
  tell(pair[0], 'c');
  take_in(gpu, pair[0]);
  tell(pair[0], 'o');
  tell(pair[0], 's');
  ::close(pair[0]);
  ::waitpid(child, nullptr, 0);
  return 0;
}

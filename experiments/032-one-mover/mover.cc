// SPDX-License-Identifier: Apache-2.0
// Two programs whose kernels are frozen in the middle change places on a GPU: who moves their memory?
//
//   g++ -std=c++20 -O2 -rdynamic mover.cc -I/usr/local/cuda/include -lcuda -lpthread -o mover
//   ./mover WAY CHUNK_MIB GIB WAIT [LINKS] [SWAPS]
//
//   WAY    one: one mover process imports each chunk by descriptor and copies it
//          own: each program copies by itself, through a context of its own for that
//          near: as `one`, and what leaves goes to the memory of GPU 1 (LINKS is 2)
//   WAIT   what a thread of each program waits in while its kernel is frozen: sync, free, full (a full queue), module
//   LINKS  2: every other chunk is copied by the engines, and over the PCIe link, of GPU 1
//
// Both programs have GIB of memory in chunks. Their kernels walk over all of it. In each swap the one that runs is
// frozen, its chunks leave, the other one's come, and that one goes on. At the end every word of both is checked. If we
// are root, the second program runs as another user.
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "../030-frozen-kernels/frozen.h"
#include "kernels.h"

namespace {

std::size_t g_chunk = 0;  // bytes
int g_chunks = 0;
int g_links = 1;
bool g_is_near = false;
std::string g_wait;
constexpr unsigned kBlocks = 132 * 16, kThreads = 256;
constexpr int kUnderWay = 3;  // copies of one direction and link that are queued at once

// ---- messages -----------------------------------------------------------------------------------

// To a program: 's'tart, 'f'reeze, 't'haw, 'e'xport, 'd'rop, 'm'ake, 'o'ut or 'i'n by yourself, 'v'erify, 'q'uit. While
// a program moves by itself: a 'c'hunk has left, or may come.
struct Message {
  char what;
  int chunk;
  double number;
};
void send(int socket, const Message& message, int descriptor = -1) {
  iovec part{const_cast<Message*>(&message), sizeof message};
  char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = room;
    header.msg_controllen = sizeof room;
    cmsghdr* const control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
  }
  if (::sendmsg(socket, &header, MSG_NOSIGNAL) < 0) ::_exit(6);
}
Message receive(int socket, int* descriptor = nullptr) {
  Message message{};
  iovec part{&message, sizeof message};
  char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  if (::recvmsg(socket, &header, MSG_WAITALL | MSG_CMSG_CLOEXEC) <= 0) ::_exit(7);
  if (descriptor != nullptr && CMSG_FIRSTHDR(&header) != nullptr)
    std::memcpy(descriptor, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof *descriptor);
  return message;
}
Message ask(int socket, char what, int chunk = 0, int* descriptor = nullptr) {
  send(socket, {what, chunk, 0});
  return receive(socket, descriptor);
}

// ---- copying ------------------------------------------------------------------------------------

CUcontext new_context(CUdevice device) {
  CUcontext made = nullptr;
#if CUDA_VERSION >= 13000
  CHECK(cuCtxCreate(&made, nullptr, 0, device));
#else
  CHECK(cuCtxCreate(&made, 0, device));
#endif
  return made;
}

// Host memory in huge pages where the system gives them, made by several threads.
char* host_memory(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) ::_exit(8);
  ::madvise(at, bytes, MADV_HUGEPAGE);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 8; ++i) {
    threads.emplace_back([=] {
      for (std::size_t offset = bytes / 8 * i; offset < bytes / 8 * (i + 1); offset += 4096)
        static_cast<volatile char*>(at)[offset] = 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<char*>(at);
}

// A context on each GPU whose link is used, with a stream for each direction, and host memory that it has registered.
struct Copier {
  struct Link {
    CUcontext context = nullptr;
    CUstream out = nullptr, in = nullptr;
  };
  std::vector<Link> links;
  char* host = nullptr;
  double register_ms = 0, context_ms = 0;
  std::size_t context_bytes = 0;

  void begin(std::size_t host_bytes) {
    for (int i = 0; i < g_links; ++i) {
      CUdevice device = 0;
      CHECK(cuDeviceGet(&device, i));
      const auto begin = Clock::now();
      std::size_t before = 0, after = 0, total = 0;
      CUcontext first = new_context(device);
      CHECK(cuMemGetInfo(&before, &total));
      Link link{new_context(device)};
      CHECK(cuMemGetInfo(&after, &total));
      CHECK(cuCtxDestroy(first));
      CHECK(cuCtxSetCurrent(link.context));
      context_ms = ms_since(begin);
      context_bytes = before - after;
      CHECK(cuStreamCreate(&link.out, CU_STREAM_NON_BLOCKING));
      CHECK(cuStreamCreate(&link.in, CU_STREAM_NON_BLOCKING));
      links.push_back(link);
    }
    CHECK(cuCtxSetCurrent(links[0].context));
    if (g_is_near) {
      CHECK(cuCtxEnablePeerAccess(links[1].context, 0));
      CHECK(cuCtxSetCurrent(links[1].context));
      CHECK(cuCtxEnablePeerAccess(links[0].context, 0));
      CUdeviceptr there = 0;
      CHECK(cuMemAlloc(&there, host_bytes));
      host = reinterpret_cast<char*>(there);
      return;
    }
    host = host_memory(host_bytes);
    const auto begin = Clock::now();
    CHECK(cuMemHostRegister(host, host_bytes, CU_MEMHOSTREGISTER_PORTABLE));
    register_ms = ms_since(begin);
  }
  CUevent copy_out(int link, char* to, CUdeviceptr from) const {
    CHECK(cuCtxSetCurrent(links[static_cast<std::size_t>(link)].context));
    CHECK(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), from, g_chunk, links[static_cast<std::size_t>(link)].out));
    return record(links[static_cast<std::size_t>(link)].out);
  }
  CUevent copy_in(int link, CUdeviceptr to, const char* from) const {
    CHECK(cuCtxSetCurrent(links[static_cast<std::size_t>(link)].context));
    CHECK(cuMemcpyAsync(to, reinterpret_cast<CUdeviceptr>(from), g_chunk, links[static_cast<std::size_t>(link)].in));
    return record(links[static_cast<std::size_t>(link)].in);
  }
  static CUevent record(CUstream stream) {
    CUevent made = nullptr;
    CHECK(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventRecord(made, stream));
    return made;
  }
  static void await(CUevent event) {
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) ::usleep(20);
    CHECK(cuEventDestroy(event));
  }
};

// ---- a program ----------------------------------------------------------------------------------

struct Chunk {
  CUmemGenericAllocationHandle handle = 0;
  bool is_mapped = false;
};

CUmemAllocationProp kind_of_memory() {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return kind;
}
void give_access(CUdeviceptr at, int gpus) {
  CUmemAccessDesc access[2];
  for (int i = 0; i < gpus; ++i) access[i] = {{CU_MEM_LOCATION_TYPE_DEVICE, i}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemSetAccess(at, g_chunk, access, static_cast<std::size_t>(gpus)));
}

struct Program {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUfunction walk = nullptr, compare = nullptr;
  CUdeviceptr memory = 0, wrong = 0;
  std::vector<Chunk> chunks;
  unsigned passes = 0, salt = 0;
  Copier own;  // where each program copies by itself

  void make(int i) {
    const CUmemAllocationProp kind = kind_of_memory();
    CHECK(cuMemCreate(&chunks[static_cast<std::size_t>(i)].handle, g_chunk, &kind, 0));
  }
  void map(int i) {
    Chunk& chunk = chunks[static_cast<std::size_t>(i)];
    const CUdeviceptr at = memory + static_cast<std::size_t>(i) * g_chunk;
    CHECK(cuMemMap(at, g_chunk, 0, chunk.handle, 0));
    give_access(at, own.links.empty() ? 1 : g_links);
    chunk.is_mapped = true;
  }
  void drop(int i) {
    Chunk& chunk = chunks[static_cast<std::size_t>(i)];
    if (chunk.is_mapped) CHECK(cuMemUnmap(memory + static_cast<std::size_t>(i) * g_chunk, g_chunk));
    CHECK(cuMemRelease(chunk.handle));
    chunk = {};
  }
  void launch(CUfunction function, unsigned count, unsigned set) {
    unsigned long long words = g_chunk / 4 * static_cast<std::size_t>(g_chunks);
    void* of_walk[] = {&memory, &words, &count};
    void* of_check[] = {&memory, &words, &count, &salt, &wrong, &set};
    CHECK(cuLaunchKernel(function, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, function == walk ? of_walk : of_check,
                         nullptr));
  }
  void wait_somewhere() {
    CHECK(cuCtxSetCurrent(context));
    if (g_wait == "free") {
      CUdeviceptr some = 0;
      CHECK(cuMemAlloc(&some, 1 << 20));
      CHECK(cuMemFree(some));
    } else if (g_wait == "full") {
      for (int i = 0; i < 5000; ++i) launch(walk, 0, 0);
    } else if (g_wait == "module") {
      CUmodule another = nullptr;
      CHECK(cuModuleLoadData(&another, kPtx));
    }
    CHECK(cuStreamSynchronize(stream));
  }

  // By its own context. Each chunk that has left is told; each that comes waits for that.
  void move_out(int socket) {
    std::deque<std::pair<int, CUevent>> under_way;
    const auto finish = [&] {
      const auto [i, event] = under_way.front();
      under_way.pop_front();
      Copier::await(event);
      drop(i);
      send(socket, {'c', i, 0});
    };
    for (int i = 0; i < g_chunks; ++i) {
      const std::size_t offset = static_cast<std::size_t>(i) * g_chunk;
      under_way.emplace_back(i, own.copy_out(i % g_links, own.host + offset, memory + offset));
      if (under_way.size() >= static_cast<std::size_t>(kUnderWay * g_links)) finish();
    }
    while (!under_way.empty()) finish();
  }
  void move_in(int socket) {
    std::deque<CUevent> under_way;
    const auto finish = [&] {
      Copier::await(under_way.front());
      under_way.pop_front();
    };
    for (int i = 0; i < g_chunks; ++i) {
      receive(socket);
      make(i);
      map(i);
      const std::size_t offset = static_cast<std::size_t>(i) * g_chunk;
      under_way.push_back(own.copy_in(i % g_links, memory + offset, own.host + offset));
      if (under_way.size() >= static_cast<std::size_t>(kUnderWay * g_links)) finish();
    }
    while (!under_way.empty()) finish();
  }

  [[noreturn]] void serve(int socket, bool copies_itself, double run_s) {
    receive(socket);
    std::thread(watch).detach();
    CHECK(cuInit(0));
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, 0));
    if (copies_itself) own.begin(g_chunk * static_cast<std::size_t>(g_chunks));
    g_first = g_objects.size();
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CUmodule module = nullptr;
    CHECK(cuModuleLoadData(&module, kPtx));
    CHECK(cuModuleGetFunction(&walk, module, "walk"));
    CHECK(cuModuleGetFunction(&compare, module, "check"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&wrong, 8));
    CHECK(cuMemsetD8(wrong, 0, 8));
    chunks.resize(static_cast<std::size_t>(g_chunks));
    CHECK(cuMemAddressReserve(&memory, g_chunk * chunks.size(), 2 << 20, 0, 0));
    for (int i = 0; i < g_chunks; ++i) make(i), map(i);
    salt = static_cast<unsigned>(::getpid());
    launch(compare, 0, 1);
    CHECK(cuStreamSynchronize(stream));
    const auto begin = Clock::now();
    launch(walk, 4, 0);
    CHECK(cuStreamSynchronize(stream));
    passes = 4;
    const unsigned more = static_cast<unsigned>(run_s * 1000 / (ms_since(begin) / 4)) + 1;
    launch(walk, more, 0);
    passes += more;
    std::thread waiter([this] { wait_somewhere(); });
    ::usleep(50'000);
    set_frozen(true);
    send(socket, {'r', 0, own.context_bytes / 1048576.0});
    for (;;) {
      const Message asked = receive(socket);
      int descriptor = -1;
      Message answer{asked.what, asked.chunk, 0};
      const auto began = Clock::now();
      switch (asked.what) {
        case 'f': set_frozen(true); break;
        case 't': set_frozen(false); break;
        case 'e':
          CHECK(cuMemExportToShareableHandle(&descriptor, chunks[static_cast<std::size_t>(asked.chunk)].handle,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
          break;
        case 'd': drop(asked.chunk); break;
        case 'o': move_out(socket); break;
        case 'i': move_in(socket); break;
        case 'm':
          make(asked.chunk);
          CHECK(cuMemExportToShareableHandle(&descriptor, chunks[static_cast<std::size_t>(asked.chunk)].handle,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
          send(socket, answer, descriptor);
          ::close(descriptor);
          map(asked.chunk);  // while the mover copies
          g_frozen_at = Clock::now().time_since_epoch().count();
          continue;
        case 'v': {
          waiter.join();
          launch(compare, passes, 0);
          CHECK(cuStreamSynchronize(stream));
          unsigned long long bad = 0;
          CHECK(cuMemcpyDtoH(&bad, wrong, 8));
          answer.number = static_cast<double>(bad);
          break;
        }
        case 'q': ::_exit(0);
        default: ::_exit(9);
      }
      g_frozen_at = Clock::now().time_since_epoch().count();  // the watchdog: we are spoken to
      if (asked.what != 'v') answer.number = ms_since(began);
      send(socket, answer, descriptor);
      if (descriptor >= 0) ::close(descriptor);
    }
  }
};

// ---- the mover ----------------------------------------------------------------------------------

struct Import {
  CUmemGenericAllocationHandle handle = 0;
  bool is_held = false;
};
struct Tenant {
  pid_t process = 0;
  int socket = -1;
  char* host = nullptr;    // where its chunks lie when they are not on the GPU
  CUdeviceptr window = 0;  // where the mover sees them
  std::vector<Import> imports;
  CUdeviceptr at(int i) const { return window + static_cast<std::size_t>(i) * g_chunk; }
  char* in_host(int i) const { return host + static_cast<std::size_t>(i) * g_chunk; }
};

struct Times {
  double import_ms = 0, map_ms = 0, unmap_ms = 0, drop_ms = 0, make_ms = 0;
};

// Chunks that have left, each of which makes room for one to come.
struct Room {
  std::mutex mutex;
  std::condition_variable more;
  int free = 0;
  void add() {
    const std::lock_guard lock(mutex);
    ++free;
    more.notify_one();
  }
  void take() {
    std::unique_lock lock(mutex);
    more.wait(lock, [&] { return free > 0; });
    --free;
  }
};

void take_in(Tenant& tenant, int i, int descriptor, Times& times) {
  Import& import = tenant.imports[static_cast<std::size_t>(i)];
  auto begin = Clock::now();
  CHECK(cuMemImportFromShareableHandle(&import.handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ::close(descriptor);
  times.import_ms += ms_since(begin);
  begin = Clock::now();
  CHECK(cuMemMap(tenant.at(i), g_chunk, 0, import.handle, 0));
  give_access(tenant.at(i), g_links);
  times.map_ms += ms_since(begin);
  import.is_held = true;
}

void move_out(const Copier& copier, Tenant& tenant, Room& room, Times& times) {
  std::deque<std::pair<int, CUevent>> under_way;
  const auto finish = [&] {
    const auto [i, event] = under_way.front();
    under_way.pop_front();
    Copier::await(event);
    Import& import = tenant.imports[static_cast<std::size_t>(i)];
    auto begin = Clock::now();
    CHECK(cuMemUnmap(tenant.at(i), g_chunk));
    CHECK(cuMemRelease(import.handle));
    import = {};
    times.unmap_ms += ms_since(begin);
    times.drop_ms += ask(tenant.socket, 'd', i).number;
    room.add();
  };
  for (int i = 0; i < g_chunks; ++i) {
    if (!tenant.imports[static_cast<std::size_t>(i)].is_held) {
      int descriptor = -1;
      ask(tenant.socket, 'e', i, &descriptor);
      CHECK(cuCtxSetCurrent(copier.links[0].context));
      take_in(tenant, i, descriptor, times);
    }
    under_way.emplace_back(i, copier.copy_out(i % g_links, tenant.in_host(i), tenant.at(i)));
    if (under_way.size() >= static_cast<std::size_t>(kUnderWay * g_links)) finish();
  }
  while (!under_way.empty()) finish();
}

void move_in(const Copier& copier, Tenant& tenant, Room& room, Times& times) {
  std::deque<CUevent> under_way;
  for (int i = 0; i < g_chunks; ++i) {
    room.take();
    int descriptor = -1;
    const auto begin = Clock::now();
    ask(tenant.socket, 'm', i, &descriptor);
    times.make_ms += ms_since(begin);
    CHECK(cuCtxSetCurrent(copier.links[0].context));
    take_in(tenant, i, descriptor, times);
    under_way.push_back(copier.copy_in(i % g_links, tenant.at(i), tenant.in_host(i)));
    if (under_way.size() >= static_cast<std::size_t>(kUnderWay * g_links)) {
      Copier::await(under_way.front());
      under_way.pop_front();
    }
  }
  while (!under_way.empty()) {
    Copier::await(under_way.front());
    under_way.pop_front();
  }
}

// Where the programs copy by themselves.
void pass_on(const Tenant& goes, Room& room) {
  send(goes.socket, {'o', 0, 0});
  while (receive(goes.socket).what == 'c') room.add();
}
void let_in(const Tenant& comes, Room& room) {
  send(comes.socket, {'i', 0, 0});
  for (int i = 0; i < g_chunks; ++i) {
    room.take();
    send(comes.socket, {'c', i, 0});
  }
  receive(comes.socket);
}

// The same copies and nothing else, for comparison: memory that stays mapped.
double copies_alone(const Copier& copier, const Tenant& out, const Tenant& in) {
  CHECK(cuCtxSetCurrent(copier.links[0].context));
  CUdeviceptr memory = 0;
  CHECK(cuMemAddressReserve(&memory, 4 * g_chunk, 2 << 20, 0, 0));
  const CUmemAllocationProp kind = kind_of_memory();
  for (std::size_t i = 0; i < 4; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemCreate(&handle, g_chunk, &kind, 0));
    CHECK(cuMemMap(memory + i * g_chunk, g_chunk, 0, handle, 0));
    CHECK(cuMemRelease(handle));
    give_access(memory + i * g_chunk, g_links);
  }
  double best = 1e9;
  for (int round = 0; round < 2; ++round) {
    const auto begin = Clock::now();
    std::vector<CUevent> events;
    for (int i = 0; i < g_chunks; ++i) {
      const std::size_t k = static_cast<std::size_t>(i % 2);
      // Nothing of a program's is in host memory yet.
      events.push_back(copier.copy_out(i % g_links, out.in_host(i), memory + k * g_chunk));
      events.push_back(copier.copy_in(i % g_links, memory + (2 + k) * g_chunk, in.in_host(i)));
    }
    for (const CUevent event : events) Copier::await(event);
    best = std::min(best, ms_since(begin));
  }
  for (std::size_t i = 0; i < 4; ++i) CHECK(cuMemUnmap(memory + i * g_chunk, g_chunk));
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return std::printf("mover WAY CHUNK_MIB GIB WAIT [LINKS] [SWAPS]\n"), 2;
  const std::string way = argv[1];
  g_chunk = static_cast<std::size_t>(std::atoi(argv[2])) << 20;
  g_chunks = std::atoi(argv[3]) * 1024 / std::atoi(argv[2]);
  g_wait = argv[4];
  g_links = argc > 5 ? std::atoi(argv[5]) : 1;
  const int swaps = argc > 6 ? std::atoi(argv[6]) : 6;
  const bool is_own = way == "own";
  g_is_near = way == "near";
  if (g_is_near) g_links = 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Tenant tenants[2];
  for (int t = 0; t < 2; ++t) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 1;
    tenants[t].process = ::fork();
    if (tenants[t].process == 0) {
      if (t == 1 && ::getuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(1);
      Program program;
      program.serve(pair[1], is_own, 1.5);
    }
    ::close(pair[1]);
    tenants[t].socket = pair[0];
  }
  CHECK(cuInit(0));
  Copier copier;
  const std::size_t bytes = g_chunk * static_cast<std::size_t>(g_chunks);
  copier.begin(2 * bytes);
  std::printf("context %.0f ms, %zu MiB; registered %zu GiB in %.0f ms\n", copier.context_ms,
              copier.context_bytes >> 20, 2 * bytes >> 30, copier.register_ms);
  for (int t = 0; t < 2; ++t) {
    tenants[t].host = copier.host + static_cast<std::size_t>(t) * bytes;
    tenants[t].imports.resize(static_cast<std::size_t>(g_chunks));
    CHECK(cuCtxSetCurrent(copier.links[0].context));
    CHECK(cuMemAddressReserve(&tenants[t].window, bytes, 2 << 20, 0, 0));
  }
  for (const Tenant& tenant : tenants) send(tenant.socket, {'s', 0, 0});
  for (const Tenant& tenant : tenants) {
    const double context_mib = receive(tenant.socket).number;
    if (is_own) std::printf("a program's context for copies: %.0f MiB\n", context_mib);
  }
  const double alone = copies_alone(copier, tenants[0], tenants[1]);
  std::printf("copies alone, %.1f GiB each way: %.1f ms, %.1f GB/s\n", static_cast<double>(bytes) / (1 << 30), alone,
              2e-6 * static_cast<double>(bytes) / alone);
  {  // the second one's memory leaves
    Room room;
    Times times;
    const auto begin = Clock::now();
    is_own ? pass_on(tenants[1], room) : move_out(copier, tenants[1], room, times);
    std::printf("out alone, frozen: %.1f ms; import %.1f, map %.1f, unmap %.1f, its drop %.1f ms\n", ms_since(begin),
                times.import_ms, times.map_ms, times.unmap_ms, times.drop_ms);
  }
  ask(tenants[0].socket, 't');
  ::usleep(60'000);
  for (int swap = 0; swap < swaps; ++swap) {
    Tenant& goes = tenants[swap % 2];
    Tenant& comes = tenants[1 - swap % 2];
    Room room;
    Times out, in;
    const auto begin = Clock::now();
    const double freeze_ms = ask(goes.socket, 'f').number;
    std::thread leaving([&] { is_own ? pass_on(goes, room) : move_out(copier, goes, room, out); });
    is_own ? let_in(comes, room) : move_in(copier, comes, room, in);
    leaving.join();
    const double moved_ms = ms_since(begin);
    const double thaw_ms = ask(comes.socket, 't').number;
    const double took = ms_since(begin);
    std::printf(
        "swap %d: %.1f ms, %.3f of the copies (freeze %.2f, thaw %.2f, moved after %.1f); out: import %.1f, map %.1f, "
        "unmap %.1f, its drop %.1f; in: its make %.1f, import %.1f, map %.1f ms\n",
        swap, took, took / alone, freeze_ms, thaw_ms, moved_ms, out.import_ms, out.map_ms, out.unmap_ms, out.drop_ms,
        in.make_ms, in.import_ms, in.map_ms);
    ::usleep(60'000);
  }
  // The one that is away comes back, and both run to their end.
  Tenant& away = tenants[swaps % 2 == 0 ? 1 : 0];
  Room room;
  room.free = g_chunks;
  Times times;
  const auto begin = Clock::now();
  is_own ? let_in(away, room) : move_in(copier, away, room, times);
  std::printf("in alone, frozen: %.1f ms\n", ms_since(begin));
  ask(away.socket, 't');
  for (const Tenant& tenant : tenants) std::printf("wrong words: %.0f\n", ask(tenant.socket, 'v').number);
  for (const Tenant& tenant : tenants) {
    send(tenant.socket, {'q', 0, 0});
    ::waitpid(tenant.process, nullptr, 0);
  }
  return 0;
}

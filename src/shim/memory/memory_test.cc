// SPDX-License-Identifier: Apache-2.0
// Goal: for any room that the daemon gives and takes, and any refusals of the driver, a program reads what it has
// written. It gets memory or CUDA_ERROR_OUT_OF_MEMORY, and gets on. The seat never has more than its bounds allow.
//
// Method: the process's real tenant (agent, drainer, pager thread, gate, pager) on the simulated driver. Its kernels
// and copies fault on memory that is not there. A daemon plays many moods (memory_test_daemon.h). Threads allocate,
// free, write, copy, capture, replay and verify all the time. GPUMUX_TEST_SEED repeats a run (as far as threads allow),
// GPUMUX_TEST_ROOMS and GPUMUX_TEST_LEASES say how many changes of room and leases it lasts.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <random>
#include <thread>

#include "os/runtime_dir.h"
#include "pager/pager_test_support.h"
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"
#include "shim/memory/memory_test_daemon.h"
#include "shim/process/real_driver.h"
#include "shim/tenant/tenant.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::shim {

constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

void load_real_driver() {
  g_driver = pager::faulty_driver();
  sim::tap<&cuda::Driver::cuCtxSynchronize>(g_driver).answered = [](cuda::CUresult result) {
    ADD_FAILURE() << "a context was synchronised, which breaks captures that begin meanwhile";
    return result;
  };
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

template <auto Member, class... Arguments>
CUresult gated(CUstream stream, Arguments... arguments) {
  return submit(at_stream(stream, StreamVariant::kLegacy), driver().*Member, arguments...);
}

class Program {
 public:
  Program(CUcontext context, CUmodule module, unsigned thread_seed) : context_(context), random_(thread_seed) {
    EXPECT_EQ(simulated().cuCtxSetCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(simulated().cuModuleGetFunction(&increment_, module, "gpumux_increment"), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~Program() {
    while (!live_.empty()) free_one();
    EXPECT_EQ(hooks::cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
  }

  void step() {
    const unsigned what = pick(12);
    if (live_.empty() || what < 3) return pick(3) == 0 ? create() : allocate();
    const std::size_t i = pick(static_cast<unsigned>(live_.size()));
    Live& live = live_[i];
    switch (what) {
      case 3: return free_one();
      case 4:
      case 5: return write(live);
      case 6: return replay(live);
      case 7: return look(live);
      case 8: return verify(live);
      case 9: return live.handle != 0 ? move(live) : increment(live);
      default: return increment(live);
    }
  }
  void verify_all() {
    for (Live& live : live_) verify(live);
  }

  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> verified{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> created{0};  // handles

 private:
  struct Live {
    CUdeviceptr address = 0;
    std::vector<std::uint32_t> words;
    bool is_in_order = false;                 // from a pool
    CUmemGenericAllocationHandle handle = 0;  // mapped by the program itself
    bool exportable = false;

    std::size_t bytes() const { return words.size() * 4; }
  };
  static const Driver& simulated() { return pager::simulated_driver(); }
  unsigned pick(unsigned below) { return static_cast<unsigned>(random_() % below); }

  void allocate() {
    if (live_.size() >= 12) return free_one();
    const std::uint64_t words = 1 + pick(pick(2) == 0 ? 20'000 : 700'000);
    CUdeviceptr address = 0;
    const bool is_in_order = pick(3) == 0;
    const CUresult result = again([&] {
      return is_in_order ? hooks::cuMemAllocAsync(&address, words * 4, stream_)
                         : hooks::cuMemAlloc_v2(&address, words * 4);
    });
    if (result != CUDA_SUCCESS) {
      EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
      refused.fetch_add(1);
      return free_one();
    }
    live_.push_back({.address = address, .words = std::vector<std::uint32_t>(words), .is_in_order = is_in_order});
    write(live_.back());
  }
  void free_one() {
    if (live_.empty()) return;
    const std::size_t i = pick(static_cast<unsigned>(live_.size()));
    if (pick(3) == 0) verify(live_[i]);
    if (live_[i].handle != 0) {
      const bool early = pick(2) == 0;  // mapped memory lives on
      if (early) {
        EXPECT_EQ(hooks::cuMemRelease(live_[i].handle), CUDA_SUCCESS);
      }
      unmap(live_[i]);
      if (!early) {
        EXPECT_EQ(hooks::cuMemRelease(live_[i].handle), CUDA_SUCCESS);
      }
    } else if (live_[i].is_in_order && pick(4) != 0) {
      // In the order of the stream: behind increments that may still run, while others look for memory.
      EXPECT_EQ(hooks::cuMemFreeAsync(live_[i].address, stream_), CUDA_SUCCESS);
    } else {
      EXPECT_EQ(hooks::cuMemFree_v2(live_[i].address), CUDA_SUCCESS);
    }
    if (pick(20) == 0) change_pool();
    std::swap(live_[i], live_.back());
    live_.pop_back();
  }
  void change_pool() {
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(driver().cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    std::uint64_t threshold = pick(2) == 0 ? 0 : UINT64_MAX;
    EXPECT_EQ(hooks::cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
    EXPECT_EQ(hooks::cuMemPoolTrimTo(pool, pick(8) * kMebibyte), CUDA_SUCCESS);
    synchronised();
  }
  // The driver may refuse any call for reasons of its own (this test's). The program is told, and then nothing has
  // changed: it is made again.
  template <class Call>
  static CUresult again(Call call) {
    CUresult result = call();
    for (int i = 0; i < 100 && result == CUDA_ERROR_UNKNOWN; ++i) result = call();
    return result;
  }
  // For the calls of a program that maps its memory by itself; they succeed in the end.
  template <class Call>
  static void insist(Call call) {
    EXPECT_EQ(again(call), CUDA_SUCCESS);
  }
  void create() {
    if (live_.size() >= 12) return free_one();
    const std::size_t bytes = 2 * kMebibyte * (1 + pick(3));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const bool exportable = pick(5) == 0;
    if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = hooks::cuMemCreate(&handle, bytes, &properties, 0);
    if (result != CUDA_SUCCESS) {
      EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
      refused.fetch_add(1);
      return free_one();
    }
    live_.push_back({.words = std::vector<std::uint32_t>(bytes / 4), .handle = handle, .exportable = exportable});
    map(live_.back());
    write(live_.back());
    created.fetch_add(1);
  }
  void map(Live& live) {
    insist([&] { return hooks::cuMemAddressReserve(&live.address, live.bytes(), 0, 0, 0); });
    insist([&] { return hooks::cuMemMap(live.address, live.bytes(), 0, live.handle, 0); });
    const CUmemAccessDesc rights{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    insist([&] { return hooks::cuMemSetAccess(live.address, live.bytes(), &rights, 1); });
  }
  void unmap(Live& live) {
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    insist([&] { return hooks::cuMemUnmap(live.address, live.bytes()); });
    insist([&] { return hooks::cuMemAddressFree(live.address, live.bytes()); });
  }
  void move(Live& live) {
    unmap(live);
    map(live);
  }
  void write(Live& live) {
    // The copy is on another stream than what still runs.
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    if (pick(3) == 0) {
      std::fill(live.words.begin(), live.words.end(), pick(3));
    } else {
      for (std::uint32_t& word : live.words) word = static_cast<std::uint32_t>(random_());
    }
    EXPECT_EQ((gated<&Driver::cuMemcpyHtoD_v2>(nullptr, live.address, static_cast<const void*>(live.words.data()),
                                               live.words.size() * 4)),
              CUDA_SUCCESS);
  }
  CUresult launch(CUdeviceptr data, std::uint64_t count) {
    void* parameters[] = {&data, &count};
    return gated<&Driver::cuLaunchKernel>(stream_, increment_, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream_, parameters,
                                          static_cast<void**>(nullptr));
  }
  void increment(Live& live) {
    const std::uint64_t count = 1 + pick(static_cast<unsigned>(live.words.size()));
    EXPECT_EQ(launch(live.address, count), CUDA_SUCCESS);
    for (std::uint64_t i = 0; i < count; ++i) ++live.words[i];
    if (pick(2) == 0) {
      EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    }
  }
  // A graph that copies: its addresses are looked up while it is made.
  void replay(Live& live) {
    const std::uint64_t count = std::min<std::uint64_t>(live.words.size(), 1000);
    std::vector<std::uint32_t> copied(count);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_EQ(hooks::cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(launch(live.address, count), CUDA_SUCCESS);
    insist([&] {
      return gated<&Driver::cuMemcpyDtoHAsync_v2>(stream_, static_cast<void*>(copied.data()), live.address, count * 4,
                                                  stream_);
    });
    ASSERT_EQ(hooks::cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
    ASSERT_EQ(driver().cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ((gated<&Driver::cuGraphLaunch>(stream_, exec, stream_)), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (copied[i] != ++live.words[i]) {
        ADD_FAILURE() << "a graph read " << copied[i] << " and not " << live.words[i];
        break;
      }
    }
    EXPECT_EQ(driver().cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  // The same answers as a 580.159 driver's, whether the memory is there or not.
  void look_at_mapping(const Live& live) {
    const CUdeviceptr inner = live.address + live.bytes() - 4;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    EXPECT_EQ(hooks::cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inner), CUDA_SUCCESS);
    EXPECT_EQ(hooks::cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inner), CUDA_SUCCESS);
    EXPECT_EQ(start, live.address);
    EXPECT_EQ(size, live.bytes());
    EXPECT_EQ(hooks::cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inner), CUDA_SUCCESS);
    EXPECT_EQ(start, inner);
    int value = 1;
    EXPECT_EQ(hooks::cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inner),
              CUDA_SUCCESS);
    EXPECT_EQ(value, 0);
    EXPECT_EQ(hooks::cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inner), CUDA_ERROR_NOT_SUPPORTED);
    unsigned long long flags = 0;
    const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    EXPECT_EQ(hooks::cuMemGetAccess(&flags, &here, inner), CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    // Addresses in use can be neither mapped nor freed, and a mapping changes only as a whole.
    const CUmemAccessDesc rights{here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUmemAccessDesc strange{{CU_MEM_LOCATION_TYPE_DEVICE, 77}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const std::size_t bytes = live.bytes();
    EXPECT_EQ(hooks::cuMemMap(live.address, bytes, 0, live.handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemMap(live.address, bytes + 2 * kMebibyte, 0, live.handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(hooks::cuMemMap(live.address, bytes, 2 * kMebibyte, live.handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(hooks::cuMemAddressFree(live.address, bytes), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemUnmap(live.address + kMebibyte, bytes), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemUnmap(live.address, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemSetAccess(live.address, bytes / 2, &rights, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemSetAccess(live.address, bytes, &strange, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(hooks::cuMemFree_v2(live.address), CUDA_ERROR_INVALID_VALUE);
    CUmemGenericAllocationHandle same = 0;
    EXPECT_EQ(hooks::cuMemRetainAllocationHandle(&same, reinterpret_cast<void*>(inner)), CUDA_SUCCESS);
    EXPECT_EQ(same, live.handle);
    EXPECT_EQ(hooks::cuMemRelease(same), CUDA_SUCCESS);
    CUmemAllocationProp properties{};
    EXPECT_EQ(hooks::cuMemGetAllocationPropertiesFromHandle(&properties, live.handle), CUDA_SUCCESS);
    EXPECT_EQ(properties.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    int fd = -1;
    const CUresult exported =
        hooks::cuMemExportToShareableHandle(&fd, live.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    EXPECT_EQ(exported, live.exportable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
        << "what nobody asked for when it was created cannot be had later";
    if (exported == CUDA_SUCCESS) ::close(fd);
  }
  // Answered whether it is there or not.
  void look(const Live& live) {
    if (live.handle != 0) look_at_mapping(live);
    CUdeviceptr base = 0;
    std::size_t size = 0;
    EXPECT_EQ(hooks::cuMemGetAddressRange_v2(&base, &size, live.address + 2), CUDA_SUCCESS);
    EXPECT_EQ(base, live.address);
    EXPECT_EQ(size, live.words.size() * 4);
    CUcontext context = nullptr;
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(hooks::cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, live.address), CUDA_SUCCESS);
    EXPECT_EQ(context, live.is_in_order || live.handle != 0 ? nullptr : context_);
    EXPECT_EQ(hooks::cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, live.address), CUDA_SUCCESS);
    EXPECT_EQ(pool != nullptr, live.is_in_order);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(hooks::cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, kCapacity);
  }
  void verify(Live& live) {
    EXPECT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    std::vector<std::uint32_t> words(live.words.size());
    EXPECT_EQ(
        (gated<&Driver::cuMemcpyDtoH_v2>(nullptr, static_cast<void*>(words.data()), live.address, words.size() * 4)),
        CUDA_SUCCESS);
    const auto [read, written] = std::mismatch(words.begin(), words.end(), live.words.begin());
    EXPECT_TRUE(read == words.end()) << "word " << (read - words.begin()) << " of " << words.size() << " is " << *read
                                     << ", written was " << *written;
    verified.fetch_add(1);
  }

  const CUcontext context_;
  std::mt19937 random_;
  CUfunction increment_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<Live> live_;
};

// Memory that was freed in the order of a stream that waits until `go` is true.
struct FreeUnderWay {
  explicit FreeUnderWay(std::uint64_t bytes) {
    EXPECT_EQ(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CUdeviceptr address = 0;
    EXPECT_EQ(hooks::cuMemAllocAsync(&address, bytes, stream), CUDA_SUCCESS);
    const CUhostFn wait = [](void* its) {
      while (!static_cast<std::atomic<bool>*>(its)->load()) std::this_thread::yield();
    };
    EXPECT_EQ((gated<&Driver::cuLaunchHostFunc>(stream, stream, wait, static_cast<void*>(&go))), CUDA_SUCCESS);
    EXPECT_EQ(hooks::cuMemFreeAsync(address, stream), CUDA_SUCCESS);
  }
  ~FreeUnderWay() { EXPECT_EQ(hooks::cuStreamDestroy_v2(stream), CUDA_SUCCESS); }
  std::atomic<bool> go{false};
  CUstream stream = nullptr;
};

// The program needs what it has freed: the daemon has no more commitment.
void expect_frees_to_be_waited_for(RoomDaemon& daemon, CUcontext context) {
  constexpr std::uint64_t kBytes = kCommitment / 4 * 3;
  const auto plain = [](CUdeviceptr* address) { return hooks::cuMemAlloc_v2(address, kBytes); };
  const auto managed = [](CUdeviceptr* address) {
    return hooks::cuMemAllocManaged(address, kBytes, CU_MEM_ATTACH_GLOBAL);
  };
  for (CUresult (*const allocate)(CUdeviceptr*) : {+plain, +managed}) {
    for (const bool is_done_first : {false, true}) {
      SCOPED_TRACE(::testing::Message() << (allocate == +plain ? "plain" : "managed") << ", done "
                                        << (is_done_first ? "before" : "after") << " the daemon's no");
      FreeUnderWay free(kBytes);
      const auto finish = [&] {
        free.go = true;
        EXPECT_EQ(driver().cuCtxSetCurrent(context), CUDA_SUCCESS);
        EXPECT_EQ(driver().cuStreamSynchronize(free.stream), CUDA_SUCCESS);
      };
      const std::uint64_t before = daemon.refusals();
      if (is_done_first) daemon.before_refusing(finish);
      std::thread later([&] {
        while (daemon.refusals() == before) std::this_thread::yield();
        if (!is_done_first) finish();
      });
      CUdeviceptr address = 0;
      EXPECT_EQ(allocate(&address), CUDA_SUCCESS);
      free.go = true;
      later.join();
      EXPECT_EQ(hooks::cuMemFree_v2(address), CUDA_SUCCESS);
    }
  }
}

class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::setenv("GPUMUX_RUNTIME_DIR", directory_.path().c_str(), 1), 0);
    ASSERT_EQ(::setenv("GPUMUX_ON_DAEMON_LOSS", "wait", 1), 0);
    ASSERT_EQ(::unsetenv("GPUMUX_DISABLE"), 0);
    ASSERT_TRUE(std::filesystem::create_directory(directory_.file(os::kTenantDir)));
  }
  void TearDown() override { pager::clear_faults(); }
  const TemporaryDirectory directory_;
  const std::string socket_ = directory_.file(os::kTenantSocket);
};

// One tenant for the whole process, as in a program; so one test for everything that happens to it.
TEST_F(MemoryTest, WhatIsReadIsWhatWasWrittenWhateverRoomThereIs) {
  RoomDaemon daemon(socket_);
  ASSERT_EQ(driver().cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuModuleLoadData(&module, ::kGpumuxSimKernelsPtx), CUDA_SUCCESS);

  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) programs.push_back(std::make_unique<Program>(context, module, seed() + i + 1));
  for (auto& program : programs) {
    threads.emplace_back([&program, &stop, context] {
      ASSERT_EQ(driver().cuCtxSetCurrent(context), CUDA_SUCCESS);
      while (!stop) {
        program->step();
        program->steps.fetch_add(1);
      }
      program->verify_all();
    });
  }
  const std::uint64_t rooms = from_environment("GPUMUX_TEST_ROOMS", 3000);
  const std::uint64_t leases = from_environment("GPUMUX_TEST_LEASES", 0);
  std::array<std::uint64_t, 3> before{};
  std::mt19937 random(seed());
  const base::TimePoint end = os::now() + 200s;
  const auto has_moved = [&] {
    return daemon.last().moved_out != 0 && daemon.last().moved_in != 0 && (daemon.claims() != 0 || !kMeetsClaims);
  };
  for (unsigned round = 0; daemon.complaints().empty() && !HasFailure(); ++round) {
    if (daemon.rooms() >= rooms && daemon.grants() >= leases && (has_moved() || os::now() > end)) break;
    if (round % 8 == 7 && !has_moved()) daemon.slow_down();
    // In every second round the driver refuses now and then what the pager asks.
    for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemHostRegister_v2",
                             "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}) {
      pager::Fault& fault = *pager::the_faults()[name];
      fault.code = std::string_view(name) == "cuMemCreate" ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
      fault.per_million = round % 2 == 0 ? 0 : 3000;
    }
    // And in some it has nothing at all, for longer than the seat believes the daemon that there is something.
    if (round % 8 == 5) pager::the_faults()["cuMemCreate"]->per_million = 1'000'000;
    std::this_thread::sleep_for(round % 8 == 5 ? 700ms : 100ms);
    // On a busy machine that takes longer, the first time.
    const base::TimePoint believed = os::now() + 10s;
    while (round % 8 == 5 && kMeetsClaims && daemon.claims() == 0 && os::now() < believed)
      std::this_thread::sleep_for(10ms);
    // Every thread gets on, if not while the room changes faster than memory moves, then when it stays.
    pager::clear_faults();
    daemon.calm(true);
    const base::TimePoint patience = os::now() + 60s;
    for (std::size_t i = 0; i < before.size(); ++i) {
      while (programs[i]->steps < before[i] + 5 && os::now() < patience) std::this_thread::sleep_for(1ms);
      ASSERT_GE(programs[i]->steps, before[i] + 5) << "thread " << i << " does not get on";
      before[i] = programs[i]->steps;
    }
    daemon.calm(false);
  }
  pager::clear_faults();
  daemon.calm(true);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(daemon.complaints(), "");
  const wire::Memory last = daemon.last();
  std::uint64_t verified = 0;
  std::uint64_t refused = 0;
  std::uint64_t created = 0;
  for (const auto& program : programs) {
    verified += program->verified;
    refused += program->refused;
    created += program->created;
  }
  std::printf(
      "%llu rooms, %llu grants, %llu reports, %llu refusals; %llu verified, %llu without memory; moved %llu MiB "
      "out, %llu in, saved %llu clean, %llu constant\n",
      static_cast<unsigned long long>(daemon.rooms()), static_cast<unsigned long long>(daemon.grants()),
      static_cast<unsigned long long>(daemon.reports()), static_cast<unsigned long long>(daemon.refusals()),
      static_cast<unsigned long long>(verified), static_cast<unsigned long long>(refused),
      static_cast<unsigned long long>(last.moved_out >> 20), static_cast<unsigned long long>(last.moved_in >> 20),
      static_cast<unsigned long long>(last.saved_clean >> 20),
      static_cast<unsigned long long>(last.saved_constant >> 20));
  EXPECT_GT(verified, 10u);
  EXPECT_GT(created, 0u) << "no program has created a handle";  // on a busy machine not each gets to it
  EXPECT_GT(last.moved_out, 0u) << "nothing was ever evicted";
  EXPECT_GT(last.moved_in, 0u);
  if (kMeetsClaims) {
    EXPECT_GT(daemon.claims(), 0u) << "memory that the driver did not have was never claimed";
  }
  EXPECT_STREQ(tenant()->memories().of(0).pools.check(), nullptr);
  programs.clear();
  expect_frees_to_be_waited_for(daemon, context);
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
  DeviceMemory& memory = tenant()->memories().of(0);
  tenant()->memories().pause(0);
  EXPECT_STREQ(memory.pools.check(), nullptr);
  EXPECT_EQ(memory.pools.reserved_bytes(), 0u);
  EXPECT_STREQ(memory.pager.check(), nullptr);
  EXPECT_EQ(memory.pager.bounds().committed(), 0u);
  EXPECT_EQ(memory.pager.evicted_bytes(), 0u);
  tenant()->memories().resume(0);
}

}  // namespace
}  // namespace gpumux::shim

// SPDX-License-Identifier: Apache-2.0
// How fast the pager moves memory on a real GPU, and whether it comes back bit for bit.
//
//   pager [--device N] [--gib N] [--rounds N] [--chunk-mib N]
//
// The bus's own limits first, in this process: pinned copies of 32 MiB, one direction and both at once. Then two seats
// of N GiB each, of two processes: evicted and restored alone, dirty, clean (freed, and given away as it is) and
// constant; then one out while the other comes in, taking room as it is freed (a switch), each time after the same
// copies by hand, both ways at once, from and to the same host memory, with nothing freed: what the bus gives then, of
// which `switch_of_copies` is. (Pinned memory of 2 GiB that a driver makes is not the same: it may be a fifth faster
// both ways, as fast as `bus_both_gb_s`.) Every other pair of switches hands the memory over instead of freeing it
// (`handed_over_of_copies`). All data is compared with what was written. At last what an allocation and its release
// cost, against the driver's own. Host memory is lent as a daemon would: huge pages, populated beforehand. Run it
// without gpumux. Prints one line `RESULT {json}`.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu/pager_lenders.h"
#include "pager/pager.h"
#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {
namespace {

using cuda::CUdeviceptr;
using pager::JobState;
using pager::kBlockBytes;
using pager::kMebibyte;

constexpr std::uint64_t kGibibyte = 1024 * kMebibyte;
constexpr std::uint64_t kPieceBytes = 32 * kMebibyte;
constexpr std::uint64_t kPatternBytes = 64 * kMebibyte;

struct Options {
  int device = 0;
  std::uint64_t bytes = 20 * kGibibyte;
  int rounds = 5;
  std::uint64_t chunk_bytes = 0;  // 0: as the pager chooses
};

Options read_options(int count, char** arguments) {
  Options options;
  if (count % 2 == 0) fail("every option has a value");
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    if (name == "--device")
      options.device = std::atoi(arguments[i + 1]);
    else if (name == "--gib")
      options.bytes = static_cast<std::uint64_t>(std::atol(arguments[i + 1])) * kGibibyte;
    else if (name == "--chunk-mib")
      options.chunk_bytes = static_cast<std::uint64_t>(std::atol(arguments[i + 1])) * kMebibyte;
    else if (name == "--rounds")
      options.rounds = std::atoi(arguments[i + 1]);
    else
      fail("unknown option " + name);
  }
  if (options.bytes == 0 || options.rounds < 1) fail("--gib and --rounds have to be at least 1");
  return options;
}

double seconds_since(std::int64_t start) { return static_cast<double>(now_ns() - start) * 1e-9; }

struct AlwaysDrained final : pager::DrainedSeat {
  bool still_drained() const override { return true; }
};

// Bytes per second that the bus gives pinned memory: out, in, and both at once (the sum).
struct Bus {
  double out = 0;
  double in = 0;
  double both = 0;
};

Bus measure_bus(const Program& program) {
  const cuda::Driver& driver = program.driver;
  constexpr std::uint64_t kBytes = 2 * kGibibyte;
  CUdeviceptr device[2] = {};
  void* host[2] = {};
  cuda::CUstream streams[2] = {};
  for (int i = 0; i < 2; ++i) {
    check(driver.cuMemAlloc_v2(&device[i], kBytes), "cuMemAlloc");
    check(driver.cuMemHostAlloc(&host[i], kGibibyte, 0), "cuMemHostAlloc");
    check(driver.cuStreamCreate(&streams[i], cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  const auto copy = [&](bool out, bool in) {
    const std::int64_t start = now_ns();
    for (std::uint64_t at = 0; at < kBytes; at += kPieceBytes) {
      const auto host_at = [&](int i) { return static_cast<std::byte*>(host[i]) + at % kGibibyte; };
      if (out) check(driver.cuMemcpyDtoHAsync_v2(host_at(0), device[0] + at, kPieceBytes, streams[0]), "copy out");
      if (in) check(driver.cuMemcpyHtoDAsync_v2(device[1] + at, host_at(1), kPieceBytes, streams[1]), "copy in");
    }
    check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    return static_cast<double>(kBytes) * (out && in ? 2 : 1) / seconds_since(start);
  };
  copy(true, true);
  std::vector<double> out, in, both;
  for (int i = 0; i < 5; ++i) {
    out.push_back(copy(true, false));
    in.push_back(copy(false, true));
    both.push_back(copy(true, true));
  }
  for (int i = 0; i < 2; ++i) {
    check(driver.cuMemFree_v2(device[i]), "cuMemFree");
    check(driver.cuMemFreeHost(host[i]), "cuMemFreeHost");
    check(driver.cuStreamDestroy_v2(streams[i]), "cuStreamDestroy");
  }
  return {median(out), median(in), median(both)};
}

// The driver with the calls that a job makes timed.
template <auto Member, class Function>
struct Timed;
template <auto Member, class... Arguments>
struct Timed<Member, cuda::CUresult (*)(Arguments...)> {
  static inline cuda::CUresult (*real)(Arguments...) = nullptr;
  static inline std::atomic<std::int64_t> total_ns{0};
  static inline std::atomic<std::int64_t> calls{0};
  static cuda::CUresult call(Arguments... arguments) {
    const std::int64_t start = now_ns();
    const cuda::CUresult result = real(arguments...);
    total_ns += now_ns() - start;
    ++calls;
    return result;
  }
};

struct CallTime {
  const char* name;
  std::atomic<std::int64_t>* total_ns;
  std::atomic<std::int64_t>* calls;
};
std::vector<CallTime> g_call_times;

cuda::Driver timed(const cuda::Driver& driver) {
  cuda::Driver made = driver;
#define GPUMUX_TIMED(name)                                                    \
  {                                                                           \
    using Wrapped = Timed<&cuda::Driver::name, decltype(cuda::Driver::name)>; \
    Wrapped::real = driver.name;                                              \
    made.name = &Wrapped::call;                                               \
    g_call_times.push_back({#name, &Wrapped::total_ns, &Wrapped::calls});     \
  }
  GPUMUX_TIMED(cuMemCreate)
  GPUMUX_TIMED(cuMemMap)
  GPUMUX_TIMED(cuMemSetAccess)
  GPUMUX_TIMED(cuMemUnmap)
  GPUMUX_TIMED(cuMemRelease)
  GPUMUX_TIMED(cuMemHostRegister_v2)
#undef GPUMUX_TIMED
  return made;
}

// One seat: allocations of different sizes, filled with words that no two blocks share.
class Seat {
 public:
  Seat(const Program& program, pager::HostMemory& host, pager::Frames& frames, const Options& options,
       std::uint32_t number)
      : program_(program),
        number_(number),
        bytes_(options.bytes),
        driver_(timed(program.driver)),
        pager_(driver_, pager_options(host, frames, options)) {
    check(pager_.prepare(program.context), "prepare");
    const std::uint64_t sizes[] = {4 * kGibibyte, kGibibyte, 512 * kMebibyte, 96 * kMebibyte};
    for (std::uint64_t left = options.bytes, i = 0; left > 0; ++i) {
      const std::uint64_t bytes = std::min(left, sizes[i % std::size(sizes)]);
      CUdeviceptr address = 0;
      check(pager_.allocate(program.context, bytes, pager::Placement::kResident, &address), "allocate");
      memory_.emplace_back(address, bytes);
      left -= bytes;
    }
    std::mt19937_64 random(number);
    pattern_.resize(kPatternBytes / 8);
    for (std::uint64_t& word : pattern_) word = random();
    each_piece([&](CUdeviceptr at, std::uint64_t bytes) {
      check(program_.driver.cuMemcpyHtoD_v2(at, pattern_.data(), bytes), "cuMemcpyHtoD");
    });
    dirty(0);
  }

  // Writes one word in each 2 MiB block, another each time.
  void dirty(std::uint32_t stamp) {
    stamp_ = stamp;
    for (const auto& [address, bytes] : memory_) {
      check(program_.driver.cuMemsetD2D32_v2(address, kBlockBytes, stamp_word(), 1, bytes / kBlockBytes),
            "cuMemsetD2D32");
    }
    check(program_.driver.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  void zero() {
    for (const auto& [address, bytes] : memory_)
      check(program_.driver.cuMemsetD32_v2(address, 0, bytes / 4), "cuMemsetD32");
    check(program_.driver.cuCtxSynchronize(), "cuCtxSynchronize");
  }

  // Words that differ from what was written.
  std::uint64_t differences() {
    std::vector<std::uint64_t> expected = pattern_;
    for (std::size_t at = 0; at < expected.size(); at += kBlockBytes / 8) {
      const std::uint32_t word = stamp_word();
      std::memcpy(&expected[at], &word, sizeof word);
    }
    std::vector<std::uint64_t> got(expected.size());
    std::uint64_t wrong = 0;
    each_piece([&](CUdeviceptr at, std::uint64_t bytes) {
      check(program_.driver.cuMemcpyDtoH_v2(got.data(), at, bytes), "cuMemcpyDtoH");
      if (std::memcmp(got.data(), expected.data(), bytes) == 0) return;
      for (std::size_t i = 0; i < bytes / 8; ++i) wrong += got[i] != expected[i] ? 1u : 0u;
    });
    return wrong;
  }

  // Seconds; `freed` tells others how far it is.
  double evict(std::atomic<std::uint64_t>* freed = nullptr) {
    const std::int64_t start = now_ns();
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const auto job = pager_.begin_eviction(drained_, UINT64_MAX, &error);
    if (job == nullptr) fail("no eviction began");
    for (JobState state = job->step(); !is_over(state); state = job->step()) {
      if (freed != nullptr) freed->store(job->freed_bytes());
      if (state != JobState::kRunning) sleep_ns(pager::kPollMicroseconds * 1000);
      if (state == JobState::kStarved && seconds_since(start) > 60) fail("an eviction starved");
    }
    if (freed != nullptr) freed->store(UINT64_MAX);
    check(job->error(), "eviction");
    return seconds_since(start);
  }
  double restore(const std::atomic<std::uint64_t>* freed = nullptr) {
    const std::int64_t start = now_ns();
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const std::uint64_t before = pager_.bounds().used();
    const auto allow = [&](std::uint64_t bytes) {
      pager_.bounds().set(bytes > pager::Bounds::kNone - before ? pager::Bounds::kNone : before + bytes,
                          pager::Bounds::kNone);
    };
    allow(freed != nullptr ? 0 : pager::Bounds::kNone);
    const auto job = pager_.begin_restoration(&error);
    if (job == nullptr) fail("no restoration began");
    for (JobState state = JobState::kRunning; !is_over(state);) {
      if (freed != nullptr) allow(freed->load());
      state = job->step();
      if (!is_over(state) && state != JobState::kRunning) sleep_ns(pager::kPollMicroseconds * 1000);
    }
    check(job->error(), "restoration");
    return seconds_since(start);
  }

  pager::Pager& pager() { return pager_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  static pager::Options pager_options(pager::HostMemory& host, pager::Frames& frames, const Options& options) {
    pager::Options made;
    made.frames = &frames;
    made.device = options.device;
    made.host_memory = &host;
    made.chunk_bytes = options.chunk_bytes;
    return made;
  }
  std::uint32_t stamp_word() const { return number_ << 24 | stamp_; }
  template <class Function>
  void each_piece(Function function) {
    for (const auto& [address, bytes] : memory_) {
      for (std::uint64_t at = 0; at < bytes; at += kPatternBytes)
        function(address + at, std::min(kPatternBytes, bytes - at));
    }
  }

  const Program& program_;
  const std::uint32_t number_;
  const std::uint64_t bytes_;
  std::uint32_t stamp_ = 0;
  const cuda::Driver driver_;
  pager::Pager pager_;
  AlwaysDrained drained_;
  std::vector<std::pair<CUdeviceptr, std::uint64_t>> memory_;
  std::vector<std::uint64_t> pattern_;
};

// Nanoseconds for an allocation and its release, medians, the driver's and the pager's in turn.
struct AllocationCost {
  double native_ns = 0;
  double pager_ns = 0;
};

AllocationCost measure_allocation(const Program& program, pager::Pager& pager, std::uint64_t bytes) {
  std::vector<double> native, ours;
  const auto wait = [](void* argument, cuda::CUcontext) {
    return static_cast<const Program*>(argument)->driver.cuCtxSynchronize();
  };
  for (int i = 0; i < 200; ++i) {
    CUdeviceptr address = 0;
    std::int64_t start = now_ns();
    check(program.driver.cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    check(program.driver.cuMemFree_v2(address), "cuMemFree");
    native.push_back(static_cast<double>(now_ns() - start));
    start = now_ns();
    check(pager.allocate(program.context, bytes, pager::Placement::kResident, &address), "allocate");
    check(pager.free(address, wait, const_cast<Program*>(&program)), "free");
    ours.push_back(static_cast<double>(now_ns() - start));
  }
  return {median(native), median(ours)};
}

// The memory that the two processes share. They do everything in step, and each knows which round it is.
struct Shared {
  pthread_barrier_t barrier;
  int sockets[2] = {-1, -1};
  std::atomic<std::uint64_t> freed{0};  // by the one that goes out
  // The second process's.
  std::atomic<double> copied_s{0};
  std::atomic<double> moved_s{0};
  std::atomic<std::uint64_t> wrong{0};
};

// In odd rounds the first process's seat goes out and the second one's comes in; two rounds with memory freed and made,
// two with memory handed over, in turn. The first two register host memory, and the next two make what is handed over.
constexpr int kUncounted = 4;
int rounds_of(const Options& options) { return 4 * options.rounds + kUncounted; }
bool hands_over(int round) { return (round - 1) / 2 % 2 != 0; }

// One side of the switches: each one after the same copies by hand, so that both meet the same machine.
class Side {
 public:
  Side(const Program& program, Shared& shared, Seat& seat, PopulatedHostMemory& host, PassedFrames& frames)
      : program_(program), shared_(shared), seat_(seat), host_(host), frames_(frames) {
    check(program.driver.cuMemAlloc_v2(&device_, kRingBytes), "cuMemAlloc");
    check(program.driver.cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~Side() {
    check(program_.driver.cuStreamDestroy_v2(stream_), "cuStreamDestroy");
    check(program_.driver.cuMemFree_v2(device_), "cuMemFree");
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  struct Times {
    double copied_s;
    double moved_s;
  };
  Times round(int number, bool goes_out) {
    if (goes_out) seat_.dirty(static_cast<std::uint32_t>(number));
    meet();
    frames_.set(hands_over(number) ? PassedFrames::To::kOther : PassedFrames::To::kNobody);
    meet();
    sleep_ns(kScrubbed);
    meet();
    const double copied_s = number > kUncounted ? copy(goes_out) : 0;
    if (goes_out) shared_.freed = 0;
    meet();
    return {copied_s, goes_out ? seat_.evict(&shared_.freed) : seat_.restore(&shared_.freed)};
  }
  void meet() { ::pthread_barrier_wait(&shared_.barrier); }

 private:
  static constexpr std::uint64_t kRingBytes = 2 * kGibibyte;
  static constexpr std::int64_t kScrubbed = 200'000'000;  // what the switch before has freed

  // As many bytes as a switch moves, without freeing or making anything. Copies out may overwrite the host memory
  // of a seat that goes out: the switch writes all of it anew.
  double copy(bool out) {
    const std::vector<std::byte*> chunks = host_.lent();
    const std::size_t count = std::min<std::size_t>(chunks.size(), seat_.bytes() / pager::kHostChunkBytes);
    const std::int64_t start = now_ns();
    for (std::size_t i = 0; i < count; ++i) {
      const CUdeviceptr device = device_ + i * pager::kHostChunkBytes % kRingBytes;
      check(out ? program_.driver.cuMemcpyDtoHAsync_v2(chunks[i], device, pager::kHostChunkBytes, stream_)
                : program_.driver.cuMemcpyHtoDAsync_v2(device, chunks[i], pager::kHostChunkBytes, stream_),
            "a copy by hand");
    }
    check(program_.driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    return seconds_since(start);
  }

  const Program& program_;
  Shared& shared_;
  Seat& seat_;
  PopulatedHostMemory& host_;
  PassedFrames& frames_;
  CUdeviceptr device_ = 0;
  cuda::CUstream stream_ = nullptr;
};

void run_second(const Options& options, Shared& shared) {
  const Program program = start_program(options.device);
  PopulatedHostMemory host(options.bytes + 2 * kGibibyte);
  PassedFrames frames(shared.sockets[1], 2);
  Seat seat(program, host, frames, options, 2);
  seat.evict();
  Side side(program, shared, seat, host, frames);
  for (int round = 1; round <= rounds_of(options); ++round) {
    const Side::Times times = side.round(round, round % 2 == 0);
    shared.copied_s = times.copied_s;
    shared.moved_s = times.moved_s;
    side.meet();
  }
  frames.set(PassedFrames::To::kNobody);
  seat.restore();
  shared.wrong = seat.differences();
  side.meet();
  ::pause();  // until the first one ends, which measures alone from here on
}

// Medians. Of a switch and of the copies before it the time until both sides are done counts.
struct Switches {
  double all = 0;
  double out = 0;
  double in = 0;
  double copies = 0;
  double of_copies = 0;  // of the ratios
};
enum Kind { kFreed, kHandedOver };

std::array<Switches, 2> measure_switches(const Options& options, const Program& program, Shared& shared, Seat& seat,
                                         PopulatedHostMemory& host, PassedFrames& frames) {
  struct Times {
    std::vector<double> all, out, in, copies, of_copies;
  };
  std::array<Times, 2> times;
  Side side(program, shared, seat, host, frames);
  for (int round = 1; round <= rounds_of(options); ++round) {
    const bool goes_out = round % 2 != 0;
    const Side::Times own = side.round(round, goes_out);
    side.meet();
    if (round <= kUncounted) continue;
    Times& its = times[hands_over(round) ? kHandedOver : kFreed];
    its.all.push_back(std::max(own.moved_s, shared.moved_s.load()));
    its.copies.push_back(std::max(own.copied_s, shared.copied_s.load()));
    its.of_copies.push_back(its.all.back() / its.copies.back());
    (goes_out ? its.out : its.in).push_back(own.moved_s);
    (goes_out ? its.in : its.out).push_back(shared.moved_s.load());
  }
  frames.set(PassedFrames::To::kNobody);
  side.meet();  // the second one has compared
  const auto medians = [](const Times& of) {
    return Switches{median(of.all), median(of.out), median(of.in), median(of.copies), median(of.of_copies)};
  };
  return {medians(times[kFreed]), medians(times[kHandedOver])};
}

class Json {
 public:
  void add(const std::string& name, double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.6g", value);
    text_ += (text_.empty() ? "\"" : ", \"") + name + "\": " + text;
  }
  void print() const { std::printf("RESULT {%s}\n", text_.c_str()); }

 private:
  std::string text_;
};

}  // namespace

int run(const Options& options) {
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no shared memory");
  Shared& shared = *new (memory) Shared;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, shared.sockets) != 0) fail("no socket");
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&shared.barrier, &attributes, 2);
  // Before either of them knows the driver. Neither waits for one that has failed.
  const pid_t parent = ::getpid();
  ::signal(SIGCHLD, [](int) { ::_exit(1); });
  const pid_t second = ::fork();
  if (second < 0) fail("fork fails");
  if (second == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::pthread_barrier_wait(&shared.barrier);  // the first one measures alone before
    run_second(options, shared);
    ::_exit(0);
  }

  const Program program = start_program(options.device);
  Json json;
  const Bus bus = measure_bus(program);
  json.add("gib", static_cast<double>(options.bytes) / static_cast<double>(kGibibyte));
  json.add("bus_out_gb_s", bus.out * 1e-9);
  json.add("bus_in_gb_s", bus.in * 1e-9);
  json.add("bus_both_gb_s", bus.both * 1e-9);

  PopulatedHostMemory host(options.bytes + 2 * kGibibyte);
  PassedFrames frames(shared.sockets[0], 1);
  Seat seat(program, host, frames, options, 1);
  std::uint64_t wrong = 0;
  const auto bytes = static_cast<double>(options.bytes);

  json.add("first_eviction_s", seat.evict());
  json.add("first_restoration_s", seat.restore());
  wrong += seat.differences();
  std::vector<double> dirty_out, in, clean_out;
  for (int round = 1; round <= options.rounds; ++round) {
    seat.dirty(1000 + static_cast<std::uint32_t>(round));
    dirty_out.push_back(seat.evict());
    in.push_back(seat.restore());
    clean_out.push_back(seat.evict());
    seat.restore();
  }
  // The same where what is evicted is handed over: to itself, for nothing else is measured here.
  frames.set(PassedFrames::To::kSelf);
  seat.evict();  // and makes it what can be handed over
  seat.restore();
  std::vector<double> clean_given;
  for (int round = 1; round <= options.rounds; ++round) {
    clean_given.push_back(seat.evict());
    seat.restore();
  }
  frames.set(PassedFrames::To::kNobody);
  wrong += seat.differences();
  json.add("dirty_out_s", median(dirty_out));
  json.add("dirty_out_of_limit", bytes / bus.out / median(dirty_out));
  json.add("in_s", median(in));
  json.add("in_of_limit", bytes / bus.in / median(in));
  json.add("clean_out_s", median(clean_out));
  json.add("clean_out_share_of_copying", median(clean_out) / (bytes / bus.out));
  json.add("clean_given_s", median(clean_given));
  json.add("clean_given_share_of_copying", median(clean_given) / (bytes / bus.out));

  for (const CallTime& call : g_call_times) *call.total_ns = *call.calls = 0;
  ::pthread_barrier_wait(&shared.barrier);
  const auto kinds = measure_switches(options, program, shared, seat, host, frames);
  wrong += seat.differences() + shared.wrong.load();
  for (const auto& [name, switches] :
       {std::pair{std::string("switch"), kinds[kFreed]}, std::pair{std::string("handed_over"), kinds[kHandedOver]}}) {
    json.add(name + "_s", switches.all);
    json.add(name + "_out_s", switches.out);
    json.add(name + "_in_s", switches.in);
    json.add(name + "_copies_s", switches.copies);
    json.add(name + "_of_copies", switches.of_copies);
    json.add(name + "_of_bus", switches.all / (2 * bytes / bus.both));
  }
  for (const CallTime& call : g_call_times) {
    const auto calls = std::max<std::int64_t>(call.calls->load(), 1);
    json.add(std::string(call.name) + "_us",
             static_cast<double>(call.total_ns->load()) * 1e-3 / static_cast<double>(calls));
  }
  seat.zero();
  json.add("constant_out_s", seat.evict());
  json.add("constant_in_s", seat.restore());
  json.add("wrong_words", static_cast<double>(wrong));
  const pager::Counters counters = seat.pager().counters();
  json.add("saved_clean_gib", static_cast<double>(counters.moved.saved_clean) / static_cast<double>(kGibibyte));
  json.add("saved_constant_gib", static_cast<double>(counters.moved.saved_constant) / static_cast<double>(kGibibyte));

  for (const auto& [name, size] : {std::pair{"2m", 2 * kMebibyte}, {"64m", 64 * kMebibyte}, {"1g", kGibibyte}}) {
    const AllocationCost cost = measure_allocation(program, seat.pager(), size);
    json.add(std::string("alloc_free_native_us_") + name, cost.native_ns * 1e-3);
    json.add(std::string("alloc_free_pager_us_") + name, cost.pager_ns * 1e-3);
  }
  json.print();
  return wrong == 0 ? 0 : 1;
}

}  // namespace gpumux::tests

int main(int count, char** arguments) { return gpumux::tests::run(gpumux::tests::read_options(count, arguments)); }

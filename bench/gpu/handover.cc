// SPDX-License-Identifier: Apache-2.0
// What a switch costs by hand: the least that the driver lets two processes do it in.
//
//   handover [--device N] [--gib N] [--rounds N]
//
// One process copies out all it has, chunk by chunk, while another one copies as much in, each chunk after one of the
// first one's has left; nothing else. Five ways: with memory that both have from the beginning; with memory that the
// first one frees as it is copied; that the second one makes; with both; and with memory that the first one has
// exported beforehand and the second one imports, so that it is never free. Freeing and making take longer than the
// first way because of the driver: the engine that copies in scrubs freed memory. Between rounds it has a second to
// scrub what was only cleared away. Run it without gpumux. Prints a line for each round, and one line `RESULT {json}`:
// of each way the median time of the two that took longer, and the median of its ratios to the same round's first way:
// the bus is shared with others, so only times that follow each other can be compared.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "os/file_descriptor.h"
#include "os/unix_socket.h"
#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {
namespace {

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t kChunkBytes = 128 * kMebibyte;  // as the pager's
constexpr std::uint64_t kHostBytes = 4096 * kMebibyte;  // chunks take turns in it
constexpr std::size_t kOutInFlight = 3;
constexpr std::size_t kInInFlight = 8;
constexpr std::int64_t kPoll = 20'000;
constexpr std::int64_t kScrubbed = 1'000'000'000;

struct Way {
  const char* name;
  bool frees;
  bool makes;
  bool hands_over = false;
};
constexpr std::array<Way, 5> kWays{{{"copies", false, false},
                                    {"frees", true, false},
                                    {"makes", false, true},
                                    {"frees_and_makes", true, true},
                                    {"hands_over", true, true, true}}};

struct Options {
  int device = 0;
  std::size_t chunks = 160;
  int rounds = 5;
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
      options.chunks = static_cast<std::size_t>(value) * 1024 * kMebibyte / kChunkBytes;
    else if (name == "--rounds")
      options.rounds = static_cast<int>(value);
    else
      fail("unknown option " + name);
  }
  return options;
}

// Between the two processes.
struct Shared {
  pthread_barrier_t barrier;
  std::atomic<std::size_t> left{0};  // chunks that are out, and freed
  std::atomic<double> seconds[2];
  int sockets[2] = {-1, -1};  // the first one's and the second one's end
};

class Side {
 public:
  Side(const Options& options, Shared& shared, bool gives)
      : shared_(shared), gives_(gives), program_(start_program(options.device)), handles_(options.chunks) {
    check(driver().cuMemAddressReserve(&address_, options.chunks * kChunkBytes, 0, 0, 0), "cuMemAddressReserve");
    check(driver().cuMemHostAlloc(&host_, kHostBytes, 0), "cuMemHostAlloc");
    check(driver().cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (std::size_t i = 0; i < options.chunks; ++i) {
      check(driver().cuEventCreate(&copied_.emplace_back(), cuda::CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    }
    properties_.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties_.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, options.device};
  }

  // Leaves nothing behind. `seconds` of both are set when it returns.
  void run(const Way& way) {
    const bool is_there = gives_ || !way.makes;
    for (std::size_t i = 0; is_there && i < handles_.size(); ++i) make(i, false);
    for (std::size_t i = 0; way.hands_over && i < handles_.size(); ++i) gives_ ? send(i) : receive();
    sleep_ns(kScrubbed);
    if (gives_) shared_.left = 0;
    meet();
    const std::int64_t begin = now_ns();
    if (gives_) {
      give(way.frees);
    } else {
      take(way);
    }
    check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize");
    shared_.seconds[gives_ ? 0 : 1] = static_cast<double>(now_ns() - begin) * 1e-9;
    for (std::size_t i = 0; !(gives_ && way.frees) && i < handles_.size(); ++i) free(i);
    handed_over_.clear();
    meet();
  }

 private:
  const cuda::Driver& driver() const { return program_.driver; }
  void meet() { ::pthread_barrier_wait(&shared_.barrier); }
  cuda::CUdeviceptr at(std::size_t i) const { return address_ + i * kChunkBytes; }
  std::byte* host_at(std::size_t i) const { return static_cast<std::byte*>(host_) + i * kChunkBytes % kHostBytes; }

  // `waits`: what the other one has freed may not be back yet.
  void make(std::size_t i, bool waits) {
    cuda::CUresult made = driver().cuMemCreate(&handles_[i], kChunkBytes, &properties_, 0);
    for (; waits && made == cuda::CUDA_ERROR_OUT_OF_MEMORY; sleep_ns(kPoll)) {
      made = driver().cuMemCreate(&handles_[i], kChunkBytes, &properties_, 0);
    }
    if (made == cuda::CUDA_ERROR_OUT_OF_MEMORY)
      fail("the GPU has no room for twice --gib beside what is there: take less");
    check(made, "cuMemCreate");
    map(i);
  }
  void map(std::size_t i) {
    check(driver().cuMemMap(at(i), kChunkBytes, 0, handles_[i], 0), "cuMemMap");
    const cuda::CUmemAccessDesc access{properties_.location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().cuMemSetAccess(at(i), kChunkBytes, &access, 1), "cuMemSetAccess");
  }
  void send(std::size_t i) {
    int fd = -1;
    check(driver().cuMemExportToShareableHandle(&fd, handles_[i], cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "cuMemExportToShareableHandle");
    handed_over_.emplace_back(fd);
    const std::byte any{};
    while (!os::send_message(shared_.sockets[0], {&any, 1}, fd)) sleep_ns(kPoll);  // its buffer is full
  }
  void receive() {
    std::byte any{};
    auto received = os::receive_message(shared_.sockets[1], {&any, 1});
    for (; !received; received = os::receive_message(shared_.sockets[1], {&any, 1})) sleep_ns(kPoll);
    if (!received->fd) fail("no descriptor comes");
    handed_over_.push_back(std::move(received->fd));
  }
  void import(std::size_t i) {
    void* const fd = reinterpret_cast<void*>(static_cast<std::intptr_t>(handed_over_[i].get()));
    check(driver().cuMemImportFromShareableHandle(&handles_[i], fd, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
    map(i);
  }
  void free(std::size_t i) {
    check(driver().cuMemUnmap(at(i), kChunkBytes), "cuMemUnmap");
    check(driver().cuMemRelease(handles_[i]), "cuMemRelease");
  }
  bool is_copied(std::size_t i) const {
    const cuda::CUresult result = driver().cuEventQuery(copied_[i]);
    if (result != cuda::CUDA_ERROR_NOT_READY) check(result, "cuEventQuery");
    return result == cuda::CUDA_SUCCESS;
  }

  void give(bool frees) {
    std::size_t begun = 0;
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      for (; begun < std::min(handles_.size(), i + kOutInFlight); ++begun) {
        check(driver().cuMemcpyDtoHAsync_v2(host_at(begun), at(begun), kChunkBytes, stream_), "copy out");
        check(driver().cuEventRecord(copied_[begun], stream_), "cuEventRecord");
      }
      while (!is_copied(i)) sleep_ns(kPoll);
      if (frees) free(i);
      ++shared_.left;
    }
  }
  void take(const Way& way) {
    std::size_t done = 0;
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      while (shared_.left <= i) sleep_ns(kPoll);
      while (i - done >= kInInFlight) {
        if (is_copied(done)) {
          ++done;
        } else {
          sleep_ns(kPoll);
        }
      }
      if (way.hands_over) {
        import(i);
      } else if (way.makes) {
        make(i, true);
      }
      check(driver().cuMemcpyHtoDAsync_v2(at(i), host_at(i), kChunkBytes, stream_), "copy in");
      check(driver().cuEventRecord(copied_[i], stream_), "cuEventRecord");
    }
  }

  Shared& shared_;
  const bool gives_;
  Program program_;
  cuda::CUmemAllocationProp properties_{};
  cuda::CUdeviceptr address_ = 0;
  void* host_ = nullptr;
  cuda::CUstream stream_ = nullptr;
  std::vector<cuda::CUmemGenericAllocationHandle> handles_;
  std::vector<os::FileDescriptor> handed_over_;
  std::vector<cuda::CUevent> copied_;
};

void run(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no shared memory");
  Shared& shared = *new (memory) Shared;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, shared.sockets) != 0) fail("no socket");
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&shared.barrier, &attributes, 2);
  // Before either of them knows the driver. Neither waits for one that has failed.
  const pid_t parent = ::getpid();
  ::signal(SIGCHLD, [](int) { ::_exit(1); });
  const pid_t child = ::fork();
  if (child < 0) fail("fork fails");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
  }
  Side side(options, shared, child != 0);
  std::array<std::vector<double>, kWays.size()> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < kWays.size(); ++i) {
      side.run(kWays[i]);
      if (child == 0) continue;
      const double out = shared.seconds[0], in = shared.seconds[1];
      seconds[i].push_back(std::max(out, in));
      std::printf("%-16s out %.3f s, in %.3f s\n", kWays[i].name, out, in);
      std::fflush(stdout);
    }
  }
  if (child == 0) {
    ::pause();  // until the first one ends
    ::_exit(0);
  }
  std::string json;
  for (std::size_t i = 0; i < kWays.size(); ++i) {
    std::vector<double> of_copies;
    for (std::size_t round = 0; round < seconds[i].size(); ++round)
      of_copies.push_back(seconds[i][round] / seconds[0][round]);
    char text[128];
    std::snprintf(text, sizeof(text), "%s\"%s_s\": %.4f, \"%s_of_copies\": %.3f", i == 0 ? "" : ", ", kWays[i].name,
                  median(seconds[i]), kWays[i].name, median(of_copies));
    json += text;
  }
  std::printf("RESULT {\"gib\": %zu, %s}\n", options.chunks * kChunkBytes / (1024 * kMebibyte), json.c_str());
}

}  // namespace
}  // namespace gpumux::tests

int main(int count, char** arguments) {
  gpumux::tests::run(count, arguments);
  return 0;
}

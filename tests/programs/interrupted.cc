// SPDX-License-Identifier: Apache-2.0
// A program whose kernels go on until the host says so, in --contexts contexts at once. It says "running" when the
// kernels run. A test interrupts them then, and creates the file --go. --what is what the program does next:
//
//   wait      nothing
//   exit      ends by exit() in another thread, while the first one waits for the kernel
//   exec      replaces itself by a program whose kernel the host does not hold up
//   fork      forks a child that ends, and waits for it
//   destroy   tells the kernels to end, and destroys the streams and contexts without having waited; then once more
//             with a new context
//   free      frees, in another thread, memory that is still to be written to
//   queue     submits, in another thread, more than a stream has room for
//   copy      copies, in another thread, until it is to end
//   download  copies, in another thread, behind the kernels to memory of its own
//
// It has --ballast-kib of memory beside, whose content is checked at the end.
//
// When --until is there it tells the kernels to end, says "told", waits for them, and checks what they computed.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

constexpr std::uint64_t kElements = 4096;
constexpr useconds_t kLook = 1000;
constexpr std::uint32_t kMore = 3000, kAlmostFull = 1000;  // launches: a stream takes 1024

class Work {
 public:
  Work(const Api& api, std::uint64_t ballast_bytes) : api_(api) {
    CUdevice device = 0;
    GPUMUX_CALL(api_.cuDeviceGet(&device, 0));
    GPUMUX_CALL(api_.cuCtxCreate_v2(&context_, 0, device));
    kernels_ = load_kernels(api_);
    GPUMUX_CALL(api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&data_, kElements * 4));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&sum_, 8));
    void* flags = nullptr;
    GPUMUX_CALL(api_.cuMemHostAlloc(&flags, 2 * sizeof(*flags_), 0));
    flags_ = static_cast<std::atomic<std::uint32_t>*>(flags);
    flags_[0] = flags_[1] = 0;
    ballast_words_ = ballast_bytes / 4;
    if (ballast_words_ != 0) {
      GPUMUX_CALL(api_.cuMemAlloc_v2(&ballast_, ballast_bytes));
      std::vector<std::uint32_t> words(ballast_words_);
      for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_of(i);
      GPUMUX_CALL(api_.cuMemcpyHtoD_v2(ballast_, words.data(), ballast_bytes));
    }
    GPUMUX_CALL(api_.cuMemsetD32_v2(data_, 0, kElements));
    GPUMUX_CALL(api_.cuCtxSynchronize());  // the stream does not wait for the fill
  }

  // Returns when the kernel runs.
  void start() {
    use();
    launch(api_, kernels_.increment, stream_, false, data_, kElements);
    launch(api_, kernels_.rendezvous, stream_, false, address_of(&flags_[0]), address_of(&flags_[1]), std::uint32_t{1});
    launch(api_, kernels_.increment, stream_, false, data_, kElements);
    while (flags_[0] == 0) ::usleep(kLook);
  }
  void tell() { flags_[1] = 1; }
  void download() {
    use();
    std::vector<std::uint32_t> words(kElements);
    GPUMUX_CALL(api_.cuMemcpyDtoHAsync_v2(words.data(), data_, kElements * 4, stream_));
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    for (const std::uint32_t word : words) {
      if (word != increments_) wrong("a word that was copied behind the kernels");
    }
  }
  void copy(const Options& options) {
    use();
    constexpr std::size_t kBytes = 1 << 16;
    CUdeviceptr buffer = 0;
    void* host = nullptr;
    CUstream stream = nullptr;
    GPUMUX_CALL(api_.cuMemAlloc_v2(&buffer, kBytes));
    GPUMUX_CALL(api_.cuMemHostAlloc(&host, kBytes, 0));
    GPUMUX_CALL(api_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!options.may_end()) {
      GPUMUX_CALL(api_.cuMemcpyHtoDAsync_v2(buffer, host, kBytes, stream));
      GPUMUX_CALL(api_.cuMemcpyDtoHAsync_v2(host, buffer, kBytes, stream));
    }
    GPUMUX_CALL(api_.cuStreamSynchronize(stream));
  }
  void free_data() {
    use();
    GPUMUX_CALL(api_.cuMemFree_v2(data_));
    data_ = 0;
  }
  void submit_more() {
    use();
    for (std::uint32_t i = 0; i < kMore; ++i) {
      if (i == kAlmostFull) say("queued");
      launch(api_, kernels_.increment, stream_, false, data_, kElements);
    }
    increments_ += kMore;
  }
  void wait() {
    use();
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
  }
  void check() {
    wait();
    std::vector<std::uint32_t> words(ballast_words_);
    if (ballast_words_ != 0) GPUMUX_CALL(api_.cuMemcpyDtoH_v2(words.data(), ballast_, ballast_words_ * 4));
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] != word_of(i)) wrong("word " + std::to_string(i) + " of the ballast");
    }
    if (data_ == 0) return;
    std::uint64_t sum = 0;
    launch(api_, kernels_.checksum, stream_, false, data_, kElements, sum_);
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    GPUMUX_CALL(api_.cuMemcpyDtoH_v2(&sum, sum_, 8));
    if (sum != checksum_of(increments_, kElements)) wrong("the sum is " + std::to_string(sum));
  }
  void destroy() {
    use();
    GPUMUX_CALL(api_.cuStreamDestroy_v2(stream_));
    GPUMUX_CALL(api_.cuCtxDestroy_v2(context_));
  }

 private:
  static std::uint32_t word_of(std::size_t index) { return static_cast<std::uint32_t>(index * 2654435761u); }
  static CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
  void use() { GPUMUX_CALL(api_.cuCtxSetCurrent(context_)); }

  const Api& api_;
  CUcontext context_ = nullptr;
  Kernels kernels_;
  CUstream stream_ = nullptr;
  CUdeviceptr data_ = 0, sum_ = 0, ballast_ = 0;
  std::size_t ballast_words_ = 0;
  std::uint32_t increments_ = 2;
  std::atomic<std::uint32_t>* flags_ = nullptr;  // the kernel runs; it is to end
};

using Works = std::vector<std::unique_ptr<Work>>;

void finish(const Works& works, std::thread& other) {
  for (const auto& work : works) work->tell();
  say("told");
  if (other.joinable()) other.join();
  for (const auto& work : works) work->check();
  for (const auto& work : works) work->destroy();
}

// After the word "running" the test decides when it goes on.
Works begin(const Api& api, const Options& options) {
  Works works;
  for (std::uint64_t i = 0; i < options.number("contexts"); ++i) {
    works.push_back(std::make_unique<Work>(api, options.number("ballast-kib") * 1024));
    works.back()->start();
  }
  say("running");
  while (!options.text("go").empty() && ::access(options.text("go").c_str(), F_OK) != 0) ::usleep(kLook);
  return works;
}

void end_by_exit(const Works& works) {
  std::thread leaver([] {
    say("exits");
    std::exit(0);
  });
  works.front()->wait();
  leaver.join();
}

void fork_one() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) wrong("the child ended with status " + std::to_string(status));
  say("forked");
}

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv, {{"what", "wait"}, {"contexts", "1"}, {"go", ""}, {"ballast-kib", "0"}});
  static const Api api = open_driver(options.door());
  GPUMUX_CALL(api.cuInit(0));
  Works works = begin(api, options);
  const std::string& what = options.text("what");
  std::thread other;
  if (what == "exit") {
    end_by_exit(works);
  } else if (what == "exec") {
    ::execl("/proc/self/exe", argv[0], nullptr);
    wrong("exec failed");
  } else if (what == "fork") {
    fork_one();
  } else if (what == "destroy") {
    for (const auto& work : works) work->tell();
    say("told");
    for (const auto& work : works) work->destroy();
    say("destroyed");
    works.clear();
    works.push_back(std::make_unique<Work>(api, 0));
    works.back()->start();
  } else if (what == "free" || what == "queue" || what == "copy" || what == "download") {
    other = std::thread([&] {
      if (what == "free") {
        works.front()->free_data();
      } else if (what == "queue") {
        works.front()->submit_more();
      } else if (what == "download") {
        works.front()->download();
      } else {
        works.front()->copy(options);
      }
    });
  } else if (what != "wait") {
    say("unknown --what %s", what.c_str());
    return 2;
  }
  while (!options.may_end()) ::usleep(kLook);
  finish(works, other);
  say("done");
  return 0;
}

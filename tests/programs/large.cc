// SPDX-License-Identifier: Apache-2.0
// A program with much memory: several blocks of it, each written by the GPU, stepped through by kernels, checked by
// sums at every round and word by word at the end. A part of it never changes (weights), a part is never touched again
// (a preallocation). The digest depends on the options alone. With --allocator vmm the blocks are mapped by the program
// itself, two handles next to each other, and with --churn 1 move to other addresses now and then (--pause-us N: after
// they have been freed for so long). With --allocator
// managed they are managed memory, and with --watch 1 the program says how often its first block has been asked
// to leave the GPU, and to come back. --ballast-kib N: beside them, so much that is uploaded once, of which no two
// words are alike, in --ballast-pieces N allocations. --export 1: at the end the blocks can be opened by other
// processes. --bare-children 1: after each round a child that no handler of fork knows of ends by exit(). --fill-kib N:
// it allocates pieces of this size at the beginning until one is refused, says how much it had, and frees them.
// --close-mover 1: after each round it closes its connection to the node's mover, as a program that closes all its
// descriptors does. --file-to-mover 1: it sends a file there instead, as no library does.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

struct BlockOfMemory {
  CUdeviceptr data = 0;
  std::vector<CUmemGenericAllocationHandle> handles;  // with --allocator vmm
  std::uint64_t count = 0;                            // words
  std::uint32_t value = 0;
  bool changes = true;
};

// Looks where a block was last asked to be.
class Watcher {
 public:
  Watcher(const Api& api, CUdeviceptr block, std::size_t bytes) {
    thread_ = std::thread([this, &api, block, bytes] {
      for (int last = kDeviceInvalid; !stopping_; ::usleep(200)) {
        int place = kDeviceInvalid;
        GPUMUX_CALL(api.cuMemRangeGetAttribute(&place, sizeof place, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                               block, bytes));
        if (place == last) continue;
        if (place == kDeviceCpu) ++left_;
        if (place >= 0) ++came_back_;
        last = place;
        say("left=%d came_back=%d", left_, came_back_);
      }
    });
  }
  void stop() {
    stopping_ = true;
    thread_.join();
    say("left=%d came_back=%d", left_, came_back_);
  }

 private:
  std::atomic<bool> stopping_{false};
  int left_ = 0;
  int came_back_ = 0;
  std::thread thread_;
};

class Large {
 public:
  Large(const Api& api, const Options& options) : api_(api), options_(options), kernels_(load_kernels(api)) {
    GPUMUX_CALL(api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&sum_, 8));
    const std::uint64_t blocks = options.number("blocks");
    for (std::uint64_t i = 0; i < blocks; ++i) allocate(i);
    upload_ballast(options_.number("ballast-kib") * 256);
    std::size_t free = 0;
    std::size_t total = 0;
    GPUMUX_CALL(api_.cuMemGetInfo_v2(&free, &total));
    say("memory total=%zu free=%zu", total, free);
    if (options_.number("fill-kib") != 0) fill_gpu(options_.number("fill-kib") << 10);
    if (options_.flag("watch"))
      watcher_ = std::make_unique<Watcher>(api_, blocks_.front().data, blocks_.front().count * 4);
  }

  // Each piece must take as much of what is called free as it has.
  void fill_gpu(std::size_t piece) {
    std::vector<CUdeviceptr> pieces;
    std::size_t free = 0;
    std::size_t before = 0;
    std::size_t total = 0;
    GPUMUX_CALL(api_.cuMemGetInfo_v2(&before, &total));
    for (CUdeviceptr data = 0; api_.cuMemAlloc_v2(&data, piece) == CUDA_SUCCESS; before = free) {
      pieces.push_back(data);
      GPUMUX_CALL(api_.cuMemGetInfo_v2(&free, &total));
      if (free + piece > before && free != 0) wrong("what is called free falls by less than what was allocated");
    }
    say("filled bytes=%zu free=%zu", pieces.size() * piece, before);
    for (const CUdeviceptr data : pieces) GPUMUX_CALL(api_.cuMemFree_v2(data));
  }

  // _Fork calls no handlers of pthread_atfork. The child runs its copy of this process's handlers of exit().
  void end_bare_child() {
    const pid_t child = ::_Fork();
    if (child == 0) std::exit(0);
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0) wrong("the child does not end well");
  }

  void round(std::uint64_t number) {
    for (BlockOfMemory& block : blocks_) {
      if (!block.changes) continue;
      launch(api_, kernels_.increment, stream_, false, block.data, block.count);
      ++block.value;
    }
    if (options_.number("step-us") != 0)
      launch(api_, kernels_.spin, stream_, false, std::uint64_t{options_.number("step-us") * 1000});
    if (options_.flag("churn")) {
      // Allocations come and go next to those that stay. Without a lease the program gets them without memory.
      const std::size_t i = number % blocks_.size();
      check_sum(blocks_[i]);
      if (is_vmm() && number % 2 == 0) {
        move(blocks_[i]);
        return check_sum(blocks_[i]);
      }
      release(blocks_[i]);
      if (options_.number("pause-us") != 0) {
        GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
        ::usleep(static_cast<useconds_t>(options_.number("pause-us")));
      }
      fill(blocks_[i], static_cast<std::uint32_t>(1000 + number));
    }
    check_sum(blocks_[number % blocks_.size()]);
    if (options_.flag("bare-children")) end_bare_child();
    if (options_.flag("close-mover")) spoil_mover([](int fd) { return ::close(fd) == 0; });
    if (options_.flag("file-to-mover")) spoil_mover(send_file);
  }

  std::uint64_t finish() {
    std::uint64_t digest = 0;
    if (watcher_ != nullptr) watcher_->stop();
    std::vector<std::uint32_t> words;
    digest = check_ballast(digest);
    for (BlockOfMemory& block : blocks_) {
      check_sum(block);
      CUipcMemHandle handle{};
      if (options_.flag("export")) GPUMUX_CALL(api_.cuIpcGetMemHandle(&handle, block.data));
      words.resize(block.count);
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(words.data(), block.data, block.count * 4));
      for (std::uint64_t i = 0; i < block.count; ++i) {
        if (words[i] != block.value) wrong("word " + std::to_string(i) + " is " + std::to_string(words[i]));
      }
      digest = digest * 31 + hash(words.data(), 4096, block.value);
      release(block);
    }
    return digest;
  }

 private:
  // Words that differ from each other: nothing of them need not be copied.
  void upload_ballast(std::uint64_t count) {
    if (count == 0) return;
    std::uint32_t word = 1;
    for (std::uint64_t i = 0; i < count; ++i) ballast_.push_back(word = word * 1664525 + 1013904223);
    ballast_data_.resize(options_.number("ballast-pieces"));
    for (std::size_t i = 0; i < ballast_data_.size(); ++i) {
      GPUMUX_CALL(api_.cuMemAlloc_v2(&ballast_data_[i], piece_words() * 4));
      GPUMUX_CALL(api_.cuMemcpyHtoD_v2(ballast_data_[i], ballast_.data() + i * piece_words(), piece_words() * 4));
    }
  }
  std::size_t piece_words() const { return ballast_.size() / ballast_data_.size(); }
  std::uint64_t check_ballast(std::uint64_t digest) {
    if (ballast_.empty()) return digest;
    std::vector<std::uint32_t> words(ballast_.size());
    for (std::size_t i = 0; i < ballast_data_.size(); ++i) {
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(words.data() + i * piece_words(), ballast_data_[i], piece_words() * 4));
      GPUMUX_CALL(api_.cuMemFree_v2(ballast_data_[i]));
    }
    if (words != ballast_) wrong("the ballast is not what it was");
    return hash(words.data(), words.size() * 4, digest);
  }

  void allocate(std::uint64_t number) {
    BlockOfMemory block;
    block.count = options_.number("block-kib") * 256;
    block.changes = number % 3 != 2;
    fill(block, static_cast<std::uint32_t>(7 * number + 1));
    blocks_.push_back(block);
  }

  void fill(BlockOfMemory& block, std::uint32_t value) {
    block.value = value;
    if (is_vmm()) {
      create(block);
      map(block);
    } else if (is_async()) {
      GPUMUX_CALL(api_.cuMemAllocAsync(&block.data, block.count * 4, stream_));
    } else if (options_.text("allocator") == "managed") {
      GPUMUX_CALL(api_.cuMemAllocManaged(&block.data, block.count * 4, CU_MEM_ATTACH_GLOBAL));
    } else {
      GPUMUX_CALL(api_.cuMemAlloc_v2(&block.data, block.count * 4));
    }
    launch(api_, kernels_.fill, stream_, false, block.data, block.count, value);
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
  }

  // A pair of sockets that another process has made, with whole messages: nothing else that it has is that.
  template <class Spoil>
  static void spoil_mover(Spoil spoil) {
    for (int fd = 0; fd < 1024; ++fd) {
      int type = 0;
      sockaddr_un name{};
      ucred peer{};
      socklen_t type_bytes = sizeof type;
      socklen_t name_bytes = sizeof name;
      socklen_t peer_bytes = sizeof peer;
      if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0 || type != SOCK_SEQPACKET ||
          ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0 || peer.pid == ::getpid() ||
          ::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &name_bytes) != 0 ||
          name_bytes > sizeof name.sun_family)
        continue;
      if (spoil(fd)) ++spoiled_;
    }
    say("spoiled=%d", spoiled_);
  }

  static bool send_file(int socket) {
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof file)]{};
    char byte = 0;
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(item), &file, sizeof file);
    const bool was_sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
    ::close(file);
    return was_sent;
  }

  // From the device's pool, in the order of the stream.
  bool is_async() const { return options_.text("allocator") == "async"; }

  // ---- memory that the program maps by itself

  static constexpr std::size_t kHandles = 2;

  bool is_vmm() const { return options_.text("allocator") == "vmm"; }
  static std::size_t handle_bytes(const BlockOfMemory& block) { return block.count * 4 / kHandles; }

  void create(BlockOfMemory& block) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, options_.list("gpu").front()};
    block.handles.resize(kHandles);
    for (CUmemGenericAllocationHandle& handle : block.handles)
      GPUMUX_CALL(api_.cuMemCreate(&handle, handle_bytes(block), &properties, 0));
  }
  void map(BlockOfMemory& block) {
    const std::size_t bytes = handle_bytes(block);
    GPUMUX_CALL(api_.cuMemAddressReserve(&block.data, kHandles * bytes, 0, 0, 0));
    for (std::size_t i = 0; i < kHandles; ++i)
      GPUMUX_CALL(api_.cuMemMap(block.data + i * bytes, bytes, 0, block.handles[i], 0));
    const CUmemAccessDesc rights{{CU_MEM_LOCATION_TYPE_DEVICE, options_.list("gpu").front()},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GPUMUX_CALL(api_.cuMemSetAccess(block.data, kHandles * bytes, &rights, 1));
  }
  void unmap(BlockOfMemory& block) {
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    GPUMUX_CALL(api_.cuMemUnmap(block.data, kHandles * handle_bytes(block)));
    GPUMUX_CALL(api_.cuMemAddressFree(block.data, kHandles * handle_bytes(block)));
  }
  void move(BlockOfMemory& block) {
    unmap(block);
    map(block);
  }
  void release(BlockOfMemory& block) {
    if (is_async()) return GPUMUX_CALL(api_.cuMemFreeAsync(block.data, stream_));
    if (!is_vmm()) return GPUMUX_CALL(api_.cuMemFree_v2(block.data));
    unmap(block);
    for (const CUmemGenericAllocationHandle handle : block.handles) GPUMUX_CALL(api_.cuMemRelease(handle));
  }

  void check_sum(const BlockOfMemory& block) {
    launch(api_, kernels_.checksum, stream_, false, block.data, block.count, sum_);
    std::uint64_t sum = 0;
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    GPUMUX_CALL(api_.cuMemcpyDtoH_v2(&sum, sum_, 8));
    if (sum != checksum_of(block.value, block.count)) wrong("a checksum of " + std::to_string(block.value));
  }

  static inline int spoiled_ = 0;
  const Api& api_;
  const Options& options_;
  Kernels kernels_;
  CUstream stream_ = nullptr;
  CUdeviceptr sum_ = 0;
  std::vector<CUdeviceptr> ballast_data_;
  std::vector<std::uint32_t> ballast_;
  std::vector<BlockOfMemory> blocks_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv,
                        {{"gpu", "0"},
                         {"blocks", "8"},
                         {"block-kib", "8192"},
                         {"rounds", "20"},
                         {"step-us", "0"},
                         {"churn", "0"},
                         {"pause-us", "0"},
                         {"export", "0"},
                         {"ballast-kib", "0"},
                         {"ballast-pieces", "1"},
                         {"allocator", "malloc"},
                         {"watch", "0"},
                         {"bare-children", "0"},
                         {"fill-kib", "0"},
                         {"close-mover", "0"},
                         {"file-to-mover", "0"},
                         {"hold", "0"}});
  const int code = run_in_rounds<Large>(options);
  if (options.number("hold") != 0) ::sleep(static_cast<unsigned>(options.number("hold")));
  return code;
}

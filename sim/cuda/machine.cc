// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/machine.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "os/system_clock.h"

namespace gpumux::sim {
namespace {

constexpr std::uint64_t kDiedTimeMask = (std::uint64_t{1} << 48) - 1;

std::uint64_t microseconds(base::TimePoint time) {
  return static_cast<std::uint64_t>(time.time_since_epoch().count()) / 1000;
}

// Random bytes that the kernel gives each program it starts. They tell a process from itself before an exec, and are
// the same for every copy of this code in the process.
std::uint64_t own_image() {
  std::uint64_t image = 0;
  const auto* random = reinterpret_cast<const void*>(::getauxval(AT_RANDOM));
  if (random != nullptr) std::memcpy(&image, random, sizeof image);
  return image;
}

// The lock of a process's slot: one byte of a file.
struct flock byte_of(std::uint32_t slot, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = slot;
  range.l_len = 1;
  return range;
}

std::string read_file(const std::string& path) {
  std::string text;
  os::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[4096];
  ssize_t got = 0;
  while (file && (got = ::read(file.get(), buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

bool is_of_this_version(const std::string& path) {
  const os::FileDescriptor state(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (::fstat(state.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) != sizeof(MachineState))
    return false;
  struct {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t bytes_of_state;
  } begin{};
  return ::pread(state.get(), &begin, sizeof begin, 0) == sizeof begin && begin.magic == kMachineMagic &&
         begin.version == kMachineVersion && begin.bytes_of_state == sizeof(MachineState);
}

// `state`: the machine's, open to be read. Every process on a machine, of any version, has it mapped to be written. The
// kernel gives a lease to read only for a file that no process has open or mapped so. A process that opens it so waits
// for the lease's end, which comes with `state`.
bool take_unused(const os::FileDescriptor& state) {
  // The signal that tells the holder of such a process: by default it does nothing.
  return ::fcntl(state.get(), F_SETSIG, SIGURG) == 0 && ::fcntl(state.get(), F_SETLEASE, F_RDLCK) == 0;
}

// Spreads a seed over all bits (the finalizer of a well-known 64-bit mixer).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

base::TimePoint now() { return os::now(); }

void sleep_until(base::TimePoint time) {
  const auto nanoseconds = time.time_since_epoch().count();
  timespec until{};
  until.tv_sec = nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

base::Result<Machine*> Machine::get() {
  static auto* mutex = new std::mutex;
  static Machine* machine = nullptr;
  const std::lock_guard lock(*mutex);
  if (machine == nullptr) {
    auto opened = open(machine_directory());
    if (!opened) return opened;
    machine = *opened;
  }
  return machine;
}

base::Result<Machine*> Machine::open(const std::string& directory) {
  auto* machine = new Machine;
  if (auto mapped = machine->map(directory); !mapped) {
    delete machine;
    return tl::unexpected(std::move(mapped).error());
  }
  // For ever, see the header.
  static auto* mutex = new std::mutex;
  static auto* opened = new std::vector<Machine*>;
  const std::lock_guard lock(*mutex);
  opened->push_back(machine);
  return machine;
}

base::Status Machine::map(const std::string& directory) {
  directory_ = directory;
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail_errno(errno, "cannot create " + directory);
  struct stat status {};
  if (::lstat(directory.c_str(), &status) != 0) return base::fail_errno(errno, "cannot look at " + directory);
  if (!S_ISDIR(status.st_mode))
    return base::fail(base::Code::kInvalid, directory + " is not a directory; name another in GPUMUX_SIM_DIR");

  const std::string path = state_path();
  if (!is_of_this_version(path)) {
    // Only one process creates. The lock goes with the descriptor, so a creator that dies leaves nothing to wait for.
    os::FileDescriptor lock(::open((directory + "/creating").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock) return base::fail_errno(errno, "cannot write in " + directory);
    while (::flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
    if (!is_of_this_version(path)) {
      const os::FileDescriptor old(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (old && !take_unused(old)) {
        return base::fail(base::Code::kInvalid, path +
                                                    " was made by another version of gpumux, and processes use it; "
                                                    "end them, or remove " +
                                                    directory);
      }
      GPUMUX_TRY(create_state(directory, path));
    }
  }
  const os::FileDescriptor state(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!state || ::fstat(state.get(), &status) != 0) return base::fail_errno(errno, "cannot open " + path);
  state_device_ = status.st_dev;
  state_inode_ = status.st_ino;
  void* address = ::mmap(nullptr, sizeof(MachineState), PROT_READ | PROT_WRITE, MAP_SHARED, state.get(), 0);
  if (address == MAP_FAILED) return base::fail_errno(errno, "cannot map " + path);
  state_ = static_cast<MachineState*>(address);
  liveness_fd_ = ::open((directory + "/processes").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (liveness_fd_ < 0) {
    const int reason = errno;
    ::munmap(address, sizeof(MachineState));
    return base::fail_errno(reason, "cannot open " + directory + "/processes");
  }
  image_ = own_image();
  return {};
}

// Fills a file with another name and renames it, so that machine.state is always whole.
base::Status Machine::create_state(const std::string& directory, const std::string& path) {
  Settings settings;
  GPUMUX_TRY(apply_lines(read_file(directory + "/machine.conf"), settings));
  GPUMUX_TRY(apply_environment(settings));
  const std::string unfinished = directory + "/machine.state.new";
  os::FileDescriptor file(::open(unfinished.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return base::fail_errno(errno, "cannot create " + unfinished);
  if (::ftruncate(file.get(), sizeof(MachineState)) != 0) return base::fail_errno(errno, "cannot size " + unfinished);
  void* address = ::mmap(nullptr, sizeof(MachineState), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return base::fail_errno(errno, "cannot map " + unfinished);
  auto* fresh = static_cast<MachineState*>(address);
  fresh->magic = kMachineMagic;
  fresh->version = kMachineVersion;
  fresh->bytes_of_state = sizeof(MachineState);
  if (::getrandom(&fresh->machine_id, sizeof fresh->machine_id, 0) != sizeof fresh->machine_id) {
    fresh->machine_id = mix(microseconds(now()));
  }
  const std::uint64_t seed = settings.seed != 0 ? settings.seed : fresh->machine_id;
  for (std::uint32_t gpu = 0; gpu < kMaxGpus; ++gpu) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint64_t word = mix(mix(seed) + std::uint64_t{2} * gpu + half);
      std::memcpy(&fresh->uuids[gpu][std::size_t{8} * half], &word, sizeof word);
    }
  }
  fresh->settings = settings;
  ::munmap(address, sizeof(MachineState));
  if (::rename(unfinished.c_str(), path.c_str()) != 0) return base::fail_errno(errno, "cannot rename " + unfinished);
  return {};
}

base::GpuUuid Machine::uuid(std::uint32_t gpu) const {
  base::GpuUuid uuid;
  std::copy_n(state_->uuids[gpu], uuid.bytes.size(), uuid.bytes.begin());
  return uuid;
}

bool Machine::is_state_file(int fd) const {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_dev == state_device_ && status.st_ino == state_inode_;
}

bool Machine::lock_byte(std::uint32_t slot, bool lock) {
  struct flock range = byte_of(slot, lock ? F_WRLCK : F_UNLCK);
  return ::fcntl(liveness_fd_, F_SETLK, &range) == 0;
}

bool Machine::alive(std::uint32_t slot) {
  const Slot& other = state_->slots[slot];
  if (slot == slot_) return true;
  // Another copy of this code in this process (that of libnvidia-ml next to libcuda's) does not see its own process's
  // lock.
  if (other.image.load() == image_ && other.pid.load() == ::getpid()) return true;
  struct flock range = byte_of(slot, F_WRLCK);
  return ::fcntl(liveness_fd_, F_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

bool Machine::lives(std::uint64_t process) {
  const auto slot = static_cast<std::uint32_t>(process & 0xffff) - 1;
  return slot < kMaxProcesses && alive(slot) && identity(slot) == process;
}

std::vector<std::uint32_t> Machine::clients(std::uint64_t server) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t slot = 0; slot < slots_used(); ++slot) {
    if (state_->slots[slot].server.load() == server && identity(slot) != server && alive(slot)) found.push_back(slot);
  }
  return found;
}

// A process writes down the number that it has in its own pid namespace. The kernel says which number the holder of a
// lock has in ours.
std::int64_t Machine::process_of(std::uint32_t slot) {
  struct flock range = byte_of(slot, F_WRLCK);
  const bool is_held = ::fcntl(liveness_fd_, F_GETLK, &range) == 0 && range.l_type != F_UNLCK;
  return is_held && range.l_pid > 0 ? range.l_pid : state_->slots[slot].pid.load();
}

bool Machine::counts(std::uint32_t slot) {
  Slot& other = state_->slots[slot];
  const std::uint64_t tag = other.generation.load() << 48;
  if (alive(slot)) return true;
  std::uint64_t died = other.died.load();
  const std::uint64_t time = microseconds(now());
  if ((died & ~kDiedTimeMask) != tag || (died & kDiedTimeMask) == 0) {
    other.died.compare_exchange_strong(died, tag | (time & kDiedTimeMask));
    death_just_noticed_.store(true);
    return settings().death_nanoseconds != 0;
  }
  return time < (died & kDiedTimeMask) + settings().death_nanoseconds / 1000;
}

base::Status Machine::join() {
  const std::lock_guard lock(reserve_mutex_);
  if (slot_ != kNoSlot) return {};
  // It may be long since any process has looked at the machine. A process that has died since then gets the whole delay
  // from now on. Wait for that here, so that a program that starts after another one's death finds the memory free. (A
  // real driver takes longer than this to initialise.)
  death_just_noticed_.store(false);
  for (std::uint32_t slot = 0; slot < slots_used(); ++slot) {
    if (state_->slots[slot].pid.load() != 0) counts(slot);
  }
  constexpr std::uint64_t kLongestWait = 100'000'000;
  if (death_just_noticed_.load())
    sleep_until(now() + base::Duration(std::min(settings().death_nanoseconds, kLongestWait)));
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    if (take(slot)) return {};
  }
  return base::fail(base::Code::kExhausted,
                    "the simulated machine already has " + std::to_string(kMaxProcesses) + " processes");
}

bool Machine::take(std::uint32_t slot) {
  Slot& mine = state_->slots[slot];
  if (!lock_byte(slot, true)) return false;
  // The lock is ours, so the slot's last process is dead; but its memory may not be back yet.
  const std::uint64_t died = mine.died.load();
  const bool was_used = mine.pid.load() != 0;
  const bool noticed = (died & ~kDiedTimeMask) == mine.generation.load() << 48 && (died & kDiedTimeMask) != 0;
  const std::uint64_t back = (died & kDiedTimeMask) + settings().death_nanoseconds / 1000;
  if (was_used && (!noticed || microseconds(now()) < back)) {
    lock_byte(slot, false);
    return false;
  }
  mine.generation.fetch_add(1);
  mine.died.store((mine.generation.load() << 48));
  for (SlotGpu& gpu : mine.gpu) {
    gpu.used.store(0);
    gpu.pending.store(0);
    gpu.contexts.store(0);
    gpu.transfers[kHostToDevice].store(0);
    gpu.transfers[kDeviceToHost].store(0);
    gpu.wait_ticket.store(0);
    gpu.running.store(0);
    gpu.sharing.store(0);
    gpu.fault.store(0);
    for (BusyBucket& bucket : gpu.busy) bucket.nanoseconds.store(0);
  }
  for (std::uint32_t i = 0; i < state_->blocks_used.load(); ++i) {
    state_->blocks[i].references[slot / 64].fetch_and(~(std::uint64_t{1} << (slot % 64)));
  }
  mine.server.store(0);
  mine.image.store(image_);
  mine.pid.store(::getpid());
  std::uint32_t known = state_->slots_used.load();
  while (known <= slot && !state_->slots_used.compare_exchange_weak(known, slot + 1)) {
  }
  slot_ = slot;
  return true;
}

bool Machine::referred_to(const SharedBlock& block) {
  for (std::uint32_t word = 0; word < kMaxProcesses / 64; ++word) {
    for (std::uint64_t bits = block.references[word].load(); bits != 0; bits &= bits - 1) {
      if (counts(word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits)))) return true;
    }
  }
  return false;
}

bool Machine::block_counts(const SharedBlock& block) { return block.inode.load() != 0 && referred_to(block); }

std::uint64_t Machine::used(std::uint32_t gpu, std::uint64_t* pending) {
  std::uint64_t sum = 0;
  for (std::uint32_t slot = 0; slot < slots_used(); ++slot) {
    const SlotGpu& there = state_->slots[slot].gpu[gpu];
    const std::uint64_t here = there.used.load();
    const std::uint64_t asked = slot == slot_ ? 0 : there.pending.load();
    if ((here == 0 && asked == 0) || !counts(slot)) continue;
    sum += here;
    if (pending != nullptr) *pending += asked;
  }
  for (std::uint32_t i = 0; i < state_->blocks_used.load(); ++i) {
    const SharedBlock& block = state_->blocks[i];
    if (block.gpu.load() == gpu && block_counts(block)) sum += block.bytes.load();
  }
  return sum;
}

// Two processes that ask at once must not both get the last gigabyte, and there is no lock. Each process first
// announces its wish (`pending`). Then it looks: its wish is granted if everything in use, everything announced and the
// wish itself fit. If two wishes do not fit together, at least one process sees the other's announcement. If both see
// it, both step back for a moment and try again, lower slots sooner.
bool Machine::reserve(std::uint32_t gpu, std::uint64_t bytes) {
  const std::lock_guard lock(reserve_mutex_);
  SlotGpu& mine = own().gpu[gpu];
  const std::uint64_t capacity = settings().usable_bytes();
  if (bytes > capacity) return false;
  constexpr int kTries = 64;
  bool waited_for_the_dead = false;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    death_just_noticed_.store(false);
    std::uint64_t pending = 0;
    mine.pending.store(bytes);
    const std::uint64_t in_use = used(gpu, &pending);
    if (in_use + pending + bytes <= capacity) {
      mine.used.fetch_add(bytes);
      mine.pending.store(0);
      return true;
    }
    mine.pending.store(0);
    if (in_use + bytes > capacity) {
      // A death that no process had looked at may be long ago: then its memory would have been back by now.
      if (!death_just_noticed_.load() || waited_for_the_dead) return false;
      waited_for_the_dead = true;
      sleep_until(now() + base::Duration(settings().death_nanoseconds));
    } else {
      sleep_until(now() + base::Duration(20'000 + 5'000 * (slot_ % 16)));
    }
  }
  return false;
}

void Machine::release(std::uint32_t gpu, std::uint64_t bytes) { own().gpu[gpu].used.fetch_sub(bytes); }

MemoryInfo Machine::memory(std::uint32_t gpu) {
  const std::lock_guard lock(reserve_mutex_);
  const std::uint64_t total = settings().usable_bytes();
  return {total, std::min(used(gpu, nullptr), total), settings().memory_bytes - total};
}

SharedBlock* Machine::find_block(std::uint64_t inode) {
  for (std::uint32_t i = 0; i < state_->blocks_used.load(); ++i) {
    if (state_->blocks[i].inode.load() == inode) return &state_->blocks[i];
  }
  return nullptr;
}

// An entry is free when no process that counts refers to it and no living process is filling it in.
SharedBlock* Machine::claim_block() {
  const std::uint64_t me = identity(slot_);
  for (std::uint32_t i = 0; i < kMaxSharedBlocks; ++i) {
    SharedBlock& block = state_->blocks[i];
    std::uint64_t claim = block.claim.load();
    if (block_counts(block)) continue;
    if (claim != 0 && lives(claim)) continue;
    if (!block.claim.compare_exchange_strong(claim, me)) continue;
    // Another process may have marked the block as its own between the look and the claim. It looks at the inode after
    // marking (`share`). Here the inode is taken away before the look at the marks: one of the two sees the other.
    const std::uint64_t inode = block.inode.exchange(0);
    if (referred_to(block)) {
      block.inode.store(inode);
      block.claim.store(0);
      continue;
    }
    std::uint32_t known = state_->blocks_used.load();
    while (known <= i && !state_->blocks_used.compare_exchange_weak(known, i + 1)) {
    }
    return &block;
  }
  return nullptr;
}

bool Machine::share(std::uint64_t inode, std::uint32_t gpu, std::uint64_t bytes, bool own_charge) {
  const std::uint64_t bit = std::uint64_t{1} << (slot_ % 64);
  {
    const std::lock_guard lock(reserve_mutex_);
    if (const auto held = shares_.find(inode); held != shares_.end()) {
      ++held->second;
      return true;
    }
    SharedBlock* block = find_block(inode);
    if (block != nullptr && block_counts(*block)) {
      block->references[slot_ / 64].fetch_or(bit);
      // Between the look and the mark the last other holder may have let go and a third process taken the entry.
      if (block->inode.load() == inode) {
        shares_[inode] = 1;
        return true;
      }
      block->references[slot_ / 64].fetch_and(~bit);
    }
  }
  if (!own_charge && !reserve(gpu, bytes)) return false;
  const std::lock_guard lock(reserve_mutex_);
  SharedBlock* block = claim_block();
  if (block == nullptr) {
    if (!own_charge) release(gpu, bytes);
    return false;
  }
  for (auto& word : block->references) word.store(0);
  block->bytes.store(bytes);
  block->gpu.store(gpu);
  block->references[slot_ / 64].store(bit);
  block->inode.store(inode);
  block->claim.store(0);
  // First the shared charge, then the own one away: a death in between counts the memory twice for a moment, never not
  // at all.
  release(gpu, bytes);
  shares_[inode] = 1;
  return true;
}

void Machine::unshare(std::uint64_t inode) {
  const std::lock_guard lock(reserve_mutex_);
  const auto held = shares_.find(inode);
  if (held == shares_.end() || --held->second != 0) return;
  shares_.erase(held);
  SharedBlock* block = find_block(inode);
  if (block != nullptr) block->references[slot_ / 64].fetch_and(~(std::uint64_t{1} << (slot_ % 64)));
}

std::vector<ProcessView> Machine::processes(std::uint32_t gpu) {
  const std::lock_guard lock(reserve_mutex_);
  std::vector<ProcessView> found;
  for (std::uint32_t slot = 0; slot < slots_used(); ++slot) {
    const Slot& there = state_->slots[slot];
    const std::uint64_t server = there.server.load();
    bool has_context = there.gpu[gpu].contexts.load() != 0;
    if (server == identity(slot)) {
      for (const std::uint32_t client : clients(server))
        has_context = has_context || state_->slots[client].gpu[gpu].contexts.load() != 0;
    }
    if (!has_context || !alive(slot)) continue;
    ProcessView view{process_of(slot), there.gpu[gpu].used.load(), server != 0 && server != identity(slot)};
    for (std::uint32_t i = 0; i < state_->blocks_used.load(); ++i) {
      const SharedBlock& block = state_->blocks[i];
      const bool refers = (block.references[slot / 64].load() >> (slot % 64) & 1) != 0;
      if (refers && block.inode.load() != 0 && block.gpu.load() == gpu) view.used += block.bytes.load();
    }
    found.push_back(view);
  }
  return found;
}

void Machine::add_busy(std::uint32_t gpu, base::TimePoint from, base::TimePoint to) {
  auto start = static_cast<std::uint64_t>(from.time_since_epoch().count());
  const auto end = static_cast<std::uint64_t>(to.time_since_epoch().count());
  if (end <= start) return;
  // Time before the ring's oldest bucket is of no use.
  start = std::max(start, end - std::min(end, (kBusyBuckets - 1) * kBusyBucketNanoseconds));
  while (start < end) {
    const std::uint64_t number = start / kBusyBucketNanoseconds;
    const std::uint64_t until = std::min(end, (number + 1) * kBusyBucketNanoseconds);
    BusyBucket& bucket = own().gpu[gpu].busy[number % kBusyBuckets];
    if (bucket.number.load() != number) {
      bucket.nanoseconds.store(0);
      bucket.number.store(number);
    }
    bucket.nanoseconds.fetch_add(until - start);
    start = until;
  }
}

std::uint32_t Machine::utilization(std::uint32_t gpu) {
  constexpr std::uint64_t kWindow = 100'000'000;
  const auto end = static_cast<std::uint64_t>(now().time_since_epoch().count());
  const std::uint64_t first = (end - kWindow) / kBusyBucketNanoseconds + 1;
  std::uint64_t busy = 0;
  for (std::uint32_t slot = 0; slot < slots_used(); ++slot) {
    for (const BusyBucket& bucket : state_->slots[slot].gpu[gpu].busy) {
      const std::uint64_t number = bucket.number.load();
      if (number >= first && number <= end / kBusyBucketNanoseconds) busy += bucket.nanoseconds.load();
    }
  }
  const std::uint64_t covered = end - first * kBusyBucketNanoseconds;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(100, covered == 0 ? 0 : busy * 100 / covered));
}

}  // namespace gpumux::sim

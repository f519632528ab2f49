// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/physical_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>

namespace gpumux::sim {
namespace {

// Offsets in the arena are never used twice: 2^60 bytes last for ever, and freed ones cost nothing.
constexpr off_t kArenaBytes = off_t{1} << 60;

std::atomic<int> arena_fd{-1};
std::atomic<std::uint64_t> arena_end{0};
std::atomic<std::uint64_t> next_id{1};

int arena() {
  int fd = arena_fd.load();
  if (fd >= 0) return fd;
  fd = ::memfd_create("gpumux-sim:arena", MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (::ftruncate(fd, kArenaBytes) != 0) {
    ::close(fd);
    return -1;
  }
  int none = -1;
  if (!arena_fd.compare_exchange_strong(none, fd)) {
    ::close(fd);
    return none;
  }
  return fd;
}

// The name of a file with one exported piece says what it is, so that an importer needs nothing but the descriptor.
constexpr char kNameFormat[] = "gpumux-sim:%016" PRIx64 ":gpu%" PRIu32;

std::uint64_t inode_of(int fd, std::uint64_t* bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return 0;
  *bytes = static_cast<std::uint64_t>(status.st_size);
  return status.st_ino;
}

}  // namespace

PhysicalMemory::PhysicalMemory(Machine& machine, std::uint32_t gpu, std::uint64_t bytes)
    : machine_(machine), gpu_(gpu), bytes_(bytes), id_(next_id.fetch_add(1)) {}

std::shared_ptr<PhysicalMemory> PhysicalMemory::create(Machine& machine, std::uint32_t gpu, std::uint64_t bytes) {
  const int fd = arena();
  if (fd < 0) return nullptr;
  if (gpu != kHostMemory && !machine.reserve(gpu, bytes)) return nullptr;
  std::shared_ptr<PhysicalMemory> memory(new PhysicalMemory(machine, gpu, bytes));
  memory->fd_ = fd;
  memory->offset_ = arena_end.fetch_add(bytes);
  return memory;
}

std::shared_ptr<PhysicalMemory> PhysicalMemory::import(Machine& machine, int fd, bool* foreign) {
  *foreign = true;
  char link[64];
  char name[128] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (::readlink(link, name, sizeof name - 1) < 0) return nullptr;
  std::uint64_t machine_id = 0;
  std::uint32_t gpu = 0;
  if (std::sscanf(name, "/memfd:gpumux-sim:%" SCNx64 ":gpu%" SCNu32, &machine_id, &gpu) != 2) return nullptr;
  if (machine_id != machine.id() || gpu >= machine.settings().gpus) return nullptr;
  std::uint64_t bytes = 0;
  const std::uint64_t inode = inode_of(fd, &bytes);
  os::FileDescriptor own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (inode == 0 || bytes == 0 || !own) return nullptr;
  *foreign = false;
  if (!machine.share(inode, gpu, bytes, false)) return nullptr;
  std::shared_ptr<PhysicalMemory> memory(new PhysicalMemory(machine, gpu, bytes));
  memory->fd_ = own.get();
  memory->own_file_ = std::move(own);
  memory->inode_ = inode;
  return memory;
}

bool PhysicalMemory::give_own_file() {
  char name[64];
  std::snprintf(name, sizeof name, kNameFormat, machine_.id(), gpu_);
  os::FileDescriptor file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes_)) != 0) return false;
  // A process that gets it may rely on its size.
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK);
  // Copies only what was ever written: holes stay holes.
  auto at = static_cast<off_t>(offset_);
  const auto end = static_cast<off_t>(offset_ + bytes_);
  while (at < end) {
    const off_t data = ::lseek(fd_, at, SEEK_DATA);
    if (data < 0 || data >= end) break;
    off_t hole = ::lseek(fd_, data, SEEK_HOLE);
    if (hole < 0 || hole > end) hole = end;
    // copy_file_range does not do memory files everywhere; a mapping of each does.
    const auto bytes = static_cast<std::size_t>(hole - data);
    void* from = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, data);
    if (from == MAP_FAILED) return false;
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t written = ::pwrite(file.get(), static_cast<const char*>(from) + done, bytes - done,
                                       data - static_cast<off_t>(offset_) + static_cast<off_t>(done));
      if (written <= 0) break;
      done += static_cast<std::size_t>(written);
    }
    ::munmap(from, bytes);
    if (done < bytes) return false;
    at = hole;
  }
  std::uint64_t bytes = 0;
  const std::uint64_t inode = inode_of(file.get(), &bytes);
  if (inode == 0 || (gpu_ != kHostMemory && !machine_.share(inode, gpu_, bytes_, true))) return false;
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_), static_cast<off_t>(bytes_));
  fd_ = file.get();
  offset_ = 0;
  own_file_ = std::move(file);
  inode_ = inode;
  return true;
}

PhysicalMemory::~PhysicalMemory() {
  if (own_file_) {
    if (gpu_ != kHostMemory) machine_.unshare(inode_);
    return;
  }
  if (fd_ < 0) return;
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_), static_cast<off_t>(bytes_));
  if (gpu_ != kHostMemory) machine_.release(gpu_, bytes_);
}

void PhysicalMemory::close_arena() {
  const int fd = arena_fd.exchange(-1);
  if (fd >= 0) ::close(fd);
}

}  // namespace gpumux::sim

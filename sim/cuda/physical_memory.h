// SPDX-License-Identifier: Apache-2.0
// Physical memory: pieces of files in memory. So the same bytes can be mapped at several addresses, moved to others,
// and shared with other processes.
//
// Most pieces lie in one endless sparse file per process (the arena). A file each would need a descriptor each, and
// programs have thousands of allocations but 1024 descriptors. A piece that is exported moves to a file of its own
// first; where it is mapped, the mapping is replaced (see AddressSpace::give_own_file). Memory is charged to its GPU
// from creation to destruction.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/abi.h"
#include "os/file_descriptor.h"
#include "sim/cuda/machine.h"

namespace gpumux::sim {

// Physical memory of no GPU: pages that host and devices share.
inline constexpr std::uint32_t kHostMemory = UINT32_MAX;

class PhysicalMemory {
 public:
  // Null: out of memory.
  static std::shared_ptr<PhysicalMemory> create(Machine& machine, std::uint32_t gpu, std::uint64_t bytes);

  // Memory that another process (or this one) exported, by a descriptor of its file. Null with *foreign set if the
  // descriptor is not memory of this machine. Null without if the GPU has no room left for memory that every other
  // process has let go.
  static std::shared_ptr<PhysicalMemory> import(Machine& machine, int fd, bool* foreign);

  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  std::uint32_t gpu() const { return gpu_; }
  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  std::uint64_t offset() const { return offset_; }
  std::uint64_t id() const { return id_; }  // unique in this process, never used again
  bool has_own_file() const { return static_cast<bool>(own_file_); }

  // As it was made by cuMemCreate; elsewhere nothing is known of that.
  const cuda::CUmemAllocationProp& properties() const { return properties_; }
  void set_properties(const cuda::CUmemAllocationProp& properties) { properties_ = properties; }

  // Moves the bytes to a file of their own and charges them as shared. The caller (AddressSpace) keeps all others from
  // touching them during the move, and replaces the mappings. False: no memory or descriptors.
  bool give_own_file();
  // That file's inode; 0 without an own file.
  std::uint64_t inode() const { return inode_; }

  // A forked child calls it: its parent's memory should not live as long as the child.
  static void close_arena();

 private:
  PhysicalMemory(Machine& machine, std::uint32_t gpu, std::uint64_t bytes);

  Machine& machine_;
  const std::uint32_t gpu_;
  const std::uint64_t bytes_;
  const std::uint64_t id_;
  int fd_ = -1;  // the arena's or own_file_'s
  std::uint64_t offset_ = 0;
  os::FileDescriptor own_file_;
  std::uint64_t inode_ = 0;
  cuda::CUmemAllocationProp properties_{};
};

}  // namespace gpumux::sim

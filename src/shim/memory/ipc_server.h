// SPDX-License-Identifier: Apache-2.0
// Legacy IPC (cuIpcGetMemHandle, cuIpcOpenMemHandle) for memory of the pager's. The driver's own handles do not cover
// mapped memory. So a handle of ours says where to ask: which process, by the name of an abstract unix socket, and
// which allocation. The other process asks there and gets the physical memory's descriptors.
//
//   bytes of a handle   0 magic, 8 name of the socket (16), 24 allocation, 32 offset in its block, 40 bytes
//
// The descriptors are made with the handle, and kept here as long as the allocation lives. A program makes few handles,
// and a process that asks later must not wait for a lease of this one. The memory is pinned from then on. A process
// that asks must belong to the same user, as the kernel says. The driver's handles are open to the same processes.
// Abstract names belong to a network namespace, unlike the socket that the daemon is found by. Containers whose
// processes share memory by legacy IPC share that namespace as well.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/lock.h"
#include "base/result.h"
#include "cuda/abi.h"
#include "os/file_descriptor.h"
#include "os/kept_descriptor.h"
#include "os/thread.h"
#include "pager/pager.h"

namespace gpumux::shim {

struct IpcHandle {
  static constexpr std::uint64_t kMagic = 0x3163706978756d67;  // "gmuxipc1"
  std::uint64_t magic = 0;
  std::array<std::uint8_t, 16> name{};
  std::uint64_t allocation = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t reserved[2] = {};
};
static_assert(sizeof(IpcHandle) == sizeof(cuda::CUipcMemHandle));

// One piece of another process's memory. The descriptors are the receiver's.
struct IpcPiece {
  os::FileDescriptor fd;
  std::uint64_t bytes = 0;
};

class IpcServer {
 public:
  IpcServer() = default;
  IpcServer(const IpcServer&) = delete;
  IpcServer& operator=(const IpcServer&) = delete;

  // Serves these pieces from now on, and says by which handle. `allocation` names them in this process for ever.
  base::Status serve(std::uint64_t allocation, std::vector<pager::ExportedPiece> pieces, std::uint64_t offset,
                     std::uint64_t bytes, IpcHandle* handle);
  // The handle of an allocation that is served; false: it is not.
  bool find(std::uint64_t allocation, std::uint64_t offset, std::uint64_t bytes, IpcHandle* handle);
  // Its memory is freed.
  void forget(std::uint64_t allocation);

  // In a forked child: what was inherited is the parent's.
  void close_after_fork();

  // In the process that opens a handle.
  static base::Result<std::vector<IpcPiece>> ask(const IpcHandle& handle);

 private:
  void run();
  void answer(const os::FileDescriptor& peer);
  base::Status start_locked() GPUMUX_REQUIRES(mutex_);
  base::Status listen();
  IpcHandle handle_of(std::uint64_t allocation, std::uint64_t offset, std::uint64_t bytes) const
      GPUMUX_REQUIRES(mutex_);

  base::Mutex mutex_;
  struct Served {
    os::KeptDescriptor fd;
    std::uint64_t bytes = 0;
  };
  std::map<std::uint64_t, std::vector<Served>> served_ GPUMUX_GUARDED_BY(mutex_);
  bool is_listening_ GPUMUX_GUARDED_BY(mutex_) = false;
  os::KeptDescriptor listening_;         // after the start the thread's own
  std::array<std::uint8_t, 16> name_{};  // made by the start
  os::Thread thread_;                    // for the life of the process
};

}  // namespace gpumux::shim

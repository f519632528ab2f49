// SPDX-License-Identifier: Apache-2.0
// A context: the streams, memory and functions that a program has on one device, and the error that ends it.
//
// Once an operation fails (an illegal access), the context is broken. Queued operations are skipped, and calls return
// that error until the context is destroyed. Thread-safe. Objects of a destroyed context stay until the program lets go
// of them, but do nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/address_space.h"
#include "sim/cuda/channels.h"
#include "sim/cuda/freezer.h"
#include "sim/cuda/host_thread.h"
#include "sim/cuda/stream.h"

namespace gpumux::sim {

class Process;
struct Device;

class Context : public std::enable_shared_from_this<Context> {
 public:
  // Charges the context's own memory. CUDA_ERROR_OUT_OF_MEMORY if the GPU has not that much.
  static cuda::CUresult create(Process& process, Device& device, unsigned flags, std::shared_ptr<Context>* context);
  // Waits for all work and until nothing of the context is frozen, then frees what it owns. The second time does
  // nothing.
  void destroy();

  Process& process() const { return process_; }
  Device& device() const { return device_; }
  std::uint64_t id() const { return id_; }
  unsigned flags() const { return flags_.load(); }
  void set_flags(unsigned flags) { flags_.store(flags); }
  bool destroyed() const { return destroyed_.load(); }

  // The first failure counts: one of its own, or one that the MPS server has brought.
  cuda::CUresult error();
  void fail(cuda::CUresult error);

  const std::shared_ptr<Stream>& legacy_stream() const { return legacy_; }
  // The calling thread's default stream.
  std::shared_ptr<Stream> thread_stream();
  void drop_thread_stream(std::uint64_t thread);
  std::shared_ptr<Stream> create_stream(unsigned flags, int priority);
  void remove_stream(const std::shared_ptr<Stream>& stream);

  // Queues an operation, behind what the default streams' rules say. Waits while the stream's queue is full. The
  // operation's completion.
  std::shared_ptr<Completion> submit(Stream& stream, Operation operation);
  // Waits for all that was submitted. The context's error.
  cuda::CUresult synchronize();
  // The last operations of all streams that are not over.
  std::vector<std::shared_ptr<Completion>> pending();
  std::vector<std::shared_ptr<Stream>> streams();

  HostThread& host_thread() { return *host_thread_; }

  // Freeze the context's kernels, fills and memory operations, and its copies.
  Freezer& kernels() { return kernels_; }
  Freezer& copies() { return copies_; }

  // Tells whose memory this context's kernels or copies reach.
  Accessor accessor(bool copy_engine) const;
  cuda::CUresult enable_peer(std::uint64_t context);
  cuda::CUresult disable_peer(std::uint64_t context);

  // Addresses of allocations that go with the context.
  void own(std::uint64_t address);
  bool disown(std::uint64_t address);

  // Plain values that programs set and read.
  std::map<unsigned, std::size_t> limits;  // guarded by limits_mutex
  std::mutex limits_mutex;

 private:
  Context(Process& process, Device& device, unsigned flags, std::uint64_t bytes);
  bool is_client() const;  // of an MPS server
  void forget_streams();

  Process& process_;
  Device& device_;
  const std::uint64_t id_;
  const std::uint64_t bytes_;  // that it costs
  std::atomic<unsigned> flags_;
  std::atomic<std::uint32_t> error_{0};
  std::atomic<bool> destroyed_{false};
  std::shared_ptr<Stream> legacy_;
  std::shared_ptr<HostThread> host_thread_;
  Freezer kernels_;
  Freezer copies_;
  Channels channels_;

  mutable std::mutex mutex_;  // the order of submissions; the members below
  std::set<std::shared_ptr<Stream>> streams_;
  std::map<std::uint64_t, std::shared_ptr<Stream>> thread_streams_;
  std::shared_ptr<const std::set<std::uint64_t>> peers_;
  std::set<std::uint64_t> allocations_;
};

}  // namespace gpumux::sim

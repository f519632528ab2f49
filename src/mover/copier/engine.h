// SPDX-License-Identifier: Apache-2.0
// What the copier has in the mover's context: streams, events, the hash kernel and its lists.
//
// All of it is made before memory is short (open), for a full GPU has no room for a module either. One thread at a time
// uses an engine: the thread that steps a job. Nothing here waits for the GPU, but close.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cuda/current_context.h"
#include "cuda/driver.gen.h"
#include "mover/copier/block_hash.h"

namespace gpumux::mover {

struct BlockHashResult;

enum class GpuState { kPending, kDone, kFailed };

class Engine {
 public:
  // Blocks hashed by one launch: 2 GiB keep every GPU busy for as long as launching takes.
  static constexpr std::uint32_t kBatchBlocks = 1024;
  // One is hashed while the results of the other are used.
  static constexpr std::uint32_t kBatches = 2;

  Engine(const cuda::Driver& driver, cuda::CUdevice device, bool hashing, HashSeed seed)
      : driver_(driver), device_(device), hashing_(hashing), seed_(seed) {}
  ~Engine() { close(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Makes everything in `context`, unless it is there. An engine without the hash kernel still opens: it copies
  // everything.
  cuda::CUresult open(cuda::CUcontext context);
  // Gives everything back. Waits for what the streams still do.
  void close();

  cuda::CUcontext context() const { return context_.load(); }
  bool can_hash() const { return kernel_ != nullptr; }

  cuda::CUstream out() const { return out_; }
  cuda::CUstream in() const { return in_; }

  // Makes its context current for as long as what it returns lives.
  cuda::WorkingContext enter() const { return {driver_, context_.load()}; }

  // Records an event behind what was submitted to the stream. On failure *event is null, and state_of asks the stream.
  cuda::CUresult record(cuda::CUstream stream, cuda::CUevent* event);
  GpuState state_of(cuda::CUevent event, cuda::CUstream stream, cuda::CUresult* error) const;
  void give(cuda::CUevent event);

  // The batch's list of addresses, to be filled in before launch_hash, and its results, valid when the event is done.
  std::uint64_t* batch_addresses(std::uint32_t batch) const;
  const BlockHashResult* batch_results(std::uint32_t batch) const;
  cuda::CUresult launch_hash(std::uint32_t batch, std::uint32_t blocks, cuda::CUevent* event);
  cuda::CUstream hash_stream() const { return hash_; }

 private:
  cuda::CUresult open_streams();
  void load_kernel();  // can_hash() says whether that went well

  const cuda::Driver& driver_;
  const cuda::CUdevice device_;
  const bool hashing_;
  const HashSeed seed_;
  std::atomic<cuda::CUcontext> context_{nullptr};  // read by any thread that makes it current
  cuda::CUstream out_ = nullptr;
  cuda::CUstream in_ = nullptr;
  cuda::CUstream hash_ = nullptr;
  cuda::CUmodule module_ = nullptr;
  cuda::CUfunction kernel_ = nullptr;
  void* lists_ = nullptr;  // pinned
  std::vector<cuda::CUevent> events_;
};

}  // namespace gpumux::mover

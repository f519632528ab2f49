// SPDX-License-Identifier: Apache-2.0
// Saves content of the GPU's memory to host memory, and loads it again, in a context of this process. It learns from
// its caller when memory may be read or written.
//
//   save: hash on the GPU ... which blocks have changed? ... copy these to host memory
//   load: copy back, set constants
//
// Two kinds of blocks need no copy. An unchanged one has the hash of the copy in host memory. A constant one is one
// value all over. If the hash kernel cannot run, everything is copied, which is right, only slower.
//
// A Content says what is saved, and changes only when all of a save has succeeded (commit). So a failure loses nothing.
//
// One thread at a time calls save, load and what goes with them. Nothing waits for the GPU, but leave and wait.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/current_context.h"
#include "cuda/driver.gen.h"
#include "mover/copier/content.h"
#include "mover/copier/engine.h"
#include "mover/copier/host_slots.h"

namespace gpumux::mover {

class Copier {
 public:
  struct Options {
    cuda::CUdevice device = 0;
    bool hashing = true;  // look for unchanged and constant blocks before copying
    // Of the block hashes; all zero: one is drawn.
    HashSeed seed;
  };
  // Saves that copy at once. Two keep the bus busy while the memory of one is taken away; four forgive a late look.
  static constexpr std::uint32_t kCopiesInFlight = 4;

  // `host` may be other copiers' as well.
  Copier(const cuda::Driver& driver, HostSlots& host, const Options& options);
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // ---- the context that it works in

  // Takes `context`, unless it has one. Makes streams, and loads the hash kernel: before memory is short, for a full
  // GPU has no room for it.
  cuda::CUresult open(cuda::CUcontext context) { return engine_.open(context); }
  cuda::CUcontext context() const { return engine_.context(); }
  // Makes it current for as long as what it returns lives. All calls below need that.
  cuda::WorkingContext enter() const { return engine_.enter(); }
  // The sticky error of the context, if the driver reports one.
  cuda::CUresult context_error() const;
  // Leaves the context. Waits for what is under way there.
  void leave();
  // Waits until something that is under way has ended, if anything is.
  void wait();

  // ---- saving

  enum class Progress : std::uint8_t {
    kUnderWay,
    kWaits,   // for `go_on`
    kNoHost,  // the same, for there is not enough host memory now
    kDone,
    kFailed,  // nothing is under way any more
  };
  // One chunk on its way to host memory, from `save` to `commit` or `keep`.
  class Saving {
   public:
    // Of kDone: bytes that were copied; that host memory had already; that are of one value.
    std::uint64_t copied() const { return copied_; }
    std::uint64_t clean() const { return clean_; }
    std::uint64_t constant() const { return constant_; }
    // If that is looked at (verify): blocks that had changed although their hash said that they had not. They are
    // copied.
    std::uint32_t wrong_hashes() const { return wrong_hashes_; }

   private:
    friend class Copier;
    enum class Fate : std::uint8_t { kCopy, kClean, kConstant };
    struct Plan {
      Fate fate = Fate::kCopy;
      bool hashed = false;
      std::uint32_t word = 0;
      BlockHash hash;
    };
    enum class Stage : std::uint8_t { kHashing, kHashed, kPlanned, kCopying, kDone, kFailed };

    Content* content_ = nullptr;
    Stage stage_ = Stage::kPlanned;
    cuda::CUresult error_ = cuda::CUDA_SUCCESS;
    cuda::CUdeviceptr address_ = 0;
    std::uint64_t copied_ = 0;
    std::uint64_t clean_ = 0;
    std::uint64_t constant_ = 0;
    std::uint32_t wrong_hashes_ = 0;
    std::uint32_t batch_ = 0;
    std::uint32_t first_block_ = 0;  // in the batch
    std::uint32_t to_copy_ = 0;      // blocks
    bool verifies_ = false;
    cuda::CUevent event_ = nullptr;
    std::vector<Plan> blocks_;
  };
  // The most blocks that the next `save` may have.
  std::uint32_t room();
  // Begins to save so many blocks. No work may write there before it is over. `content`: what is known of it, which
  // must stay where it is.
  Saving save(cuda::CUdeviceptr address, std::uint32_t blocks, Content& content);
  // Compare every block of it that is not copied with what it is believed to be, byte by byte. Slow.
  static void verify(Saving& saving) { saving.verifies_ = true; }
  // After the last `save` for now.
  void launch();
  // How far it is now. *error is set as soon as the driver has refused something.
  Progress look(Saving& saving, cuda::CUresult* error);
  // Of kWaits, if still no work has written there.
  Progress go_on(Saving& saving, cuda::CUresult* error);
  // Of kDone: the content is as saved from now on.
  void commit(Saving& saving);
  // The save is given up. Blocks that were unchanged in host memory stay known.
  void keep(Saving& saving);

  // ---- loading

  // One chunk on its way to the GPU.
  class Loading {
   public:
    std::uint64_t copied() const { return copied_; }  // bytes

   private:
    friend class Copier;
    std::uint64_t copied_ = 0;
    cuda::CUresult error_ = cuda::CUDA_SUCCESS;
    cuda::CUevent event_ = nullptr;
  };
  // Begins to write what was saved. An error: `look` says kFailed when what was begun has ended.
  cuda::CUresult load(Loading& loading, cuda::CUdeviceptr address, const Content& content);
  // kUnderWay, kDone or kFailed.
  Progress look(Loading& loading, cuda::CUresult* error);

 private:
  using Stage = Saving::Stage;
  // Savings whose blocks are hashed by one launch.
  struct Batch {
    enum class State : std::uint8_t { kFree, kFilling, kRunning, kDone, kFailed };
    State state = State::kFree;
    std::uint32_t savings = 0;  // that have not looked at their results
    std::uint32_t blocks = 0;
    cuda::CUevent event = nullptr;
  };

  enum class Match : std::uint8_t { kYes, kNo, kUnknown };

  void look_at(Batch& batch);
  void leave_batch(const Saving& saving);
  void plan(Saving& saving);
  Match matches(const Saving& saving, std::uint32_t block) const;
  bool find_slots(Saving& saving);
  cuda::CUresult submit(Saving& saving);
  void end(Saving& saving);
  void count(Saving& saving);

  const cuda::Driver& driver_;
  HostSlots& host_;
  Engine engine_;
  Batch batches_[Engine::kBatches];
  std::uint32_t savings_ = 0;  // begun, and not over
  std::uint32_t copying_ = 0;  // of these
};

}  // namespace gpumux::mover

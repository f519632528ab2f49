// SPDX-License-Identifier: Apache-2.0
// Saves content of the GPU's memory to host memory, and loads it again. It learns from its caller when memory may be
// read or written.
//
// A Content says what is saved, and changes only when all of a save has succeeded (commit). So a failure loses nothing.
//
// There are two: one copies by itself, in a context of its process (local_copier.h). The other has the node's mover do
// it (mover_copier.h).
//
// One thread at a time calls save, load and what goes with them. Nothing waits for the GPU, but leave and wait.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/frame_sizes.h"
#include "cuda/current_context.h"
#include "cuda/driver.gen.h"
#include "pager/copier/content.h"
#include "pager/copier/frame_keeper.h"

namespace gpumux::pager {

// Where a copier finds a chunk's memory.
struct Place {
  cuda::CUdeviceptr address = 0;  // if it needs a context
  int memory = -1;                // otherwise: a descriptor, the caller's to close. Of a load: none means a frame
  bool may_keep = false;          // of a save: the mover may keep the memory for another seat
};

class Copier {
 public:
  Copier() = default;
  virtual ~Copier() = default;
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // ---- the context that it works in

  // Whether it needs one, and finds memory by its addresses there. If not, it never has one, these calls do nothing,
  // and it finds memory by a descriptor.
  virtual bool needs_context() const = 0;
  // Takes `context`, unless it has one. Makes streams, and loads the hash kernel: before memory is short, for a full
  // GPU has no room for it.
  virtual cuda::CUresult open(cuda::CUcontext context) = 0;
  virtual cuda::CUcontext context() const = 0;
  // Makes it current for as long as what it returns lives. All calls below need that.
  virtual cuda::WorkingContext enter() const = 0;
  // The sticky error of the context, if the driver reports one.
  virtual cuda::CUresult context_error() const = 0;
  // Leaves the context. Waits for what is under way there. Host memory that was registered there is the caller's care.
  virtual void leave() = 0;
  // The same when the context is gone, and all that was in it.
  virtual void lose() = 0;
  // Waits until something that is under way has ended, if anything is.
  virtual void wait() = 0;

  // ---- saving

  enum class Progress : std::uint8_t {
    kUnderWay,
    kWaits,   // for `go_on`
    kNoHost,  // the same, for there is not enough host memory now; of a MoverCopier's: for host memory
    kDone,
    kFailed,   // nothing is under way any more
    kNoFrame,  // of a load into a frame: there is none, and nothing is under way
  };
  // One chunk on its way to host memory, from `save` to `commit` or `keep`.
  class Saving {
   public:
    // Of kDone: bytes that were copied; that host memory had already; that are of one value.
    std::uint64_t copied() const { return copied_; }
    std::uint64_t clean() const { return clean_; }
    std::uint64_t constant() const { return constant_; }
    // If that is looked at: blocks that had changed although their hash said that they had not. They are copied.
    std::uint32_t wrong_hashes() const { return wrong_hashes_; }

   private:
    friend class LocalCopier;
    friend class MoverCopier;
    enum class Fate : std::uint8_t { kCopy, kClean, kConstant };
    struct Plan {
      Fate fate = Fate::kCopy;
      bool hashed = false;
      std::uint32_t word = 0;
      BlockHash hash;
    };
    enum class Stage : std::uint8_t { kHashing, kHashed, kPlanned, kShort, kCopying, kDone, kFailed };

    Content* content_ = nullptr;
    Stage stage_ = Stage::kPlanned;
    cuda::CUresult error_ = cuda::CUDA_SUCCESS;
    std::uint64_t copied_ = 0;
    std::uint64_t clean_ = 0;
    std::uint64_t constant_ = 0;
    std::uint32_t wrong_hashes_ = 0;
    std::vector<Plan> blocks_;
    // Of a LocalCopier's.
    cuda::CUdeviceptr address_ = 0;
    std::uint32_t batch_ = 0;
    std::uint32_t first_block_ = 0;  // in the batch
    std::uint32_t to_copy_ = 0;      // blocks
    bool verifies_ = false;
    cuda::CUevent event_ = nullptr;
    // Of a MoverCopier's.
    bool is_cancelled_ = false;
    std::uint64_t ticket_ = 0;
    std::uint64_t chunk_ = 0;
    bool is_kept_ = false;
    Content saved_;
  };
  // The most blocks that the next `save` may have.
  virtual std::uint32_t room() = 0;
  // Begins to save so many blocks. No work may write there before it is over. `content`: what is known of it, which
  // must stay where it is. `chunk`: a number that is never another chunk's, as below.
  virtual Saving save(const Place& place, std::uint32_t blocks, Content& content, std::uint64_t chunk) = 0;
  // After the last `save` for now.
  virtual void launch() = 0;
  // How far it is now. *error is set as soon as the driver has refused something.
  virtual Progress look(Saving& saving, cuda::CUresult* error) = 0;
  // Of kWaits, if still no work has written there. `may_copy` false: it takes no host memory.
  virtual Progress go_on(Saving& saving, bool may_copy, cuda::CUresult* error) = 0;
  // It need not be saved any more: if it has not begun, it does not. `look` says when it is over.
  virtual void cancel(Saving& saving) = 0;
  // Of kDone: the content is as saved from now on. `is_released`: this process has nothing of the memory any more.
  virtual void commit(Saving& saving, bool is_released) = 0;
  // The save is given up. Blocks that were unchanged in host memory stay known.
  virtual void keep(Saving& saving) = 0;

  // ---- loading

  // One chunk on its way to the GPU.
  class Loading {
   public:
    std::uint64_t copied() const { return copied_; }  // bytes
    // Of kDone, into a frame: the memory. None: it did not arrive.
    const std::optional<KeptFrame>& frame() const { return frame_; }

   private:
    friend class LocalCopier;
    friend class MoverCopier;
    std::uint64_t copied_ = 0;
    cuda::CUresult error_ = cuda::CUDA_SUCCESS;
    cuda::CUevent event_ = nullptr;
    std::uint64_t ticket_ = 0;
    std::optional<KeptFrame> frame_;
  };
  // Whether a load into a frame may find one, and this process can keep one more.
  virtual bool may_have_frames() = 0;
  // Sizes of which there was one lately: these chunks go first.
  virtual base::FrameSizes frames_at_hand() const = 0;
  // The driver has no memory for the seat, although the seat has room: frames of that many bytes go.
  virtual void make_way(std::uint64_t bytes) = 0;
  // Begins to write what was saved. An error: `look` says kFailed when what was begun has ended.
  virtual cuda::CUresult load(Loading& loading, const Place& place, const Content& content, std::uint64_t chunk) = 0;
  // kUnderWay, kDone, kFailed or kNoFrame.
  virtual Progress look(Loading& loading, cuda::CUresult* error) = 0;

  // The content is where it belongs: the saved content is a copy from now on.
  virtual void loaded(const Content& content, std::uint64_t chunk) = 0;
  // The content need not be saved any more. Any thread.
  virtual void forget(Content& content, std::uint64_t chunk) = 0;
};

}  // namespace gpumux::pager

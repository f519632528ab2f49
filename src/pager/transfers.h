// SPDX-License-Identifier: Apache-2.0
// The chunks of one seat that are on their way to host memory, or back. The node's mover copies them: it is sent each
// chunk's memory, and says where the content is then. So nothing here needs a context, and all of it works while the
// seat's work is frozen.
//
// A Saved says what is saved, and changes only when all of a save has succeeded (commit). So a failure loses nothing.
//
// One thread at a time calls save, load and what goes with them. Nothing waits for the mover, but `wait`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/frame_sizes.h"
#include "cuda/driver.gen.h"
#include "pager/frame_keeper.h"
#include "pager/mover_link.h"
#include "pager/saved.h"

namespace gpumux::pager {

class Transfers {
 public:
  // Chunks that are asked for and not answered, in each direction. The mover works at eight at once (a guess: the
  // others are what it takes next).
  static constexpr std::uint32_t kMostAsked = 16;

  // `link` null: there is no mover, and nothing can be saved.
  explicit Transfers(MoverLink* link) : link_(link) {}

  enum class Progress : std::uint8_t {
    kUnderWay,
    kNoHost,  // the mover waits for host memory
    kDone,
    kFailed,   // nothing is under way any more
    kNoFrame,  // of a load into a frame: there is none, and nothing is under way
  };

  // ---- saving

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
    friend class Transfers;
    enum class Stage : std::uint8_t { kAsked, kShort, kDone, kFailed };
    Stage stage_ = Stage::kAsked;
    bool is_cancelled_ = false;
    bool is_kept_ = false;
    std::uint64_t ticket_ = 0;
    std::uint64_t chunk_ = 0;
    cuda::CUresult error_ = cuda::CUDA_SUCCESS;
    std::uint64_t copied_ = 0;
    std::uint64_t clean_ = 0;
    std::uint64_t constant_ = 0;
    std::uint32_t wrong_hashes_ = 0;
    Saved saved_;
  };
  bool has_room() const { return asked_ < kMostAsked; }
  // Begins to save so many blocks. No work may write there before it is over. `saved`: what is known of them. `chunk`:
  // a number that is never another chunk's. `memory`: a descriptor that stays the caller's. `may_keep`: the mover may
  // keep the memory for another seat.
  Saving save(int memory, bool may_keep, std::uint32_t blocks, const Saved& saved, std::uint64_t chunk);
  // How far it is now. *error is set as soon as the driver has refused something.
  Progress look(Saving& saving, cuda::CUresult* error);
  // It need not be saved any more: if it has not begun, it does not. `look` says when it is over.
  void cancel(Saving& saving);
  // Of kDone: the content is as saved from now on. `is_released`: this process has nothing of the memory any more.
  void commit(Saving& saving, bool is_released, Saved* saved);
  // The save is given up. Of kDone: what is saved is a copy of what the GPU has.
  void keep(Saving& saving, Saved* saved);
  // The caller gives the save up. The program may have written since it began, so nothing of it is kept.
  void discard(Saving& saving, Saved* saved);

  // ---- loading

  // One chunk on its way to the GPU.
  class Loading {
   public:
    std::uint64_t copied() const { return copied_; }  // bytes
    // Of kDone, into a frame: the memory. None: it did not arrive.
    const std::optional<KeptFrame>& frame() const { return frame_; }

   private:
    friend class Transfers;
    std::uint64_t copied_ = 0;
    cuda::CUresult error_ = cuda::CUDA_SUCCESS;
    std::uint64_t ticket_ = 0;
    std::optional<KeptFrame> frame_;
  };
  // Whether a load into a frame may find one, and this process can keep one more.
  bool may_have_frames() { return link_ != nullptr && link_->may_keep_frame(); }
  // Sizes of which there was one lately: these chunks go first.
  base::FrameSizes frames_at_hand() const { return frames_; }
  // The driver has no memory for the seat, although the seat has room: frames of that many bytes go.
  void make_way(std::uint64_t bytes);
  // Begins to write what was saved. `memory` as for `save`; negative: into a frame. An error: `look` says kFailed.
  cuda::CUresult load(Loading& loading, int memory, const Saved& saved, std::uint64_t chunk);
  // kUnderWay, kDone, kFailed or kNoFrame.
  Progress look(Loading& loading, cuda::CUresult* error);

  // The content is where it belongs: what is saved is a copy from now on.
  void loaded(const Saved& saved, std::uint64_t chunk);
  // The content need not be saved any more. Any thread.
  void forget(Saved& saved, std::uint64_t chunk);

  // Until an answer may have come.
  void wait();

 private:
  std::optional<MoverLink::Answer> answer_to(std::uint64_t ticket);
  std::uint64_t next_ticket();
  void note_connection();
  void hear();

  MoverLink* const link_;
  std::uint64_t connection_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::uint64_t lost_ = 0;                              // tickets up to this one get no answer
  base::FrameSizes frames_ = 0;                         // as the last answer said
  std::uint32_t asked_ = 0;                             // saves
  std::map<std::uint64_t, MoverLink::Answer> answers_;  // that came and were not looked at, by ticket
};

}  // namespace gpumux::pager

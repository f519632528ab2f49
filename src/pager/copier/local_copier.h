// SPDX-License-Identifier: Apache-2.0
// A copier that copies by itself, in a context of this process.
//
//   save: hash on the GPU ... which blocks have changed? ... copy these to host memory
//   load: copy back, set constants
//
// Two kinds of blocks need no copy. An unchanged one has the hash of the copy in host memory. A constant one is one
// value all over. If the hash kernel cannot run, everything is copied, which is right, only slower.
#pragma once

#include <cstdint>

#include "pager/copier/copier.h"
#include "pager/copier/engine.h"
#include "pager/copier/host_slots.h"

namespace gpumux::pager {

class LocalCopier final : public Copier {
 public:
  struct Options {
    cuda::CUdevice device = 0;
    bool hashing = true;  // look for unchanged and constant blocks before copying
    // Compare every block that is not copied with what it is believed to be, byte by byte. Slow.
    bool verify = false;
    HashSeed seed;
  };
  // Saves that copy at once. Two keep the bus busy while the memory of one is taken away; four forgive a late look.
  static constexpr std::uint32_t kCopiesInFlight = 4;

  // `host` may be other copiers' as well.
  LocalCopier(const cuda::Driver& driver, HostSlots& host, const Options& options);

  // As Options::verify, for this one.
  void verify(Saving& saving) { saving.verifies_ = true; }

  bool needs_context() const override { return true; }
  cuda::CUresult open(cuda::CUcontext context) override { return engine_.open(context); }
  cuda::CUcontext context() const override { return engine_.context(); }
  cuda::WorkingContext enter() const override { return engine_.enter(); }
  cuda::CUresult context_error() const override;
  void leave() override;
  void lose() override;
  void wait() override;

  std::uint32_t room() override;
  Saving save(const Place& place, std::uint32_t blocks, Content& content, std::uint64_t) override;
  void launch() override;
  Progress look(Saving& saving, cuda::CUresult* error) override;
  Progress go_on(Saving& saving, bool may_copy, cuda::CUresult* error) override;
  void cancel(Saving&) override {}
  void commit(Saving& saving, bool is_released) override;
  void keep(Saving& saving) override;
  bool may_have_frames() override { return false; }
  base::FrameSizes frames_at_hand() const override { return 0; }
  void make_way(std::uint64_t) override {}
  cuda::CUresult load(Loading& loading, const Place& place, const Content& content, std::uint64_t) override;
  Progress look(Loading& loading, cuda::CUresult* error) override;
  void loaded(const Content&, std::uint64_t) override {}
  void forget(Content& content, std::uint64_t) override;

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
  const bool verify_;
  HostSlots& host_;
  Engine engine_;
  Batch batches_[Engine::kBatches];
  std::uint32_t savings_ = 0;  // begun, and not over
  std::uint32_t copying_ = 0;  // of these
};

}  // namespace gpumux::pager

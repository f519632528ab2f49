// SPDX-License-Identifier: Apache-2.0
// A copier that has the node's mover copy: it sends it each chunk's memory, and hears where the content is then. It
// needs no context and no host memory of its own, so it works while the seat's work is frozen.
#pragma once

#include <cstdint>
#include <map>

#include "pager/copier/copier.h"
#include "pager/copier/mover_link.h"

namespace gpumux::pager {

class MoverCopier final : public Copier {
 public:
  // Chunks that are asked for and not answered, in each direction. The mover works at eight at once (a guess: the
  // others are what it takes next).
  static constexpr std::uint32_t kMostAsked = 16;

  MoverCopier(const cuda::Driver& driver, MoverLink& link) : driver_(driver), link_(link) {}

  bool needs_context() const override { return false; }
  cuda::CUresult open(cuda::CUcontext) override { return cuda::CUDA_SUCCESS; }
  cuda::CUcontext context() const override { return nullptr; }
  cuda::WorkingContext enter() const override { return {driver_, nullptr}; }
  cuda::CUresult context_error() const override { return cuda::CUDA_SUCCESS; }
  void leave() override {}
  void lose() override {}
  void wait() override { link_.wait(); }

  std::uint32_t room() override { return asked_ < kMostAsked ? UINT32_MAX : 0; }
  Saving save(const Place& place, std::uint32_t blocks, Content& content, std::uint64_t chunk) override;
  void launch() override {}
  Progress look(Saving& saving, cuda::CUresult* error) override;
  Progress go_on(Saving& saving, bool, cuda::CUresult* error) override { return look(saving, error); }
  void cancel(Saving& saving) override;
  void commit(Saving& saving, bool is_released) override;
  void keep(Saving& saving) override;
  bool may_have_frames() override { return link_.may_keep_frame(); }
  base::FrameSizes frames_at_hand() const override { return frames_; }
  void make_way(std::uint64_t bytes) override { link_.make_way(bytes); }
  cuda::CUresult load(Loading& loading, const Place& place, const Content& content, std::uint64_t chunk) override;
  Progress look(Loading& loading, cuda::CUresult* error) override;
  void loaded(const Content& content, std::uint64_t chunk) override { link_.forget(chunk, content, true); }
  void forget(Content& content, std::uint64_t chunk) override;

 private:
  using Stage = Saving::Stage;
  std::optional<MoverLink::Answer> answer_to(std::uint64_t ticket);
  std::uint64_t next_ticket();
  void note_connection();
  void hear();

  const cuda::Driver& driver_;
  MoverLink& link_;
  std::uint64_t connection_ = 0;
  std::uint64_t last_ticket_ = 0;
  std::uint64_t lost_ = 0;                              // tickets up to this one get no answer
  base::FrameSizes frames_ = 0;                         // as the last answer said
  std::uint32_t asked_ = 0;                             // saves
  std::map<std::uint64_t, MoverLink::Answer> answers_;  // that came and were not looked at, by ticket
};

}  // namespace gpumux::pager

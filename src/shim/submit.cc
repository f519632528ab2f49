// SPDX-License-Identifier: Apache-2.0
#include "shim/submit.h"

namespace gpumux::shim {
namespace {

bool is_default(cuda::CUstream stream) { return stream == nullptr || stream == gate::kPerThreadStream; }

// The context that a stream belongs to; null if there is none.
cuda::CUcontext context_of(const cuda::Driver& driver, cuda::CUstream stream) {
  cuda::CUcontext context = nullptr;
  // A green context's stream has no plain context (the driver says so): its GPU is the current context's, or the call
  // will fail.
  if (!is_default(stream) && driver.cuStreamGetCtx(stream, &context) == cuda::CUDA_SUCCESS && context != nullptr)
    return context;
  context = nullptr;
  return driver.cuCtxGetCurrent(&context) == cuda::CUDA_SUCCESS ? context : nullptr;
}

}  // namespace

bool Passage::find_seat(cuda::CUstream stream) {
  gate::Gate& gate = tenant_->gate();
  const std::uint32_t generation =
      gate.handle_generation();  // before asking: a handle that dies meanwhile makes the memo stale
  const cuda::CUcontext context = context_of(tenant_->driver(), stream);
  if (context == nullptr) return false;
  const auto slot = tenant_->seat_of(context);
  if (!slot) return false;
  *memo_ = gate::StreamMemo{.stream = stream,
                            .context = context,
                            .handle_generation = generation,
                            .clean_generation = 0,  // never a set's value: the stream is noted below
                            .slot = *slot,
                            .streams = &tenant_->seats().streams(*slot)};
  return true;
}

bool Passage::is_capturing(cuda::CUstream stream) const {
  const auto ask = tenant_->driver().cuStreamIsCapturing;
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != nullptr && ask(stream, &status) == cuda::CUDA_SUCCESS && status != cuda::CU_STREAM_CAPTURE_STATUS_NONE;
}

void Passage::note(cuda::CUstream stream) {
  // A per-thread stream is noted behind each submission, by an event.
  if (stream == gate::kPerThreadStream) return;
  const std::uint32_t generation = memo_->streams->clean_generation();
  memo_->streams->note(memo_->context, stream);
  memo_->clean_generation = generation;
}

void Passage::leave_slowly() {
  if (memo_->stream == gate::kPerThreadStream) memo_->streams->note_per_thread(memo_->context, thread_);
  if (passed_ == gate::Passed::kNested) return;
  tenant_->gate().leave(*thread_, memo_->slot);
  if (passed_ == gate::Passed::kStep) tenant_->drainer().stepped(memo_->slot);
}

SeveralPassages::SeveralPassages(Tenant* tenant) : tenant_(tenant) {
  if (tenant_ != nullptr) thread_ = gate::this_thread();
}

SeveralPassages::~SeveralPassages() { leave(); }

SeveralPassages::Member* SeveralPassages::find_or_add(std::uint32_t slot) {
  for (std::size_t i = 0; i < count_; ++i) {
    if (members_[i].slot == slot) return &members_[i];
  }
  members_[count_].slot = slot;  // there are no more slots than members
  return &members_[count_++];
}

void SeveralPassages::add_context(cuda::CUcontext context) {
  if (thread_ == nullptr || context == nullptr) return;
  if (const auto slot = tenant_->seat_of(context)) find_or_add(*slot);
}

void SeveralPassages::add_stream(cuda::CUstream stream) {
  if (thread_ == nullptr) return;
  const cuda::CUcontext context = context_of(tenant_->driver(), stream);
  const auto slot = context != nullptr ? tenant_->seat_of(context) : std::nullopt;
  if (!slot) return;
  Member* member = find_or_add(*slot);
  member->has_stream = true;
  member->context = context;
  member->stream = stream;
}

bool SeveralPassages::try_enter() {
  for (std::size_t i = 0; i < count_; ++i) {
    members_[i].passed = tenant_->gate().try_pass_or_step(*thread_, members_[i].slot);
    if (members_[i].passed == gate::Passed::kNot) {
      const std::uint32_t closed = members_[i].slot;
      leave();
      tenant_->gate().wait_until_open(closed);
      return false;
    }
  }
  return true;
}

void SeveralPassages::enter() {
  // GPUs that work on each other's memory belong together from now on.
  if (count_ > 1) tenant_->join_own_gang();
  while (!try_enter()) {
  }
  // Only now, inside: a drain that came before has forgotten what was noted before it.
  for (std::size_t i = 0; i < count_; ++i) {
    const Member& member = members_[i];
    if (member.has_stream && member.stream != gate::kPerThreadStream) {
      tenant_->seats().streams(member.slot).note(member.context, member.stream);
    }
  }
}

void SeveralPassages::leave() {
  for (std::size_t i = 0; i < count_; ++i) {
    Member& member = members_[i];
    if (member.passed == gate::Passed::kNot) continue;
    if (member.has_stream && member.stream == gate::kPerThreadStream) {
      tenant_->seats().streams(member.slot).note_per_thread(member.context, thread_);
    }
    if (member.passed != gate::Passed::kNested) tenant_->gate().leave(*thread_, member.slot);
    if (member.passed == gate::Passed::kStep) tenant_->drainer().stepped(member.slot);
    member.passed = gate::Passed::kNot;
  }
}

void synchronised() {
  Tenant* const tenant = tenant_if_any();
  for (std::uint32_t slot = 0; slot < tenant->seats().count(); ++slot) {
    if (tenant->gate().is_contended(slot)) {
      tenant->drainer().wake();
      return;
    }
  }
}

}  // namespace gpumux::shim

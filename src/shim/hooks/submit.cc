// SPDX-License-Identifier: Apache-2.0
#include "shim/hooks/submit.h"

#include <algorithm>

#include "cuda/relaxed_capture.h"
#include "os/system_clock.h"

namespace gpumux::shim {
namespace {

bool is_default(cuda::CUstream stream) { return stream == nullptr || stream == gate::kPerThreadStream; }

// The program has given its GPU up, if it is unlocked and another seat waits.
void unlock(Tenant& tenant, std::uint32_t slot) {
  if (tenant.lock_modes().synchronised(slot, os::now()) && tenant.gate().is_contended(slot))
    tenant.drainer().give_up(slot);
}

// After a submission to `stream`, outside the gate. (A stream that has begun to capture since is refused, and waited
// for at the next one.)
void keep_lock_modes(Tenant& tenant, std::uint32_t slot, cuda::CUstream stream) {
  if (!tenant.lock_modes().wants_synchronisation(slot, os::now())) return;
  if (tenant.captures().any()) return;
  if (tenant.driver().cuStreamSynchronize(stream) == cuda::CUDA_SUCCESS) unlock(tenant, slot);
}

// Memory that the driver knows of; what it does not know is pageable.
bool is_known(const cuda::Driver& driver, const void* address) {
  unsigned int type = 0;
  return driver.cuPointerGetAttribute(&type, cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      reinterpret_cast<cuda::CUdeviceptr>(address)) == cuda::CUDA_SUCCESS;
}

}  // namespace

bool is_capturing(const cuda::Driver& driver, cuda::CUstream stream) {
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing != nullptr && driver.cuStreamIsCapturing(stream, &status) == cuda::CUDA_SUCCESS &&
         status != cuda::CU_STREAM_CAPTURE_STATUS_NONE;
}

bool is_captured(cuda::CUstream stream) {
  Tenant* const mine = tenant_if_any();
  return mine != nullptr && mine->captures().any() && is_capturing(mine->driver(), stream);
}

cuda::CUcontext context_of(const cuda::Driver& driver, cuda::CUstream stream) {
  cuda::CUcontext context = nullptr;
  // A green context's stream has no plain context (the driver says so): its GPU is the current context's, or the call
  // will fail.
  if (!is_default(stream) && driver.cuStreamGetCtx(stream, &context) == cuda::CUDA_SUCCESS && context != nullptr)
    return context;
  context = nullptr;
  return driver.cuCtxGetCurrent(&context) == cuda::CUDA_SUCCESS ? context : nullptr;
}

Here here() {
  Here found;
  Tenant* const mine = tenant();
  if (mine == nullptr || driver().cuCtxGetCurrent == nullptr ||
      driver().cuCtxGetCurrent(&found.context) != cuda::CUDA_SUCCESS || found.context == nullptr)
    return found;
  const auto slot = mine->seat_of(found.context);
  if (!slot) return found;
  found.memories = &mine->memories();
  found.memory = &found.memories->of(*slot);
  return found;
}

void Passage::enter_slowly(cuda::CUstream stream) {
  tenant_ = tenant();
  if (tenant_ == nullptr) return;
  thread_ = gate::this_thread();
  if (thread_ == nullptr) return;
  gate::StreamMemo* memo = look_up(stream);
  if (memo == nullptr) return;
  runs_ = !tenant_->captures().any() || !is_capturing(tenant_->driver(), stream);
  if (!runs_) return hold(memo->slot);
  if (gate::InFlight& in_flight = tenant_->seats().in_flight(memo->slot);
      in_flight.is_bounded() && !tenant_->gate().is_inside(*thread_, memo->slot)) {
    in_flight.await(memo->context, stream);
    memo = look_up(stream);  // time has passed
    if (memo == nullptr) return;
  }
  // The memo's place may be taken by another stream's before this ends, if the driver calls back.
  slot_ = memo->slot;
  context_ = memo->context;
  stream_ = stream;
  passed_ = tenant_->gate().pass(*thread_, slot_);
  if (passed_ == gate::Passed::kStranded) return;
  note(*memo);
  if (tenant_->lock_modes().are_set()) tenant_->lock_modes().entered(slot_, os::now());
  tenant_->memories().pager_thread().on_passed(slot_);
}

// The thread's memo of the stream, filled in if need be. Null: no seat.
gate::StreamMemo* Passage::look_up(cuda::CUstream stream) const {
  gate::StreamMemo& memo = thread_->memo_of(stream);
  // Read before the other questions: a change after this makes the memo stale.
  const std::uint64_t generation = gate::memo_generation();
  return remembers(memo, stream, generation) || find_seat(memo, stream, generation) ? &memo : nullptr;
}

// Nothing runs, so no lease is needed. But the driver looks up some of the addresses now, so the memory has to be
// there, and stay until the call returns.
void Passage::hold(std::uint32_t slot) {
  slot_ = slot;
  passed_ = tenant_->gate().hold(*thread_, slot);
}

bool Passage::remembers(const gate::StreamMemo& memo, cuda::CUstream stream, std::uint64_t generation) const {
  if (memo.stream != stream || memo.streams == nullptr || memo.generation != generation) return false;
  if (!is_default(stream) || tenant_->is_only_context(memo.context)) return true;
  cuda::CUcontext current = nullptr;
  return tenant_->driver().cuCtxGetCurrent(&current) == cuda::CUDA_SUCCESS && current == memo.context;
}

bool Passage::find_seat(gate::StreamMemo& memo, cuda::CUstream stream, std::uint64_t generation) const {
  const cuda::CUcontext context = context_of(tenant_->driver(), stream);
  if (context == nullptr) return false;
  const auto slot = tenant_->seat_of(context);
  if (!slot) return false;
  memo = gate::StreamMemo{.stream = stream,
                          .word = &tenant_->gate().lease_word(*slot),
                          .slot = *slot,
                          .generation = generation,
                          .context = context,
                          .streams = &tenant_->seats().streams(*slot)};
  return true;
}

// Inside. A memo of the present generation stays true until the next. So the next submission may take the short way, if
// nothing captures and the seat does not depend on which context is current.
void Passage::note(gate::StreamMemo& memo) const {
  const bool is_fresh = memo.generation == gate::memo_generation();
  if (is_fresh && memo.is_noted) return;
  memo.streams->note(memo.context, memo.stream);
  memo.is_noted = is_fresh;
  const bool is_sure = !is_default(memo.stream) || tenant_->is_only_context(memo.context);
  // By the lease, and not nested: so it was found unbarred after the memo's generation was read (gate.h).
  const bool is_direct = is_fresh && is_sure && passed_ == gate::Passed::kHolding && tenant_->gate().has_short_way() &&
                         !tenant_->captures().any() && !tenant_->lock_modes().are_set() &&
                         !tenant_->seats().in_flight(slot_).is_bounded();
  memo.direct_generation = is_direct ? memo.generation : 0;
}

void Passage::leave_slowly() {
  if (runs_ && stream_ == gate::kPerThreadStream && tenant_->captures().any())
    tenant_->seats().streams(slot_).fence_own(context_);
  if (passed_ == gate::Passed::kNested) return;
  gate::InFlight& in_flight = tenant_->seats().in_flight(slot_);
  if (runs_ && in_flight.is_bounded() && !tenant_->captures().any())
    in_flight.submitted(context_, stream_, os::SystemClock());
  tenant_->memories().leave(*thread_, slot_, passed_);
  if (runs_ && tenant_->lock_modes().are_set()) keep_lock_modes(*tenant_, slot_, stream_);
}

CopyWait::CopyWait(Where where, const void* destination, std::size_t bytes, Blocks blocks) {
  // A thread that has submitted nothing to the stream has nothing to wait for there.
  Tenant* const tenant = tenant_if_any();
  gate::ThreadRecord* const thread = gate::t_record;
  if (tenant == nullptr || thread == nullptr || bytes == 0) return;
  const gate::StreamMemo& memo = thread->memo_of(where.stream);
  if (memo.stream != where.stream || memo.streams == nullptr) return;
  const std::uint32_t slot = memo.slot;
  if (!tenant->seats().in_flight(slot).is_bounded() || tenant->gate().is_inside(*thread, slot) ||
      tenant->captures().any())
    return;
  const cuda::Driver& driver = tenant->driver();
  const cuda::CUcontext context = memo.context;
  if (is_default(where.stream) && context_of(driver, where.stream) != context) return;  // it is another one's by now
  if (blocks == Blocks::kIfPageable && is_known(driver, destination)) return;
  waiting_.emplace(tenant->gate(), slot);
  // An error here fails the copy, too, which tells the program.
  const cuda::RelaxedCapture relaxed(driver);
  driver.cuStreamSynchronize(where.stream);
}

MemoryHold::MemoryHold(const std::optional<WholeContext>& whole) {
  Tenant* const mine = whole ? tenant_if_any() : nullptr;  // without one there is nothing that could be away
  if (mine == nullptr) return;
  const auto slot = seat_of(*mine, *whole);
  gate::ThreadRecord* const thread = slot ? gate::this_thread() : nullptr;
  if (thread == nullptr) return;
  tenant_ = mine;
  thread_ = thread;
  slot_ = *slot;
  passed_ = mine->gate().hold(*thread, *slot);
}

MemoryHold::~MemoryHold() {
  if (tenant_ != nullptr) tenant_->memories().leave(*thread_, slot_, passed_);
}

cuda::CUresult again_with_room(std::optional<cuda::CUdevice> device, cuda::CUresult (*call)(void*), void* argument) {
  // A guess, for a module or a graph's nodes. It doubles each time that this was not enough.
  constexpr std::uint64_t kFirstGuess = 32 * pager::kMebibyte;
  Tenant* const mine = tenant();
  if (mine == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Memories& memories = mine->memories();
  DeviceMemory* memory = nullptr;
  if (!device) {
    memory = here().memory;
  } else if (const auto slot = mine->seat_of_device(*device)) {
    memory = &memories.of(*slot);
  }
  if (memory == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  return memories.with_room(
      *memory, kFirstGuess, [&] { return call(argument); }, Memories::Lack::kDriver);
}

SeveralPassages::SeveralPassages(Tenant* tenant) : tenant_(tenant) {
  if (tenant_ != nullptr) thread_ = gate::this_thread();
}

SeveralPassages::~SeveralPassages() {
  const bool passed = count_ != 0 && members_[0].passed != gate::Passed::kNot;
  leave_all();
  if (!passed || !tenant_->lock_modes().are_set()) return;
  for (std::size_t i = 0; i < count_; ++i) {
    if (members_[i].has_stream) keep_lock_modes(*tenant_, members_[i].slot, members_[i].stream);
  }
}

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

bool SeveralPassages::is_any_stranded() const {
  return std::any_of(members_, members_ + count_,
                     [this](const Member& member) { return tenant_->gate().is_stranded(member.slot); });
}

SeveralPassages::Entered SeveralPassages::try_enter(std::optional<gate::Gate::Waiting>& waiting) {
  for (std::size_t i = 0; i < count_; ++i) {
    members_[i].passed = tenant_->gate().try_pass(*thread_, members_[i].slot);
    if (members_[i].passed == gate::Passed::kNot) {
      const std::uint32_t closed = members_[i].slot;
      leave_all();
      if (is_any_stranded()) return Entered::kStranded;
      if (!waiting || waiting->slot() != closed) waiting.emplace(tenant_->gate(), closed);
      tenant_->gate().wait_until_open(*waiting);
      return Entered::kNotYet;
    }
  }
  return Entered::kAll;
}

bool SeveralPassages::enter() {
  // The call may be recorded in a graph, which is launched as one GPU's work.
  for (std::size_t i = 1; i < count_; ++i) tenant_->belong_together(members_[0].slot, members_[i].slot);
  std::optional<gate::Gate::Waiting> waiting;
  Entered entered = Entered::kNotYet;
  while (entered == Entered::kNotYet) entered = try_enter(waiting);
  if (entered == Entered::kStranded) return false;
  waiting.reset();
  // Only now, inside: a drain that came before has forgotten what was noted before it.
  for (std::size_t i = 0; i < count_; ++i) {
    const Member& member = members_[i];
    if (member.has_stream) tenant_->seats().streams(member.slot).note(member.context, member.stream);
    if (tenant_->lock_modes().are_set()) tenant_->lock_modes().entered(member.slot, os::now());
    tenant_->memories().pager_thread().on_passed(member.slot);
  }
  return true;
}

void SeveralPassages::leave_all() {
  for (std::size_t i = 0; i < count_; ++i) {
    Member& member = members_[i];
    tenant_->memories().leave(*thread_, member.slot, member.passed);
    member.passed = gate::Passed::kNot;
  }
}

void synchronised() {
  Tenant* const tenant = tenant_if_any();
  tenant->memories().synchronised();
  if (tenant->lock_modes().are_set()) {
    for (std::uint32_t slot = 0; slot < tenant->seats().count(); ++slot) unlock(*tenant, slot);
  }
  for (std::uint32_t slot = 0; slot < tenant->seats().count(); ++slot) {
    if (tenant->gate().is_contended(slot)) tenant->drainer().synchronised(slot);
  }
}

}  // namespace gpumux::shim

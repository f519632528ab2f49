// SPDX-License-Identifier: Apache-2.0
#include "mover/copier/copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "mover/copier/block_hash_function.h"

namespace gpumux::mover {
namespace {

using cuda::CUresult;

HashSeed seed_of(const Copier::Options& options) {
  const bool given = (options.seed.low | options.seed.high) != 0;
  return given ? options.seed : HashSeed::random();
}

}  // namespace

Copier::Copier(const cuda::Driver& driver, HostSlots& host, const Options& options)
    : driver_(driver), host_(host), engine_(driver, options.device, options.hashing, seed_of(options)) {}

// ---- the context

CUresult Copier::context_error() const {
  const auto current = enter();
  if (current.result() != cuda::CUDA_SUCCESS) return current.result();
  return driver_.cuStreamQuery(engine_.out());
}

void Copier::leave() {
  engine_.close();
  for (Batch& batch : batches_) batch = Batch{};
}

void Copier::wait() {
  const auto current = enter();
  for (const cuda::CUstream stream : {engine_.out(), engine_.in(), engine_.hash_stream()})
    driver_.cuStreamSynchronize(stream);
}

// ---- hashing

std::uint32_t Copier::room() {
  if (!engine_.can_hash()) return savings_ < 2 * kCopiesInFlight ? UINT32_MAX : 0;
  std::uint32_t most = 0;
  for (Batch& batch : batches_) {
    look_at(batch);
    if (batch.state == Batch::State::kFilling) return Engine::kBatchBlocks - batch.blocks;
    if (batch.state == Batch::State::kFree) most = Engine::kBatchBlocks;
  }
  return most;
}

Copier::Saving Copier::save(cuda::CUdeviceptr address, std::uint32_t blocks, Content& content) {
  Saving saving;
  saving.address_ = address;
  saving.content_ = &content;
  saving.blocks_.resize(blocks);
  saving.to_copy_ = blocks;
  ++savings_;
  if (!engine_.can_hash()) return saving;
  Batch* chosen = nullptr;
  for (Batch& batch : batches_) {
    if (batch.state == Batch::State::kFilling && batch.blocks + blocks <= Engine::kBatchBlocks) chosen = &batch;
    if (batch.state == Batch::State::kFree && chosen == nullptr) chosen = &batch;
  }
  if (chosen == nullptr) return saving;  // more than `room`: it is copied as a whole
  chosen->state = Batch::State::kFilling;
  saving.stage_ = Stage::kHashing;
  saving.batch_ = static_cast<std::uint32_t>(chosen - batches_);
  saving.first_block_ = chosen->blocks;
  ++chosen->savings;
  for (std::uint32_t i = 0; i < blocks; ++i)
    engine_.batch_addresses(saving.batch_)[chosen->blocks++] = address + i * kBlockBytes;
  return saving;
}

void Copier::launch() {
  for (std::uint32_t i = 0; i < Engine::kBatches; ++i) {
    Batch& batch = batches_[i];
    if (batch.state != Batch::State::kFilling) continue;
    const CUresult result = engine_.launch_hash(i, batch.blocks, &batch.event);
    batch.state = result == cuda::CUDA_SUCCESS ? Batch::State::kRunning : Batch::State::kFailed;
  }
}

void Copier::look_at(Batch& batch) {
  if (batch.state == Batch::State::kRunning) {
    CUresult error = cuda::CUDA_SUCCESS;
    const GpuState seen = engine_.state_of(batch.event, engine_.hash_stream(), &error);
    if (seen == GpuState::kPending) return;
    engine_.give(std::exchange(batch.event, nullptr));
    batch.state = seen == GpuState::kDone ? Batch::State::kDone : Batch::State::kFailed;
  }
  if (batch.state >= Batch::State::kDone && batch.savings == 0) batch = Batch{};
}

void Copier::leave_batch(const Saving& saving) {
  Batch& batch = batches_[saving.batch_];
  if (batch.savings == 0) return;  // the context was lost in between
  --batch.savings;
  look_at(batch);
}

// Is a block that the hash says need not be copied really what it is believed to be? Reads all of it.
Copier::Match Copier::matches(const Saving& saving, std::uint32_t block) const {
  std::vector<std::uint32_t> content(kBlockBytes / sizeof(std::uint32_t));
  const cuda::CUdeviceptr address = saving.address_ + block * kBlockBytes;
  const CUresult result = driver_.cuMemcpyDtoHAsync_v2(content.data(), address, kBlockBytes, engine_.hash_stream());
  const CUresult waited = driver_.cuStreamSynchronize(engine_.hash_stream());
  if (result != cuda::CUDA_SUCCESS || waited != cuda::CUDA_SUCCESS) return Match::kUnknown;
  const Saving::Plan& plan = saving.blocks_[block];
  const bool same =
      plan.fate == Saving::Fate::kConstant
          ? std::all_of(content.begin(), content.end(), [&](std::uint32_t word) { return word == plan.word; })
          : std::memcmp(content.data(), (*saving.content_)[block].slot.address(), kBlockBytes) == 0;
  return same ? Match::kYes : Match::kNo;
}

// ---- saving

Copier::Progress Copier::look(Saving& saving, CUresult* error) {
  if (saving.stage_ == Stage::kHashing) {
    Batch& batch = batches_[saving.batch_];
    look_at(batch);
    if (batch.state == Batch::State::kDone) saving.stage_ = Stage::kHashed;
    if (batch.state == Batch::State::kFailed) {
      leave_batch(saving);
      saving.stage_ = Stage::kPlanned;
    }
  } else if (saving.stage_ == Stage::kCopying) {
    const GpuState seen = engine_.state_of(saving.event_, engine_.out(), &saving.error_);
    if (seen == GpuState::kPending) return Progress::kUnderWay;
    engine_.give(std::exchange(saving.event_, nullptr));
    --copying_;
    saving.stage_ = saving.error_ == cuda::CUDA_SUCCESS ? Stage::kDone : Stage::kFailed;
    if (saving.stage_ == Stage::kDone) count(saving);
  }
  if (saving.error_ != cuda::CUDA_SUCCESS) *error = saving.error_;
  switch (saving.stage_) {
    case Stage::kHashing:
    case Stage::kCopying: return Progress::kUnderWay;
    case Stage::kHashed:
    case Stage::kPlanned: return Progress::kWaits;
    case Stage::kDone: return Progress::kDone;
    case Stage::kFailed: break;
  }
  return Progress::kFailed;
}

// Which blocks are copied?
void Copier::plan(Saving& saving) {
  const BlockHashResult* results = engine_.batch_results(saving.batch_) + saving.first_block_;
  const Content& content = *saving.content_;
  saving.to_copy_ = 0;
  for (std::uint32_t i = 0; i < saving.blocks_.size(); ++i) {
    Saving::Plan& plan = saving.blocks_[i];
    plan.hashed = true;
    plan.hash = {results[i].low, results[i].high};
    plan.word = results[i].first_word;
    const Block* known = content.empty() ? nullptr : &content[i];
    if (results[i].is_constant == 1) {
      plan.fate = Saving::Fate::kConstant;
    } else if (known != nullptr && known->kind == Block::Kind::kCopied && known->hashed && known->hash == plan.hash) {
      plan.fate = Saving::Fate::kClean;
    }
    if (plan.fate != Saving::Fate::kCopy && saving.verifies_) {
      switch (matches(saving, i)) {
        case Match::kYes: break;
        case Match::kNo: ++saving.wrong_hashes_; [[fallthrough]];
        case Match::kUnknown: plan.fate = Saving::Fate::kCopy;
      }
    }
    if (plan.fate == Saving::Fate::kCopy) ++saving.to_copy_;
  }
  leave_batch(saving);
  saving.stage_ = saving.to_copy_ == 0 ? Stage::kDone : Stage::kPlanned;
  if (saving.stage_ == Stage::kDone) count(saving);
}

// Host memory for every block that needs a copy. False: there is not enough; what was found is kept.
bool Copier::find_slots(Saving& saving) {
  Content& content = *saving.content_;
  const auto count = static_cast<std::uint32_t>(saving.blocks_.size());
  content.resize(count);
  const auto lacks = [&](std::uint32_t i) { return saving.blocks_[i].fate == Saving::Fate::kCopy && !content[i].slot; };
  std::vector<HostSlot> found;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!lacks(i)) continue;
    if (found.empty()) {
      // All that are missing in a row from here on, so that one copy can fill them.
      std::uint32_t row = 0;
      while (i + row < count && lacks(i + row)) ++row;
      while (host_.take(row, &found) == 0) {
        if (!host_.borrow()) return false;
      }
      std::reverse(found.begin(), found.end());
    }
    content[i].slot = found.back();
    content[i].kind = Block::Kind::kNone;
    found.pop_back();
  }
  return true;
}

CUresult Copier::submit(Saving& saving) {
  Content& content = *saving.content_;
  const auto count = static_cast<std::uint32_t>(saving.blocks_.size());
  std::uint32_t i = 0;
  while (i < count) {
    if (saving.blocks_[i].fate != Saving::Fate::kCopy) {
      ++i;
      continue;
    }
    const std::uint32_t first = i;
    do {
      // From here on the slot holds neither the old content nor yet the new one.
      content[i].kind = Block::Kind::kNone;
      host_.begin_writing(content[i].slot);
      ++i;
    } while (i < count && saving.blocks_[i].fate == Saving::Fate::kCopy &&
             content[i - 1].slot.is_followed_by(content[i].slot));
    if (const CUresult result = host_.ensure_registered(content[first].slot); result != cuda::CUDA_SUCCESS)
      return result;
    const CUresult result = driver_.cuMemcpyDtoHAsync_v2(
        content[first].slot.address(), saving.address_ + first * kBlockBytes, (i - first) * kBlockBytes, engine_.out());
    if (result != cuda::CUDA_SUCCESS) return result;
  }
  // Without an event the stream is asked, which is later, and as right.
  engine_.record(engine_.out(), &saving.event_);
  return cuda::CUDA_SUCCESS;
}

Copier::Progress Copier::go_on(Saving& saving, CUresult* error) {
  if (saving.stage_ == Stage::kHashed) plan(saving);
  if (saving.stage_ == Stage::kDone) return Progress::kDone;
  if (copying_ == kCopiesInFlight) return Progress::kWaits;
  if (!find_slots(saving)) return Progress::kNoHost;
  saving.error_ = submit(saving);
  saving.stage_ = Stage::kCopying;
  ++copying_;
  if (saving.error_ != cuda::CUDA_SUCCESS) *error = saving.error_;
  return Progress::kUnderWay;
}

void Copier::end(Saving& saving) {
  if (saving.stage_ <= Stage::kHashed) leave_batch(saving);
  if (saving.stage_ == Stage::kCopying) --copying_;
  engine_.give(std::exchange(saving.event_, nullptr));
  --savings_;
}

void Copier::count(Saving& saving) {
  for (const Saving::Plan& plan : saving.blocks_) {
    switch (plan.fate) {
      case Saving::Fate::kCopy: saving.copied_ += kBlockBytes; break;
      case Saving::Fate::kClean: saving.clean_ += kBlockBytes; break;
      case Saving::Fate::kConstant: saving.constant_ += kBlockBytes; break;
    }
  }
}

void Copier::commit(Saving& saving) {
  end(saving);
  Content& content = *saving.content_;
  content.resize(saving.blocks_.size());
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Saving::Plan& plan = saving.blocks_[i];
    Block& block = content[i];
    switch (plan.fate) {
      case Saving::Fate::kCopy:
        block.kind = Block::Kind::kCopied;
        block.hash = plan.hash;
        block.hashed = plan.hashed;
        break;
      case Saving::Fate::kClean: break;
      case Saving::Fate::kConstant:
        host_.give(block.slot);
        block = Block{};
        block.kind = Block::Kind::kConstant;
        block.word = plan.word;
        break;
    }
  }
}

void Copier::keep(Saving& saving) {
  end(saving);
  for (Block& block : *saving.content_) {
    if (block.kind == Block::Kind::kCopied) continue;
    host_.give(block.slot);
    block = Block{};
  }
}

// ---- loading

CUresult Copier::load(Loading& loading, cuda::CUdeviceptr address, const Content& content) {
  const std::size_t count = content.size();
  for (std::size_t i = 0; i < count && loading.error_ == cuda::CUDA_SUCCESS;) {
    const std::size_t first = i++;
    const Block& block = content[first];
    const cuda::CUdeviceptr to = address + first * kBlockBytes;
    if (block.kind == Block::Kind::kConstant) {
      while (i < count && content[i].kind == Block::Kind::kConstant && content[i].word == block.word) ++i;
      loading.error_ = driver_.cuMemsetD32Async(to, block.word, (i - first) * (kBlockBytes / 4), engine_.in());
    } else if (block.kind == Block::Kind::kCopied) {
      while (i < count && content[i].kind == Block::Kind::kCopied &&
             content[i - 1].slot.is_followed_by(content[i].slot))
        ++i;
      loading.error_ = host_.ensure_registered(block.slot);
      if (loading.error_ != cuda::CUDA_SUCCESS) break;
      loading.error_ = driver_.cuMemcpyHtoDAsync_v2(to, block.slot.address(), (i - first) * kBlockBytes, engine_.in());
      loading.copied_ += (i - first) * kBlockBytes;
    }
  }
  if (loading.error_ == cuda::CUDA_SUCCESS) engine_.record(engine_.in(), &loading.event_);
  return loading.error_;
}

Copier::Progress Copier::look(Loading& loading, CUresult* error) {
  const GpuState seen = engine_.state_of(loading.event_, engine_.in(), &loading.error_);
  if (seen == GpuState::kPending) return Progress::kUnderWay;
  engine_.give(std::exchange(loading.event_, nullptr));
  if (loading.error_ == cuda::CUDA_SUCCESS) return Progress::kDone;
  *error = loading.error_;
  return Progress::kFailed;
}

}  // namespace gpumux::mover

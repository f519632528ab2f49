// SPDX-License-Identifier: Apache-2.0
// The pager's part in sharing memory: pins, peers, descriptors.
#include <unistd.h>

#include <algorithm>

#include "pager/pager.h"

namespace gpumux::pager {

using cuda::CUresult;

CUresult Pager::pin_locked(const Found& found, PinReason reason) {
  if (found.range == nullptr || found.range->is_doomed()) return cuda::CUDA_ERROR_INVALID_VALUE;
  Range& range = *found.range;
  // A chunk that is being moved is on neither side.
  if (range.claims != 0 || range.resident_bytes() != range.bytes) return cuda::CUDA_ERROR_NOT_READY;
  // A device may go on using what was registered with it after that has been taken back.
  if (reason == PinReason::kRdma) {
    for (Chunk& chunk : range.chunks) chunk.share();
  }
  ++range.pins[static_cast<std::size_t>(reason)];
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::pin(cuda::CUdeviceptr address, PinReason reason) {
  const base::Locked locked(state_.mutex);
  return pin_locked(find_locked(address), reason);
}

CUresult Pager::unpin(cuda::CUdeviceptr address, PinReason reason) {
  const base::Locked locked(state_.mutex);
  const Found found = find_locked(address);
  if (found.range == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::uint32_t& count = found.range->pins[static_cast<std::size_t>(reason)];
  if (count == 0 || reason == PinReason::kImported) return cuda::CUDA_ERROR_INVALID_VALUE;
  --count;
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::export_pieces(cuda::CUdeviceptr address, std::vector<ExportedPiece>* pieces, std::uint64_t* offset) {
  Range* range = nullptr;
  {
    const base::Locked locked(state_.mutex);
    const Found found = find_locked(address);
    range = found.range;
    // Legacy IPC is for what cuMemAlloc gave.
    if (range == nullptr || range->handle != nullptr || range->foreign) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = pin_locked(found, PinReason::kExported); result != cuda::CUDA_SUCCESS) return result;
    // The claim keeps the range until the export is done, even if another thread of the program frees it.
    state_.claim_all(range->id);
    *offset = found.base - range->base;
  }
  CUresult result = cuda::CUDA_SUCCESS;
  std::vector<ExportedPiece> made;
  for (Chunk& chunk : range->chunks) {
    ExportedPiece piece{-1, chunk.bytes};
    result = state_.mapper.share(chunk, &piece.fd);
    if (result != cuda::CUDA_SUCCESS) break;
    made.push_back(piece);
  }
  {
    const base::Locked locked(state_.mutex);
    state_.unclaim_all(*range);
    if (result != cuda::CUDA_SUCCESS) --range->pins[static_cast<std::size_t>(PinReason::kExported)];
  }
  if (result != cuda::CUDA_SUCCESS) {
    for (const ExportedPiece& piece : made) ::close(piece.fd);
    return result;
  }
  *pieces = std::move(made);
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::import_pieces(cuda::CUcontext context, const std::vector<ExportedPiece>& pieces,
                              cuda::CUdeviceptr* address) {
  std::uint64_t bytes = 0;
  for (const ExportedPiece& piece : pieces) {
    // They come from another process: nothing about them is known to be right.
    if (piece.bytes == 0 || piece.bytes % kBlockBytes != 0 || piece.bytes > UINT64_MAX / 2 - bytes)
      return cuda::CUDA_ERROR_INVALID_VALUE;
    bytes += piece.bytes;
  }
  if (address == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  auto range = std::make_unique<Range>();
  if (const CUresult result = state_.driver.cuMemAddressReserve(&range->base, bytes, 0, 0, 0);
      result != cuda::CUDA_SUCCESS)
    return result;
  range->bytes = bytes;
  range->requested_bytes = bytes;
  range->context = context;
  range->foreign = true;
  range->pins[static_cast<std::size_t>(PinReason::kImported)] = 1;
  {
    const base::Locked locked(state_.mutex);
    range->id = state_.next_id++;
    range->peers = state_.peers;
  }
  std::uint64_t at = 0;
  CUresult result = cuda::CUDA_SUCCESS;
  for (const ExportedPiece& piece : pieces) {
    Chunk chunk;
    chunk.address = range->base + at;
    chunk.bytes = piece.bytes;
    at += piece.bytes;
    result = state_.driver.cuMemImportFromShareableHandle(&chunk.handle,
                                                          reinterpret_cast<void*>(static_cast<std::intptr_t>(piece.fd)),
                                                          cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != cuda::CUDA_SUCCESS) break;
    chunk.step = Chunk::Step::kCreated;
    chunk.owner = Chunk::Owner::kForeign;
    result = state_.mapper.attach(chunk, range->peers);
    if (result == cuda::CUDA_SUCCESS) chunk.place = ChunkPlace::kDevice;
    range->chunks.push_back(std::move(chunk));
    if (result != cuda::CUDA_SUCCESS) break;
  }
  if (result != cuda::CUDA_SUCCESS) {
    state_.destroy(std::move(range));
    return result;
  }
  Range* inserted = nullptr;
  result = insert(std::move(range), &inserted);
  if (result == cuda::CUDA_SUCCESS) *address = inserted->base;
  return result;
}

// Changes the rights of every range, one at a time. New ranges get theirs when they are put into the table.
CUresult Pager::change_peer(cuda::CUdevice peer, bool may) {
  std::vector<std::uint64_t> ids;
  {
    const base::Locked locked(state_.mutex);
    auto& peers = state_.peers;
    const auto found = std::find(peers.begin(), peers.end(), peer);
    if ((found != peers.end()) == may) return cuda::CUDA_SUCCESS;
    if (may) {
      peers.push_back(peer);
    } else {
      peers.erase(found);
    }
    for (const auto& [base, range] : state_.table.all()) {
      // The program itself says which devices may reach memory of a handle: peer access does not cover it.
      if (range->handle == nullptr) ids.push_back(range->id);
    }
  }
  CUresult result = cuda::CUDA_SUCCESS;
  for (const std::uint64_t id : ids) {
    Range* range = nullptr;
    {
      const base::Locked locked(state_.mutex);
      range = state_.claim_all(id);
      if (range == nullptr) continue;
      auto& has = range->peers;
      has.erase(std::remove(has.begin(), has.end(), peer), has.end());
      if (may) has.push_back(peer);
    }
    for (const Chunk& chunk : range->chunks) {
      if (chunk.step < Chunk::Step::kMapped) continue;
      const CUresult changed = state_.mapper.set_peer(chunk, peer, may);
      if (result == cuda::CUDA_SUCCESS) result = changed;
    }
    const base::Locked locked(state_.mutex);
    state_.unclaim_all(*range);
    if (result != cuda::CUDA_SUCCESS && may) break;
  }
  return result;
}

CUresult Pager::enable_peer(cuda::CUdevice peer) {
  const CUresult result = change_peer(peer, true);
  // Half is nothing: a program that is told that it failed does not use it, and must not find it enabled.
  if (result != cuda::CUDA_SUCCESS) change_peer(peer, false);
  return result;
}

CUresult Pager::disable_peer(cuda::CUdevice peer) { return change_peer(peer, false); }

const char* Pager::check() const {
  const base::Locked locked(state_.mutex);
  std::uint64_t evicted = 0;
  std::size_t mappings = 0;
  const Range* previous = nullptr;
  for (const auto& [base, range] : state_.table.all()) {
    if (previous != nullptr && previous->base + previous->bytes > base) return "ranges overlap";
    previous = range.get();
    if (state_.table.by_id(range->id) != range.get()) return "a range is not found by its id";
    if (range->claims != 0) return "a range is claimed though no job runs";
    std::uint64_t bytes = 0;
    for (const Chunk& chunk : range->chunks) {
      if (chunk.address != base + bytes) return "chunks do not follow each other";
      bytes += chunk.bytes;
      if (chunk.claimed) return "a chunk is claimed though no job runs";
      if (chunk.place == ChunkPlace::kDevice && !chunk.is_complete()) return "a resident chunk is not complete";
      if (chunk.place == ChunkPlace::kHost && chunk.saved.empty()) return "an evicted chunk has no blocks";
      for (const SavedBlock& block : chunk.saved) {
        if (chunk.place == ChunkPlace::kHost && block.kind == SavedBlock::Kind::kNone)
          return "an evicted block is lost";
      }
    }
    if (bytes != range->bytes) return "chunks do not cover their range";
    if (const char* wrong = check_handle(*range); wrong != nullptr) return wrong;
    mappings += range->handle != nullptr ? range->handle->mappings.size() : 0;
    if (range->holds_up()) evicted += bytes - range->resident_bytes();
  }
  if (evicted != state_.evicted_bytes.load()) return "evicted_bytes is not the sum of what is evicted";
  if (mappings != state_.mappings.size()) return "mappings are known that no handle has";
  std::uint64_t reusable = 0;
  for (const auto& range : state_.reusable) {
    reusable += range->bytes;
    if (range->resident_bytes() != range->bytes) return "reusable memory is not there";
  }
  std::uint64_t used = 0;
  std::uint64_t committed = 0;
  const auto count = [&](const Range& range) {
    committed += range.committed ? range.bytes : 0;
    for (const Chunk& chunk : range.chunks) used += chunk.takes_room() ? chunk.bytes : 0;
  };
  for (const auto& [base, range] : state_.table.all()) count(*range);
  for (const auto& range : state_.reusable) count(*range);
  for (const auto& range : state_.stuck) count(*range);
  if (used != state_.bounds.used()) return "the room that is used is not the sum of what has memory";
  if (committed != state_.bounds.committed()) return "what is committed is not the sum of what is allocated";
  if (reusable != state_.reusable_bytes) return "reusable_bytes is not the sum of what is reusable";
  return nullptr;
}

}  // namespace gpumux::pager

// SPDX-License-Identifier: Apache-2.0
// The worker's part that answers seats, and asks whether they are there.
#include <poll.h>

#include <cerrno>
#include <span>
#include <utility>

#include "mover/worker.h"
#include "os/unix_socket.h"

namespace gpumux::mover {

using cuda::CUresult;
using wire::MoverBlock;
using wire::MoverResult;

void Worker::answer(Operation& operation, MoverResult result, CUresult error) {
  const bool is_saved = !operation.is_load() && result == MoverResult::kDone;
  const bool is_kept =
      is_saved && operation.kind == Operation::Kind::kSaveToKeep && !operation.seat->is_gone && is_awaited(operation);
  if (is_kept) {
    frames_.offer(operation.seat->number, operation.ticket, operation.seat->domain, std::move(*operation.mapping));
    operation.mapping.reset();
  }
  let_go(operation);  // before the seat frees the memory, and others are promised it
  if (result != MoverResult::kNoHost) --operation.seat->unanswered;
  if (result == MoverResult::kFailed && copier_.context() != nullptr)
    is_broken_ = is_broken_ || (error != cuda::CUDA_ERROR_NOT_READY && copier_.context_error() == error);
  if (operation.seat->is_gone) return;
  std::vector<MoverBlock> blocks;
  if (is_saved) {
    operation.seat->away.saved(operation.chunk, static_cast<std::uint32_t>(operation.said.size()));
    blocks.reserve(operation.content.size());
    for (const Block& block : operation.content) {
      switch (block.kind) {
        case Block::Kind::kNone: blocks.push_back({}); break;
        case Block::Kind::kCopied: blocks.push_back({MoverBlock::Kind::kSlot, number_of(block.slot)}); break;
        case Block::Kind::kConstant: blocks.push_back({MoverBlock::Kind::kConstant, block.word}); break;
      }
    }
  }
  wire::MoverMoved moved{.ticket = operation.ticket,
                         .result = result,
                         .error = error,
                         .blocks = static_cast<std::uint32_t>(blocks.size()),
                         .is_kept = is_kept ? 1u : 0u,
                         .frames = frames_.sizes(operation.seat->domain)};
  if (const auto* const saving = std::get_if<Copier::Saving>(&operation.copying)) {
    moved.copied = saving->copied();
    moved.clean = saving->clean();
    moved.constant = saving->constant();
    moved.wrong_hashes = saving->wrong_hashes();
  } else if (const auto* const loading = std::get_if<Copier::Loading>(&operation.copying)) {
    moved.copied = loading->copied();
  }
  const bool is_theirs = operation.kind == Operation::Kind::kLoadIntoFrame && result == MoverResult::kDone;
  os::FileDescriptor frame = is_theirs ? std::move(operation.memory) : os::FileDescriptor();
  send(*operation.seat, wire::encode_for_mover(moved, blocks, buffer_), std::move(frame));
}

void Worker::send(Seat& seat, std::span<const std::byte> bytes, os::FileDescriptor memory) {
  if (seat.unsent.empty() && os::send_message(seat.connection.get(), bytes, memory.get())) return;
  seat.unsent.push_back({{bytes.begin(), bytes.end()}, std::move(memory)});
}

void Worker::flush(Seat& seat) {
  while (!seat.unsent.empty()) {
    const Unsent& next = seat.unsent.front();
    if (const auto sent = os::send_message(seat.connection.get(), next.bytes, next.memory.get()); !sent) {
      seat.is_gone = seat.is_gone || sent.error().system_errno != EAGAIN;
      return;
    }
    seat.unsent.pop_front();
  }
}

// Whether the seat's connection has ended, heard or not, since the operation was copied.
Worker::Presence Worker::presence(Operation& copied) {
  Seat& seat = *copied.seat;
  if (!seat.presence) {
    pollfd end{seat.connection.get(), POLLRDHUP, 0};
    seat.is_gone = seat.is_gone || ::poll(&end, 1, 0) != 0;
  } else if (copied.asked == 0) {
    copied.asked = seat.asked + 1;
    copied.asked_at = now_;
    // All sockets of a relay have room for the questions of all operations that are mapped at once.
    const auto sent = os::send_message(seat.presence.get(), std::as_bytes(std::span(&copied.asked, 1)));
    seat.is_gone = seat.is_gone || !sent;
    ++seat.asked;
  }
  const bool waits = copied.asked > seat.was_there;
  if (waits && !seat.is_gone && now_ >= copied.asked_at + kPresencePatience) {
    for (Seat& one : seats_) one.is_gone = one.is_gone || (one.presence && one.account == seat.account);
  }
  if (seat.is_gone) return Presence::kGone;
  return waits ? Presence::kAsked : Presence::kThere;
}

void Worker::hear_presence(Seat& seat) {
  std::uint64_t number = 0;
  while (!seat.is_gone) {
    const auto heard = os::receive_message(seat.presence.get(), std::as_writable_bytes(std::span(&number, 1)));
    if (!heard && heard.error().system_errno == EAGAIN) return;
    seat.is_gone = !heard || heard->bytes != sizeof number;
    if (!seat.is_gone) seat.was_there = number;
  }
}

}  // namespace gpumux::mover

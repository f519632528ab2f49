// SPDX-License-Identifier: Apache-2.0
#include "client/mover_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/no_fork.h"
#include "os/unix_socket.h"

namespace gpumux::client {
namespace {

using wire::MoverBlock;

// A connection that is given anew is a new one at once: so long may a wait look at the old one.
constexpr int kLookMs = 10;

std::vector<MoverBlock> blocks_of(const pager::Saved& saved) {
  std::vector<MoverBlock> blocks;
  blocks.reserve(saved.size());
  for (const pager::SavedBlock& block : saved) {
    switch (block.kind) {
      case pager::SavedBlock::Kind::kNone: blocks.push_back({}); break;
      case pager::SavedBlock::Kind::kSlot: blocks.push_back({MoverBlock::Kind::kSlot, block.value}); break;
      case pager::SavedBlock::Kind::kConstant: blocks.push_back({MoverBlock::Kind::kConstant, block.value}); break;
    }
  }
  return blocks;
}

pager::Saved saved_in(std::span<const MoverBlock> blocks) {
  pager::Saved saved(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    saved[i].value = blocks[i].value;
    if (blocks[i].kind == MoverBlock::Kind::kSlot) saved[i].kind = pager::SavedBlock::Kind::kSlot;
    if (blocks[i].kind == MoverBlock::Kind::kConstant) saved[i].kind = pager::SavedBlock::Kind::kConstant;
  }
  return saved;
}

}  // namespace

void MoverConnection::offer(os::FileDescriptor socket, std::uint32_t number) {
  const base::Locked locked(mutex_);
  lose();
  number_.store(number, std::memory_order_relaxed);
  socket_ = os::KeptDescriptor(std::move(socket));
  connections_.fetch_add(1, std::memory_order_release);
  wants_names_ = true;
  names_.clear();
  send_unsaid();
}

bool MoverConnection::is_connected() {
  const base::Locked locked(mutex_);
  const int socket = socket_.get();
  std::byte byte;
  return socket >= 0 && ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

void MoverConnection::close_after_fork() GPUMUX_NO_THREAD_SAFETY_ANALYSIS {
  socket_.reset();
  memory_.close_after_fork();
}

void MoverConnection::lose() {
  if (!socket_ && !socket_.is_lost()) return;
  socket_.reset();
  connections_.fetch_add(1, std::memory_order_release);
}

bool MoverConnection::send_bytes(std::span<const std::byte> bytes, int memory) {
  const int socket = socket_.get();
  if (socket < 0) return lose(), false;  // the program has closed it
  const auto sent = os::send_message(socket, bytes, memory);
  if (!sent && sent.error().system_errno != EAGAIN) lose();
  return sent.has_value();
}

template <class Message>
bool MoverConnection::send(const Message& message, const pager::Saved& saved, int memory) {
  send_unsaid();
  return unsaid_.empty() && names_.empty() &&
         send_bytes(wire::encode_for_mover(message, blocks_of(saved), buffer_), memory);
}

void MoverConnection::send_unsaid() {
  std::size_t said = 0;
  while (said < unsaid_.size() && send_bytes(unsaid_[said], -1)) ++said;
  unsaid_.erase(unsaid_.begin(), unsaid_.begin() + static_cast<std::ptrdiff_t>(said));
  while (unsaid_.empty() && !names_.empty() && send_bytes(names_.front(), -1)) names_.pop_front();
}

bool MoverConnection::wants_names() {
  const base::Locked locked(mutex_);
  return wants_names_;
}

void MoverConnection::name_all(std::span<const Named> all) {
  const base::Locked locked(mutex_);
  const auto say = [&](const wire::MoverNames& names, const pager::Saved& saved) GPUMUX_REQUIRES(mutex_) {
    const auto bytes = wire::encode_for_mover(names, blocks_of(saved), buffer_);
    names_.emplace_back(bytes.begin(), bytes.end());
  };
  names_.clear();
  for (const Named& one : all) {
    if (one.saved.empty()) continue;
    say({.chunk = one.chunk,
         .blocks = static_cast<std::uint32_t>(one.saved.size()),
         .are_copies = one.is_copy ? 1u : 0u},
        one.saved);
  }
  say({}, {});
  wants_names_ = false;
  send_unsaid();
}

bool MoverConnection::save(std::uint64_t ticket, std::uint64_t chunk, const pager::Saved& saved, int memory,
                           bool may_keep) {
  const base::Locked locked(mutex_);
  if (wants_names_) return false;
  return send(wire::MoverSave{.ticket = ticket,
                              .chunk = chunk,
                              .blocks = static_cast<std::uint32_t>(saved.size()),
                              .verify = verifies_ ? 1u : 0u,
                              .may_keep = may_keep ? 1u : 0u},
              saved, memory);
}

bool MoverConnection::load(std::uint64_t ticket, std::uint64_t chunk, const pager::Saved& saved, int memory) {
  const base::Locked locked(mutex_);
  return send(wire::MoverLoad{.ticket = ticket, .chunk = chunk, .blocks = static_cast<std::uint32_t>(saved.size())},
              saved, memory);
}

void MoverConnection::cancel(std::uint64_t ticket) {
  const base::Locked locked(mutex_);
  send_or_keep(wire::MoverCancel{.ticket = ticket}, {});
}

void MoverConnection::forget(std::uint64_t chunk, const pager::Saved& saved, bool are_copies) {
  const base::Locked locked(mutex_);
  send_or_keep(
      wire::MoverForget{
          .chunk = chunk, .blocks = static_cast<std::uint32_t>(saved.size()), .are_copies = are_copies ? 1u : 0u},
      saved);
}

template <class Message>
void MoverConnection::send_or_keep(const Message& message, const pager::Saved& saved) {
  if (send(message, saved, -1)) return;
  const auto bytes = wire::encode_for_mover(message, blocks_of(saved), buffer_);
  unsaid_.emplace_back(bytes.begin(), bytes.end());
}

void MoverConnection::give(std::uint64_t ticket, bool is_released) {
  const base::Locked locked(mutex_);
  send_or_keep(wire::MoverGiven{.ticket = ticket, .is_released = is_released ? 1u : 0u}, {});
}

void MoverConnection::make_way(std::uint64_t bytes) {
  const base::Locked locked(mutex_);
  send(wire::MoverMakeWay{.bytes = bytes}, {}, -1);  // lost: the seat asks again while it lacks memory
}

std::optional<pager::MoverLink::Answer> MoverConnection::next() {
  const base::NoFork no_fork;  // a child must not keep the memory that comes along
  const base::Locked locked(mutex_);
  send_unsaid();
  const int socket = socket_.get();
  if (socket < 0) {
    lose();
    return std::nullopt;
  }
  auto received = os::receive_message(socket, buffer_);
  if (!received && received.error().system_errno == EAGAIN) return std::nullopt;
  const auto message = received && received->bytes != 0
                           ? wire::decode_from_mover(std::span(buffer_, received->bytes))
                           : base::Result<wire::FromMoverMessage>(base::fail(base::Code::kUnavailable, "it is gone"));
  if (!message) {
    lose();
    return std::nullopt;
  }
  const wire::MoverMoved& moved = message->message;
  Answer answer;
  answer.ticket = moved.ticket;
  answer.is_kept = moved.is_kept != 0;
  answer.frames = moved.frames;
  if (const auto number = memory_.keep(std::move(received->fd))) answer.frame = pager::KeptFrame{&memory_, *number};
  switch (moved.result) {
    case wire::MoverResult::kDone: answer.result = Answer::Result::kDone; break;
    case wire::MoverResult::kNoHost: answer.result = Answer::Result::kNoHost; break;
    case wire::MoverResult::kNoFrame: answer.result = Answer::Result::kNoFrame; break;
    case wire::MoverResult::kLost: answer.result = Answer::Result::kLost; break;
    default: answer.result = Answer::Result::kFailed;
  }
  answer.error = static_cast<cuda::CUresult>(moved.error);
  answer.saved = saved_in(message->blocks);
  answer.copied = moved.copied;
  answer.clean = moved.clean;
  answer.constant = moved.constant;
  answer.wrong_hashes = moved.wrong_hashes;
  return answer;
}

void MoverConnection::wait() {
  pollfd polled{-1, POLLIN, 0};
  {
    const base::Locked locked(mutex_);
    polled.fd = socket_.get();
  }
  ::poll(&polled, 1, kLookMs);
}

}  // namespace gpumux::client

// SPDX-License-Identifier: Apache-2.0
#include "mover/worker.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <span>
#include <utility>

#include "os/unix_socket.h"

namespace gpumux::mover {
namespace {

// A sixth of the time that copying a chunk of 64 MiB takes.
constexpr base::Duration kPoll = std::chrono::microseconds(200);
// A guess: another program ends, or gives up memory.
constexpr base::Duration kOpenPause = std::chrono::milliseconds(100);
// A guess: a chunk of host memory is made, or comes back, in some milliseconds.
constexpr base::Duration kShortPause = std::chrono::milliseconds(5);

}  // namespace

using cuda::CUresult;
using wire::MoverBlock;
using wire::MoverResult;

namespace {

std::uint32_t number_in(const Books& books, const HostSlot& slot) {
  return static_cast<std::uint32_t>(slot.chunk->memory.id) * books.slots_per_chunk() + slot.index;
}

}  // namespace

std::uint32_t Worker::number_of(const HostSlot& slot) const { return number_in(books_, slot); }

HostSlot Worker::slot_of(std::uint32_t number) const {
  return host_.find(number / books_.slots_per_chunk(), number % books_.slots_per_chunk());
}

bool adopt(HostSlots& host, Books& books, const HostChunk& chunk) {
  const std::uint32_t count = books.slots_per_chunk();
  if (chunk.bytes != count * kBlockBytes || chunk.id >= books.slots() / count) return false;
  std::vector<bool> used(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto slot = static_cast<std::uint32_t>(chunk.id) * count + i;
    // A copy to it was under way, and is lost.
    if (books.state_of(slot) == Books::State::kWriting) books.released(slot);
    used[i] = books.state_of(slot) != Books::State::kFree;
  }
  return host.adopt(chunk, std::move(used));
}

void BookKeeper::writing(const HostSlot& slot) { books_.writing(number_in(books_, slot)); }
void BookKeeper::given(const HostSlot& slot) { books_.released(number_in(books_, slot)); }

Worker::Worker(const cuda::Driver& driver, cuda::CUdevice device, HostSlots& host, Books& books)
    : driver_(driver),
      device_(device),
      host_(host),
      books_(books),
      copier_(driver, host, {.device = device, .hashing = true, .seed = {}}),
      owners_(books.owners()),
      busy_(books.slots()) {}

Worker::~Worker() {
  copier_.wait();
  for (Operation& operation : mapped_) let_go(operation);
  copier_.leave();
}

// ---- hearing

void Worker::add(SeatNumber number, os::FileDescriptor connection, Domain domain, os::FileDescriptor presence,
                 std::uint64_t account) {
  // A seat has one connection. It has lost the earlier one, or does not need it any more.
  for (Seat& seat : seats_) seat.is_gone = seat.is_gone || seat.number == number;
  Seat& seat = seats_.emplace_back();
  seat.number = number;
  seat.domain = domain;
  seat.connection = std::move(connection);
  seat.presence = std::move(presence);
  seat.account = account;
}

void Worker::remove(SeatNumber number) {
  for (Seat& seat : seats_) seat.is_gone = seat.is_gone || seat.number == number;
  bounds_.erase(number);
  removed_.push_back(number);
}

void Worker::forget_removed() {
  std::erase_if(removed_, [this](SeatNumber number) {
    const auto is_its = [number](const Seat& seat) { return seat.number == number; };
    if (std::any_of(seats_.begin(), seats_.end(), is_its)) return false;
    if (owners_.erase(number) != 0) release_unnamed(number, std::vector<bool>(books_.slots()));
    return true;
  });
}

void Worker::hear(Seat& seat) {
  for (int heard = 0; heard < kMostHeard && queued_.size() < kMostQueued; ++heard) {
    if (seat.is_gone || !seat.unsent.empty() || seat.unanswered >= kMostUnanswered) return;
    auto received = os::receive_message(seat.connection.get(), buffer_);
    if (!received) {
      seat.is_gone = received.error().system_errno != EAGAIN;
      return;
    }
    const auto message = wire::decode_to_mover(std::span(buffer_, received->bytes));
    if (!message) {
      seat.is_gone = true;  // or it says what no seat says
      return;
    }
    std::visit([&](const auto& what) { on(seat, what, message->blocks, std::move(received->fd)); }, message->message);
  }
}

// Takes the words of the message as far as the books bear them out. False: a slot is not the seat's.
bool Worker::take_content(Operation& operation) {
  const std::vector<MoverBlock>& blocks = operation.said;
  bool all = true;
  operation.content.assign(blocks.size(), {});
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block& block = operation.content[i];
    switch (blocks[i].kind) {
      case MoverBlock::Kind::kNone: break;
      case MoverBlock::Kind::kConstant:
        block.kind = Block::Kind::kConstant;
        block.word = blocks[i].value;
        break;
      case MoverBlock::Kind::kSlot: {
        const bool may = blocks[i].value < busy_.size() && !busy_[blocks[i].value];
        const auto held = may ? books_.hold(blocks[i].value, operation.owner(i)) : std::nullopt;
        const HostSlot slot = held ? slot_of(blocks[i].value) : HostSlot{};
        if (!slot) {
          all = false;
          break;
        }
        block.kind = Block::Kind::kCopied;
        block.slot = slot;
        block.hashed = held->hashed;
        block.hash = held->hash;
        operation.named.push_back(blocks[i].value);
        busy_[blocks[i].value] = true;
        break;
      }
      default: all = false;
    }
  }
  return all;
}

// No operation works with its slots any more. `is_on_gpu`: what host memory still has of its content are copies.
void Worker::end(Operation& operation, bool is_on_gpu) {
  for (const std::uint32_t slot : operation.named) busy_[slot] = false;
  operation.named.clear();
  for (std::size_t i = 0; is_on_gpu && i < operation.content.size(); ++i) {
    const Block& block = operation.content[i];
    if (block.kind == Block::Kind::kCopied) books_.loaded(number_of(block.slot), operation.owner(i));
  }
}

Worker::Operation& Worker::add_to(std::deque<Operation>& list, Seat& seat, Operation::Kind kind, std::uint64_t ticket,
                                  std::uint64_t chunk, std::span<const MoverBlock> blocks) {
  ++seat.unanswered;
  Operation& operation = list.emplace_back();
  operation.seat = &seat;
  operation.ticket = ticket;
  operation.chunk = chunk;
  operation.kind = kind;
  operation.said.assign(blocks.begin(), blocks.end());
  return operation;
}

void Worker::on(Seat& seat, const wire::MoverSave& save, std::span<const MoverBlock> blocks,
                os::FileDescriptor memory) {
  const auto kind = save.may_keep != 0 ? Operation::Kind::kSaveToKeep : Operation::Kind::kSave;
  Operation& operation = add_to(queued_, seat, kind, save.ticket, save.chunk, blocks);
  operation.memory = std::move(memory);
  operation.verifies = save.verify != 0;
}

void Worker::on(Seat& seat, const wire::MoverLoad& load, std::span<const MoverBlock> blocks,
                os::FileDescriptor memory) {
  if (memory) {
    add_to(queued_, seat, Operation::Kind::kLoad, load.ticket, load.chunk, blocks).memory = std::move(memory);
  } else {
    add_to(asked_, seat, Operation::Kind::kLoadIntoFrame, load.ticket, load.chunk, blocks);
  }
}

// A seat has room for a frame only after the giver has given it. But its message may be heard first, as that is another
// connection. So it is refused when all seats have been heard once more.
void Worker::match_asks() {
  std::deque<Operation> rest;
  for (std::deque<Operation>* const list : {&asking_, &asked_}) {
    for (Operation& ask : *list) {
      if (std::optional<Mapping> frame = frames_.take(ask.seat->domain, ask.bytes())) {
        ask.mapping.emplace(std::move(*frame));
        queued_.push_back(std::move(ask));
      } else if (list == &asked_) {
        rest.push_back(std::move(ask));
      } else {
        // The seat makes its memory. If that is what the driver lacks, it is in frames of other sizes or domains.
        frames_.make_way(ask.bytes());
        answer(ask, MoverResult::kNoFrame);
      }
    }
  }
  asked_.clear();
  asking_ = std::move(rest);
}

void Worker::on(Seat& seat, const wire::MoverGiven& given, std::span<const MoverBlock>, os::FileDescriptor) {
  frames_.answered(seat.number, given.ticket, given.is_released != 0);
}

void Worker::on(Seat&, const wire::MoverMakeWay& need, std::span<const MoverBlock>, os::FileDescriptor) {
  frames_.make_way(need.bytes);
}

void Worker::on(Seat& seat, const wire::MoverCancel& cancel, std::span<const MoverBlock>, os::FileDescriptor) {
  for (std::deque<Operation>* const list : {&queued_, &short_}) {
    const auto found = std::find_if(list->begin(), list->end(), [&](const Operation& one) {
      return one.seat == &seat && one.ticket == cancel.ticket && !one.is_load();
    });
    if (found == list->end()) continue;
    answer(*found, MoverResult::kFailed, cuda::CUDA_ERROR_NOT_READY);
    list->erase(found);
    return;
  }
  for (Operation& operation : mapped_) {
    if (operation.seat == &seat && operation.ticket == cancel.ticket) operation.is_cancelled = true;
  }
}

void Worker::on(Seat& seat, const wire::MoverForget& forget, std::span<const MoverBlock> blocks, os::FileDescriptor) {
  seat.away.forgotten(forget.chunk);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    const std::uint32_t slot = blocks[i].value;
    const Owner owner{seat.number, forget.chunk, i};
    if (blocks[i].kind != MoverBlock::Kind::kSlot || slot >= busy_.size() || busy_[slot]) continue;
    if (forget.are_copies != 0) {
      books_.loaded(slot, owner);
    } else if (books_.take(slot, owner)) {
      host_.give(slot_of(slot));
    }
  }
}

void Worker::on(Seat& seat, const wire::MoverNames& names, std::span<const MoverBlock> blocks, os::FileDescriptor) {
  auto* const some = std::get_if<Seat::NamesSome>(&seat.names);
  if (some == nullptr) {
    seat.is_gone = true;  // each time costs a look at all books
    return;
  }
  some->slots.resize(books_.slots());
  if (blocks.empty()) {
    release_unnamed(seat.number, some->slots);
    seat.names = Seat::HasNamedAll{};
    return;
  }
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    const std::uint32_t slot = blocks[i].value;
    const Owner owner{seat.number, names.chunk, i};
    if (blocks[i].kind != MoverBlock::Kind::kSlot || !books_.find(slot, owner)) continue;
    some->slots[slot] = true;
    if (busy_[slot]) continue;
    if (names.are_copies != 0) {
      books_.loaded(slot, owner);
    } else {
      books_.hold(slot, owner);
    }
  }
  if (names.are_copies == 0) seat.away.saved(names.chunk, names.blocks);
}

// A slot that a message of its earlier connection works with is a copy when that is over, or was named.
void Worker::release_unnamed(SeatNumber seat, const std::vector<bool>& named) {
  for (std::uint32_t slot = 0; slot < books_.slots(); ++slot) {
    if (!named[slot] && !busy_[slot] && books_.take(slot, seat)) host_.give(slot_of(slot));
  }
}

// ---- one chunk

CUresult Worker::open() {
  if (copier_.context() != nullptr) return cuda::CUDA_SUCCESS;
  cuda::CUcontext context = nullptr;
  CUresult result = driver_.cuDevicePrimaryCtxRetain(&context, device_);
  if (result == cuda::CUDA_SUCCESS) {
    result = copier_.open(context);
    if (result != cuda::CUDA_SUCCESS) driver_.cuDevicePrimaryCtxRelease_v2(device_);
  }
  if (std::exchange(open_failed_, result) != result && result != cuda::CUDA_SUCCESS)
    std::fprintf(
        stderr,
        "gpumux-mover: device %d: CUDA error %u when its context was made. No memory leaves this GPU until one "
        "is made, and the mover tries again. If it is error 2 (out of memory), end a program there\n",
        device_, result);
  return result;
}

void Worker::let_go(Operation& operation) {
  if (!operation.mapping) return;
  operation.memory = std::move(*operation.mapping).let_go();
  operation.mapping.reset();
}

// A seat of the same trust domain has a chunk of that size in host memory, beyond those that frames are kept for.
bool Worker::is_awaited(const Operation& saved) const {
  const Domain domain = saved.seat->domain;
  if (domain == 0 || frames_.is_full()) return false;
  std::size_t away = 0;
  for (const Seat& seat : seats_) {
    if (&seat != saved.seat && seat.domain == domain && !seat.is_gone)
      away += seat.away.count(static_cast<std::uint32_t>(saved.said.size()));
  }
  return away > frames_.count(domain, saved.bytes());
}

bool Worker::moves(Domain domain) const {
  const auto is_its = [domain](const Operation& one) { return one.seat->domain == domain; };
  return std::any_of(asking_.begin(), asking_.end(), is_its) || std::any_of(queued_.begin(), queued_.end(), is_its) ||
         std::any_of(mapped_.begin(), mapped_.end(), is_its);
}

// The first message of the seat whose last one began before those of the others. End: there is none.
std::deque<Worker::Operation>::iterator Worker::next_queued(bool is_load) {
  auto next = queued_.end();
  for (auto at = queued_.begin(); at != queued_.end(); ++at) {
    if (at->is_load() == is_load && (next == queued_.end() || at->seat->turn(is_load) < next->seat->turn(is_load)))
      next = at;
  }
  return next;
}

// The next ones of that direction.
void Worker::begin_next(bool is_load) {
  auto mapped =
      std::count_if(mapped_.begin(), mapped_.end(), [&](const Operation& one) { return one.is_load() == is_load; });
  while (static_cast<std::size_t>(mapped) < kMostMapped) {
    const auto next = next_queued(is_load);
    if (next == queued_.end() || (!is_load && copier_.room() < next->said.size())) break;
    next->seat->turn(is_load) = ++turn_;
    Operation& operation = mapped_.emplace_back(std::move(*next));
    queued_.erase(next);
    if (begin(operation)) {
      ++mapped;
    } else {
      mapped_.pop_back();
    }
  }
}

// False: it is answered.
bool Worker::begin(Operation& operation) {
  const bool is_all_there = take_content(operation);
  CUresult result = cuda::CUDA_ERROR_NOT_READY;
  if (operation.is_load() && !is_all_there) {
    end(operation, false);
    answer(operation, MoverResult::kLost);
    return false;
  }
  if (operation.mapping) {
    result = cuda::CUDA_SUCCESS;
  } else if (!operation.seat->is_gone) {
    result = Mapping::make(driver_, device_, std::move(operation.memory), operation.bytes(), &is_broken_,
                           &operation.mapping);
  }
  if (result != cuda::CUDA_SUCCESS) {
    end(operation, !operation.is_load());
    answer(operation, MoverResult::kFailed, result);
    return false;
  }
  const cuda::CUdeviceptr address = operation.mapping->address();
  if (operation.is_load()) {
    auto& loading = operation.copying.emplace<Copier::Loading>();
    copier_.load(loading, address, operation.content);  // `look` has its error
  } else {
    // Of a copy that the mover has done away with nothing is known, and the block is copied.
    operation.copying = copier_.save(address, static_cast<std::uint32_t>(operation.said.size()), operation.content);
    if (operation.verifies) Copier::verify(std::get<Copier::Saving>(operation.copying));
  }
  return true;
}

Worker::Then Worker::advance(Operation& operation) {
  const Then then = operation.is_load() ? advance_load(operation, std::get<Copier::Loading>(operation.copying))
                                        : advance_save(operation, std::get<Copier::Saving>(operation.copying));
  if (then != Then::kGoOn) let_go(operation);
  return then;
}

Worker::Then Worker::advance_save(Operation& operation, Copier::Saving& saving) {
  CUresult error = cuda::CUDA_SUCCESS;
  Copier::Progress progress = copier_.look(saving, &error);
  auto then = Then::kAgain;
  if (progress == Copier::Progress::kWaits) {
    if (may_take(operation)) {
      progress = copier_.go_on(saving, &error);
    } else {
      progress = Copier::Progress::kNoHost;
      then = Then::kBeyondBound;
    }
  }
  switch (progress) {
    case Copier::Progress::kUnderWay:
    case Copier::Progress::kWaits: return Then::kGoOn;
    case Copier::Progress::kNoHost:
      copier_.keep(saving);
      operation.may_take = 0;
      end(operation, true);
      return then;
    case Copier::Progress::kFailed:
      copier_.keep(saving);
      end(operation, true);
      answer(operation, MoverResult::kFailed, error);
      return Then::kOver;
    case Copier::Progress::kDone: break;
  }
  // A seat that is gone does not hear of it. It may have lost the connection before the copy was over, and have gone
  // on: the copy is of two contents.
  const Presence seen = presence(operation);
  if (seen == Presence::kAsked) return Then::kGoOn;
  if (seen == Presence::kGone) {
    copier_.keep(saving);
    end(operation, true);
    answer(operation, MoverResult::kFailed, cuda::CUDA_ERROR_NOT_READY);
    return Then::kOver;
  }
  copier_.commit(saving);
  if (const auto bound = bounds_.find(operation.seat->number); bound != bounds_.end())
    bound->second.used += std::exchange(operation.may_take, 0);
  owners_.insert(operation.seat->number);
  end(operation, false);
  for (std::size_t i = 0; i < operation.content.size(); ++i) {
    const Block& block = operation.content[i];
    if (block.kind == Block::Kind::kCopied)
      books_.written(number_of(block.slot), operation.owner(i), block.hashed, block.hash);
  }
  answer(operation, MoverResult::kDone);
  return Then::kOver;
}

Worker::Then Worker::advance_load(Operation& operation, Copier::Loading& loading) {
  CUresult error = cuda::CUDA_SUCCESS;
  const Copier::Progress progress = copier_.look(loading, &error);
  if (progress == Copier::Progress::kUnderWay) return Then::kGoOn;
  const bool is_done = progress == Copier::Progress::kDone;
  end(operation, false);  // the seat says when it has it: until then this is the only place that counts
  answer(operation, is_done ? MoverResult::kDone : MoverResult::kFailed, error);
  return Then::kOver;
}

// ---- the loop

void Worker::reclaim(std::size_t slots) {
  for (std::size_t i = 0; i < slots; ++i) {
    const auto slot = books_.reclaim(&reclaimed_at_);
    if (!slot) return;
    host_.give(slot_of(*slot));
  }
}

// Counting takes a look at all books. So it is done when the seat may be beyond its bound, and not at each step.
bool Worker::may_take(Operation& save) {
  const auto found = bounds_.find(save.seat->number);
  if (found == bounds_.end() || save.may_take != 0) return true;
  Bound& bound = found->second;
  std::uint64_t under_way = 0;
  for (const Operation& one : mapped_) under_way += one.seat == save.seat ? one.may_take : 0;
  // A block that has a slot needs no other one.
  const std::uint64_t needs = (save.said.size() - save.named.size()) * kBlockBytes;
  const auto is_beyond = [&] { return bound.used + under_way + needs > bound.most; };
  if (is_beyond() && now_ >= bound.counted_at + kShortPause) {
    bound.used = books_.bytes_of(save.seat->number);
    bound.counted_at = now_;
  }
  if (is_beyond()) return false;
  save.may_take = needs;
  return true;
}

// An operation that is over leaves the list. One that lacks host memory waits for it.
void Worker::advance_all(base::TimePoint now) {
  for (auto at = mapped_.begin(); at != mapped_.end();) {
    const Then then = advance(*at);
    if (then == Then::kAgain || then == Then::kBeyondBound) {
      // The daemon has had a moment to give more. From now on copies go that need not be there.
      if (at->is_short && then == Then::kAgain) reclaim(at->said.size());
      if (at->is_cancelled) {
        answer(*at, MoverResult::kFailed, cuda::CUDA_ERROR_NOT_READY);
      } else {
        if (!std::exchange(at->is_short, true)) answer(*at, MoverResult::kNoHost);
        if (short_.empty()) try_short_at_ = now + kShortPause;
        short_.push_back(std::move(*at));
      }
    }
    at = then == Then::kGoOn ? std::next(at) : mapped_.erase(at);
  }
}

std::optional<base::Duration> Worker::step(base::TimePoint now) {
  now_ = now;
  for (Seat& seat : seats_) {
    flush(seat);
    hear(seat);
    if (seat.presence) hear_presence(seat);
  }
  if (!seats_.empty()) seats_.splice(seats_.end(), seats_, seats_.begin());
  match_asks();
  if (!short_.empty() && now >= try_short_at_) {
    queued_.insert(queued_.begin(), std::make_move_iterator(short_.begin()), std::make_move_iterator(short_.end()));
    short_.clear();
  }
  // With the first seat: when memory has to move the GPU may be too full for a context.
  if (copier_.context() == nullptr && (!queued_.empty() || (!seats_.empty() && now >= open_again_at_))) {
    open_again_at_ = now + kOpenPause;
    if (const CUresult result = open(); result != cuda::CUDA_SUCCESS) {
      for (Operation& operation : queued_) answer(operation, MoverResult::kFailed, result);
      queued_.clear();
    }
  }
  if (!queued_.empty() || !mapped_.empty()) {
    // Without its context no stream says whether work is under way. So nothing goes on until it can be entered.
    const auto current = copier_.enter();
    if (current.result() == cuda::CUDA_SUCCESS) {
      begin_next(false);
      copier_.launch();
      begin_next(true);
      advance_all(now);
    }
  }
  for (const Seat& seat : seats_) {
    if (seat.is_gone) frames_.gone(seat.number);
  }
  const auto look_at_frames = frames_.look(now, [this](Domain domain) { return moves(domain); });
  seats_.remove_if([](const Seat& seat) { return seat.is_gone && seat.unanswered == 0; });
  if (!removed_.empty()) forget_removed();
  if (!asking_.empty()) return base::Duration(0);
  if (!mapped_.empty() || !queued_.empty()) return kPoll;
  std::optional<base::Duration> next;
  if (copier_.context() == nullptr && !seats_.empty()) next = kOpenPause;
  if (!short_.empty()) next = try_short_at_ - now;
  if (look_at_frames) next = std::min(next.value_or(Frames::kPatience), *look_at_frames - now);
  return next;
}

void Worker::wait(std::optional<base::Duration> most, int wake) {
  std::vector<pollfd> polled{{wake, POLLIN, 0}};
  for (const Seat& seat : seats_) {
    const bool is_heard =
        queued_.size() < kMostQueued && seat.unsent.empty() && seat.unanswered < kMostUnanswered && !seat.is_gone;
    const int events = (is_heard ? POLLIN : 0) | (seat.unsent.empty() || seat.is_gone ? 0 : POLLOUT);
    if (events != 0) polled.push_back({seat.connection.get(), static_cast<short>(events), 0});
    if (seat.presence && !seat.is_gone) polled.push_back({seat.presence.get(), POLLIN, 0});
  }
  timespec time{};
  if (most) {
    time.tv_sec = static_cast<time_t>(most->count() / 1'000'000'000);
    time.tv_nsec = static_cast<long>(most->count() % 1'000'000'000);
  }
  ::ppoll(polled.data(), polled.size(), most ? &time : nullptr, nullptr);
}

}  // namespace gpumux::mover

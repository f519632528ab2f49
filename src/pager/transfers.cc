// SPDX-License-Identifier: Apache-2.0
#include "pager/transfers.h"

#include <utility>

namespace gpumux::pager {

using cuda::CUresult;
using Result = MoverLink::Answer::Result;

namespace {

CUresult error_of(const MoverLink::Answer& answer) {
  switch (answer.result) {
    case Result::kDone: return cuda::CUDA_SUCCESS;
    case Result::kNoHost:
    case Result::kNoFrame:
    case Result::kFailed: return answer.error != cuda::CUDA_SUCCESS ? answer.error : cuda::CUDA_ERROR_UNKNOWN;
    case Result::kLost: break;
  }
  return cuda::CUDA_ERROR_ILLEGAL_STATE;
}

}  // namespace

std::uint64_t Transfers::next_ticket() {
  note_connection();
  return ++last_ticket_;
}

void Transfers::note_connection() {
  if (const std::uint64_t now = link_->connection(); now != connection_) {
    connection_ = now;
    lost_ = last_ticket_;
    frames_ = 0;
  }
}

void Transfers::hear() {
  note_connection();
  while (auto answer = link_->next()) {
    frames_ = answer->frames;
    if (answer->ticket <= lost_) {
      // The connection was replaced before the question went out. No job waits for the answer.
      if (answer->frame) answer->frame->keeper->freed(answer->frame->number);
      continue;
    }
    answers_.insert_or_assign(answer->ticket, std::move(*answer));
  }
}

// Nothing: it is not there yet.
std::optional<MoverLink::Answer> Transfers::answer_to(std::uint64_t ticket) {
  auto found = answers_.find(ticket);
  if (found == answers_.end()) {
    hear();
    found = answers_.find(ticket);
  }
  if (found == answers_.end()) {
    if (ticket > lost_) return std::nullopt;
    MoverLink::Answer none;
    none.result = Result::kFailed;
    none.error = cuda::CUDA_ERROR_NOT_READY;
    return none;
  }
  MoverLink::Answer answer = std::move(found->second);
  answers_.erase(found);
  return answer;
}

Transfers::Saving Transfers::save(int memory, bool may_keep, std::uint32_t blocks, const Saved& saved,
                                  std::uint64_t chunk) {
  Saving saving;
  ++asked_;
  if (link_ != nullptr) {
    saving.chunk_ = chunk;
    saving.ticket_ = next_ticket();
    Saved known = saved;
    known.resize(blocks);
    if (link_->save(saving.ticket_, chunk, known, memory, may_keep)) return saving;
  }
  saving.stage_ = Saving::Stage::kFailed;
  saving.error_ = cuda::CUDA_ERROR_NOT_READY;
  return saving;
}

Transfers::Progress Transfers::look(Saving& saving, CUresult* error) {
  using Stage = Saving::Stage;
  if (saving.stage_ < Stage::kDone) {
    auto answer = answer_to(saving.ticket_);
    if (answer && answer->result == Result::kNoHost) {
      saving.stage_ = Stage::kShort;
      answer = answer_to(saving.ticket_);
    }
    if (!answer) return saving.stage_ == Stage::kShort ? Progress::kNoHost : Progress::kUnderWay;
    saving.error_ = error_of(*answer);
    saving.stage_ = saving.error_ == cuda::CUDA_SUCCESS ? Stage::kDone : Stage::kFailed;
    saving.saved_ = std::move(answer->saved);
    saving.copied_ = answer->copied;
    saving.clean_ = answer->clean;
    saving.constant_ = answer->constant;
    saving.wrong_hashes_ = answer->wrong_hashes;
    saving.is_kept_ = answer->is_kept;
  }
  if (saving.stage_ == Stage::kDone) return Progress::kDone;
  // One that was cancelled has not failed.
  if (!saving.is_cancelled_ || saving.error_ != cuda::CUDA_ERROR_NOT_READY) *error = saving.error_;
  return Progress::kFailed;
}

void Transfers::cancel(Saving& saving) {
  if (!std::exchange(saving.is_cancelled_, true) && link_ != nullptr) link_->cancel(saving.ticket_);
}

void Transfers::commit(Saving& saving, bool is_released, Saved* saved) {
  --asked_;
  if (saving.is_kept_) link_->give(saving.ticket_, is_released);
  *saved = std::move(saving.saved_);
}

void Transfers::keep(Saving& saving, Saved* saved) {
  --asked_;
  if (saving.stage_ != Saving::Stage::kDone) return;
  if (saving.is_kept_) link_->give(saving.ticket_, false);
  // The mover has it, and may do away with it: the GPU's memory counts.
  *saved = std::move(saving.saved_);
  link_->forget(saving.chunk_, *saved, true);
}

void Transfers::discard(Saving& saving, Saved* saved) {
  --asked_;
  if (saving.stage_ != Saving::Stage::kDone) return;
  if (saving.is_kept_) link_->give(saving.ticket_, false);
  forget(saving.saved_, saving.chunk_);
  saved->clear();
}

CUresult Transfers::load(Loading& loading, int memory, const Saved& saved, std::uint64_t chunk) {
  loading.error_ = cuda::CUDA_ERROR_NOT_READY;
  if (link_ == nullptr) return loading.error_;
  loading.ticket_ = next_ticket();
  if (link_->load(loading.ticket_, chunk, saved, memory)) loading.error_ = cuda::CUDA_SUCCESS;
  return loading.error_;
}

Transfers::Progress Transfers::look(Loading& loading, CUresult* error) {
  if (loading.error_ == cuda::CUDA_SUCCESS) {
    const auto answer = answer_to(loading.ticket_);
    if (!answer) return Progress::kUnderWay;
    if (answer->result == Result::kNoFrame) return Progress::kNoFrame;
    loading.frame_ = answer->frame;
    loading.error_ = error_of(*answer);
    loading.copied_ = answer->copied;
  }
  if (loading.error_ == cuda::CUDA_SUCCESS) return Progress::kDone;
  *error = loading.error_;
  return Progress::kFailed;
}

void Transfers::make_way(std::uint64_t bytes) {
  if (link_ != nullptr) link_->make_way(bytes);
}

void Transfers::loaded(const Saved& saved, std::uint64_t chunk) { link_->forget(chunk, saved, true); }

void Transfers::forget(Saved& saved, std::uint64_t chunk) {
  if (!saved.empty()) link_->forget(chunk, saved, false);
  saved.clear();
  saved.shrink_to_fit();
}

void Transfers::wait() {
  if (link_ != nullptr) link_->wait();
}

}  // namespace gpumux::pager

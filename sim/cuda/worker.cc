// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/worker.h"

#include <algorithm>

#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

// Less than this is not worth a sleep, which costs about as much itself.
constexpr base::Duration kWorthSleeping{60'000};

// A kernel looks at least this often whether it must yield or its context broke.
constexpr base::Duration kPiece{250'000};

}  // namespace

void Worker::begin() { due_ = std::max(due_, now()); }

void Worker::pass(base::Duration duration) {
  due_ += duration;
  if (due_ - now() >= kWorthSleeping) sleep_until(due_);
}

void Worker::settle() {
  if (due_ > now()) sleep_until(due_);
}

base::TimePoint Worker::time() const { return std::max(due_, now()); }

void Worker::hold(ComputeTurn& turn) {
  if (held_ == &turn) return;
  let_go();
  turn.acquire();
  held_ = &turn;
  begin();
}

void Worker::let_go() {
  if (held_ != nullptr) held_->release();
  held_ = nullptr;
}

cuda::CUresult Worker::run(Context& context, base::Duration duration, bool shares) {
  ComputeTurn& turn = context.device().turn;
  do {
    if (const cuda::CUresult broken = context.error(); broken != cuda::CUDA_SUCCESS) return broken;
    hold(turn);
    if (turn.must_yield()) {
      let_go();
      continue;
    }
    const base::Duration piece = std::min(duration, kPiece);
    const double slowdown = shares ? turn.slowdown() : 1;
    pass(base::Duration(static_cast<std::int64_t>(static_cast<double>(piece.count()) * slowdown)));
    duration -= piece;
  } while (duration.count() > 0);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult Worker::compute(Context& context, base::Duration duration) { return run(context, duration, false); }

cuda::CUresult Worker::work(Context& context, base::Duration alone) {
  ComputeTurn& turn = context.device().turn;
  turn.begin_sharing();
  const cuda::CUresult result = run(context, alone, true);
  turn.end_sharing();
  return result;
}

cuda::CUresult Worker::wait_on_gpu(Context& context, base::Duration duration) {
  ComputeTurn& turn = context.device().turn;
  if (const cuda::CUresult broken = context.error(); broken != cuda::CUDA_SUCCESS) return broken;
  hold(turn);
  if (turn.must_yield()) {
    let_go();
    hold(turn);
  }
  sleep_until(now() + duration);
  begin();
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpumux::sim

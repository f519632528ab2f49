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

void Worker::wait_for_thaw(Context& context) {
  if (!context.kernels().is_frozen()) return;
  ComputeTurn& turn = context.device().turn;
  if (shares_) turn.end_sharing();
  context.kernels().wait_for_thaw();
  if (shares_) turn.begin_sharing();
}

void Worker::hold(Context& context) {
  ComputeTurn& turn = context.device().turn;
  Freezer& kernels = context.kernels();
  if (held_ == &turn && entered_ == &kernels && !kernels.is_frozen()) return;
  let_go();
  // The turn comes first: it can take long to get, and a freeze does not wait for threads without it.
  for (;;) {
    wait_for_thaw(context);
    if (!turn.acquire(kernels)) continue;
    if (kernels.enter()) break;
    turn.release();
  }
  held_ = &turn;
  entered_ = &kernels;
  begin();
}

void Worker::let_go() {
  if (held_ != nullptr) held_->release();
  held_ = nullptr;
  // After the turn: when a freeze returns, the process has given back the GPU.
  if (entered_ != nullptr) entered_->leave();
  entered_ = nullptr;
}

cuda::CUresult Worker::run(Context& context, base::Duration duration) {
  ComputeTurn& turn = context.device().turn;
  do {
    if (const cuda::CUresult broken = context.error(); broken != cuda::CUDA_SUCCESS) return broken;
    hold(context);
    if (turn.must_yield()) {
      let_go();
      continue;
    }
    const base::Duration piece = std::min(duration, kPiece);
    const double slowdown = shares_ ? turn.slowdown() : 1;
    pass(base::Duration(static_cast<std::int64_t>(static_cast<double>(piece.count()) * slowdown)));
    duration -= piece;
  } while (duration.count() > 0);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult Worker::compute(Context& context, base::Duration duration) { return run(context, duration); }

cuda::CUresult Worker::work(Context& context, base::Duration alone) {
  ComputeTurn& turn = context.device().turn;
  turn.begin_sharing();
  shares_ = true;
  const cuda::CUresult result = run(context, alone);
  shares_ = false;
  turn.end_sharing();
  return result;
}

cuda::CUresult Worker::wait_on_gpu(Context& context, base::Duration duration) {
  ComputeTurn& turn = context.device().turn;
  if (const cuda::CUresult broken = context.error(); broken != cuda::CUDA_SUCCESS) return broken;
  hold(context);
  if (turn.must_yield()) {
    let_go();
    hold(context);
  }
  sleep_until(now() + duration);
  begin();
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpumux::sim

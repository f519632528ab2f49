// SPDX-License-Identifier: Apache-2.0
// While it lives, `context` is the calling thread's current one, if result() is CUDA_SUCCESS.
#pragma once

#include "cuda/driver.gen.h"
#include "cuda/relaxed_capture.h"

namespace gpumux::cuda {

class CurrentContext {
 public:
  CurrentContext(const Driver& driver, CUcontext context)
      : pop_(driver.cuCtxPopCurrent_v2),
        result_(context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : driver.cuCtxPushCurrent_v2(context)) {}
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (result_ == CUDA_SUCCESS) pop_(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  CUresult result() const { return result_; }

 private:
  decltype(Driver::cuCtxPopCurrent_v2) pop_;
  CUresult result_;
};

// The same. While it lives, the thread may also make calls that another thread's capture would forbid.
class WorkingContext {
 public:
  WorkingContext(const Driver& driver, CUcontext context) : current_(driver, context), relaxed_(driver) {}
  CUresult result() const { return current_.result(); }

 private:
  const CurrentContext current_;
  const RelaxedCapture relaxed_;
};

}  // namespace gpumux::cuda

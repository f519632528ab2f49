// SPDX-License-Identifier: Apache-2.0
// While it lives, driver calls of this thread are our own, in relaxed capture mode. They do not fail because a thread
// of the program captures, and they do not break its capture. Where the driver does not know the call it does nothing.
#pragma once

#include "cuda/driver.gen.h"

namespace gpumux::cuda {

class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : exchange_(driver.cuThreadExchangeStreamCaptureMode) {
    if (exchange_ != nullptr) exchanged_ = exchange_(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedCapture() {
    if (exchanged_) exchange_(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  decltype(Driver::cuThreadExchangeStreamCaptureMode) exchange_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

}  // namespace gpumux::cuda

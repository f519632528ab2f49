// SPDX-License-Identifier: Apache-2.0
#include "pager/job.h"

#include <algorithm>

namespace gpumux::pager {

void Job::fail(cuda::CUresult error) {
  if (error_ == cuda::CUDA_SUCCESS) error_ = error;
  stop(JobState::kFailed);
}

void Job::stop(JobState outcome, Stage stage) {
  // The first reason counts, but a failure is always told.
  if (!is_stopping() || outcome == JobState::kFailed) outcome_ = outcome;
  stage_ = std::max(stage_, stage);
}

JobState Job::over(JobState outcome) {
  stage_ = Stage::kOver;
  outcome_ = outcome;
  return outcome;
}

bool Job::context_lost(cuda::CUresult error) {
  // Steps that wait are kPollMicroseconds apart: 0.2 s. LocalCopier::kCopiesInFlight chunks of the largest size are 4
  // GiB, which take 0.17 s at 25 GB/s. So what was under way has ended, whatever the error means.
  constexpr std::uint32_t kMostFailures = 1000;
  return error == cuda::CUDA_ERROR_INVALID_CONTEXT || error == cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED ||
         error == cuda::CUDA_ERROR_DEINITIALIZED || ++context_failures_ > kMostFailures;
}

}  // namespace gpumux::pager

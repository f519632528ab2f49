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

}  // namespace gpumux::pager

// SPDX-License-Identifier: Apache-2.0
// Goal: a job's record is of the job's own control group, or there is none.
#include <gtest/gtest.h>
#include <unistd.h>

#include "slurm/job_record.h"

namespace gpumux::slurm {
namespace {

constexpr containers::Part kPart{20, 200, 0};

TEST(JobRecord, IsOfTheWholeJob) {
  const auto record = record_of(42, "/slurm/uid_7/job_42/step_3/task_0", kPart);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->id, "slurm-42");
  EXPECT_EQ(record->control_group, "/slurm/uid_7/job_42");
  ASSERT_EQ(record->claims.size(), 1u);
  EXPECT_EQ(record->claims[0].on_each, kPart);
}

TEST(JobRecord, IsOfThisJobAlone) {
  for (const char* group : {"/", "", "/slurm/uid_7/job_43/step_0", "/system.slice/slurmd.service",
                            "/docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef/slurm/job_42"}) {
    const auto record = record_of(42, group, kPart);
    ASSERT_FALSE(record) << group;
    EXPECT_EQ(record.error().code, base::Code::kUnsupported);
  }
}

TEST(JobRecord, OfANodeWithoutDaemonsIsForgottenAlready) {
  EXPECT_TRUE(forget_record("/nonexistent", 42));
  EXPECT_FALSE(keep_record("/nonexistent", 42, ::getpid(), kPart));
}

}  // namespace
}  // namespace gpumux::slurm

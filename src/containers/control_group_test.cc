// SPDX-License-Identifier: Apache-2.0
// Goal: a process's container is told by its control group, however runtimes name those.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "containers/control_group.h"

namespace gpumux::containers {
namespace {

const std::string kId = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const std::string kOther(64, 'a');

TEST(ControlGroup, VersionTwoHasOne) {
  EXPECT_EQ(control_group_in("0::/user.slice/user-0.slice\n"), "/user.slice/user-0.slice");
}

TEST(ControlGroup, OfSeveralTheLongestCounts) {
  EXPECT_EQ(control_group_in("12:pids:/kubepods/pod1/" + kId + "\n1:name=systemd:/kubepods\n0::/\n"),
            "/kubepods/pod1/" + kId);
}

TEST(ControlGroup, OneWithAnIdCountsBeforeALongerOneWithout) {
  EXPECT_EQ(control_group_in(
                "6:freezer:/slurm/uid_1/job_7/step_0\n1:name=systemd:/system.slice/slurmd.service/of-a-long-name\n"),
            "/slurm/uid_1/job_7/step_0");
}

TEST(ControlGroup, APathMayHaveColons) { EXPECT_EQ(control_group_in("0::/a:b/c\n"), "/a:b/c"); }

TEST(ControlGroup, WhatIsNoSuchTextHasNone) {
  for (const char* text : {"", "\n", "0", "0:", ":\n:", "0::"}) EXPECT_EQ(control_group_in(text), "") << text;
}

TEST(ControlGroup, OfThisProcessIsReadOfTheKernel) {
  EXPECT_EQ(control_group_of(::getpid()).substr(0, 1), "/");
  EXPECT_EQ(control_group_of(-1), "");
}

TEST(ContainerId, RuntimesNameTheirGroupsByIt) {
  for (const std::string& group :
       {"/kubepods/besteffort/pod5b1f3d3e-0c5a-4a0e-8d8f-6f2e1c6d7a10/" + kId,
        "/kubepods.slice/kubepods-pod5b1f3d3e_0c5a.slice/cri-containerd-" + kId + ".scope",
        "/kubepods.slice/crio-" + kId + ".scope/container", "/system.slice/docker-" + kId + ".scope",
        "/machine.slice/libpod-" + kId + ".scope", "/docker/" + kId,
        // Made inside of the container.
        "/docker/" + kId + "/docker/" + kOther}) {
    EXPECT_EQ(container_id_in(group), kId) << group;
  }
}

TEST(ContainerId, SlurmNamesItsGroupsByTheJob) {
  for (const std::string job : {"/slurm/uid_1000/job_42", "/slurm_n1/uid_1000/job_42",
                                "/system.slice/slurmstepd.scope/job_42", "/system.slice/n1_slurmstepd.scope/job_42"}) {
    for (const std::string& inside : {std::string(), std::string("/step_0/user/task_0"), "/docker/" + kId}) {
      EXPECT_EQ(container_id_in(job + inside), "slurm-42") << job << inside;
      EXPECT_EQ(container_group_in(job + inside), job);
    }
  }
  // Slurm in a container: the container is first.
  EXPECT_EQ(container_id_in("/docker/" + kId + "/slurm/uid_0/job_42"), kId);
  EXPECT_EQ(container_group_in("/docker/" + kId + "/slurm/uid_0/job_42"), "/docker/" + kId);
  for (const char* group : {"/job_42", "/user.slice/job_42/slurm", "/slurm/job_0", "/slurm/job_4x", "/slurm/xjob_4",
                            "/slurm/job_99999999999", "/slurm_job_42"}) {
    EXPECT_EQ(container_id_in(group), "") << group;
    EXPECT_EQ(container_group_in(group), "") << group;
  }
  EXPECT_EQ(slurm_id(42), "slurm-42");
}

TEST(ContainerId, ANameOfAnotherLengthOrWithOtherLettersIsNone) {
  for (const std::string& group : {std::string("/"), std::string(), "/docker/" + kId + "0", "/docker/" + kId.substr(1),
                                   "/docker/" + kId.substr(1) + "g", "/docker/x" + kId}) {
    EXPECT_EQ(container_id_in(group), "") << group;
  }
}

TEST(ControlGroup, LiesInAnotherByWholeNames) {
  EXPECT_TRUE(is_within("/a/b", "/a/b"));
  EXPECT_TRUE(is_within("/a/b/c", "/a/b"));
  EXPECT_TRUE(is_within("/a/b/c", "/a/b/"));
  EXPECT_FALSE(is_within("/a/bc", "/a/b"));
  EXPECT_FALSE(is_within("/a", "/a/b"));
  EXPECT_FALSE(is_within("/a", ""));
}

}  // namespace
}  // namespace gpumux::containers

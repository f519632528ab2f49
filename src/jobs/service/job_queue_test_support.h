// SPDX-License-Identifier: Apache-2.0
// For the tests of the job queue: a real queue in a folder of its own, paused, so that no job runs.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jobs/service/job_queue.h"
#include "os/system_clock.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::jobs {

using namespace std::chrono_literals;

// Has no programs, and remembers changes of jobs.
class TestNode final : public Node {
 public:
  void suspend(uid_t /*uid*/, const std::string& /*run*/) override {}
  void resume(uid_t /*uid*/, const std::string& /*run*/) override {}
  void set_priority(uid_t /*uid*/, const std::string& /*run*/, std::int32_t /*priority*/) override {}
  ProgramsState state(uid_t /*uid*/, const std::string& /*run*/) const override { return {}; }
  void changed(const StateChange& change) override {
    EXPECT_GT(change.lasted, 0s);
    changes.push_back({change.job, change.uid, change.name,
                       std::string(to_string(change.before)) + " > " + std::string(to_string(change.now))});
  }

  struct Changed {
    JobId job;
    std::uint32_t uid;
    std::string name;
    std::string how;
  };
  std::vector<Changed> changes;
};

class Queue : public ::testing::Test {
 protected:
  void SetUp() override {
    queue_.emplace(io_, clock_);
    queue_->open({.state_dir = folder_.path() + "/state", .runtime_dir = folder_.path() + "/run", .is_private = true},
                 {{.uuid = "GPU-0", .capacity = 1 << 30, .is_served = true}}, {}, node_);
    ASSERT_EQ(queue_->unavailable(), "");
    queue_->set_looked_at();
    queue_->set_paused(true, [this](const base::Status& status) { is_paused_ = status.has_value(); });
    ASSERT_TRUE(run_until([this] { return is_paused_; }));
  }

  void TearDown() override {
    if (queue_) queue_->close();
    queue_.reset();
  }

  bool run_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!condition() && std::chrono::steady_clock::now() < deadline) io_.run_one_for(100ms);
    return condition();
  }

  static std::shared_ptr<const Submission> submission() {
    auto made = std::make_shared<Submission>();
    made->name = "job";
    made->document.arguments = {"true"};
    made->document.submitter.uid = ::getuid();
    made->document_text = to_text(made->document);
    return made;
  }

  boost::asio::io_context io_;
  os::SystemClock clock_;
  TestNode node_;
  TemporaryDirectory folder_;
  std::optional<JobQueue> queue_;
  bool is_paused_ = false;
};

}  // namespace gpumux::jobs

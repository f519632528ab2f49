// SPDX-License-Identifier: Apache-2.0
// Goal: the queue goes on whatever becomes of one of those who ask it. Method: a real queue in a folder of its own,
// paused, so that no job runs.
#include "daemon/jobs/job_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <stdexcept>
#include <thread>

#include "daemon/jobs/job_api.h"
#include "daemon/test_support.h"
#include "os/system_clock.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;
using sched::jobs::JobId;

class NoPrograms final : public JobPrograms {
 public:
  void suspend(uid_t /*uid*/, const std::string& /*run*/) override {}
  void resume(uid_t /*uid*/, const std::string& /*run*/) override {}
  void set_priority(uid_t /*uid*/, const std::string& /*run*/, std::int32_t /*priority*/) override {}
  ProgramsState state(uid_t /*uid*/, const std::string& /*run*/) const override { return {}; }
};

class Queue : public ::testing::Test {
 protected:
  void SetUp() override {
    queue_.emplace(io_, clock_);
    queue_->open({.state_dir = folder_.path() + "/state", .runtime_dir = folder_.path() + "/run", .is_private = true},
                 {{.uuid = "GPU-0", .capacity = 1 << 30, .is_served = true}}, {}, programs_);
    ASSERT_EQ(queue_->unavailable(), "");
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
  NoPrograms programs_;
  TemporaryDirectory folder_;
  std::optional<JobQueue> queue_;
  bool is_paused_ = false;
};

// Both are in one commit or in two: what follows the first is settled all the same, now and later.
TEST_F(Queue, OutlivesAReplyThatFails) {
  std::vector<JobId> told;
  const auto tell = [&told](const base::Result<JobQueue::Submitted>& submitted) {
    ASSERT_TRUE(submitted) << submitted.error().message();
    told.push_back(submitted->id);
  };
  queue_->submit(submission(), [](const base::Result<JobQueue::Submitted>&) {
    throw std::runtime_error("as if there were no memory for the answer");
  });
  queue_->submit(submission(), tell);
  EXPECT_NO_THROW(EXPECT_TRUE(run_until([&] { return told.size() == 1; })));
  queue_->submit(submission(), tell);
  EXPECT_NO_THROW(EXPECT_TRUE(run_until([&] { return told.size() == 2; })));
  EXPECT_EQ(told, (std::vector<JobId>{JobId{2}, JobId{3}}));
  EXPECT_EQ(queue_->unfinished(std::nullopt).size(), 3u) << "the one whose answer failed has been handed in";
}

TEST_F(Queue, CountsDependenciesAmongTheBytesOfTheirUser) {
  const auto is_taken = [&](std::size_t dependencies) {
    auto made = std::make_shared<Submission>(*submission());
    made->spec.after.assign(dependencies, {JobId{1}, false, sched::jobs::Dependency::Need::kAny, {}});
    std::optional<bool> taken;
    queue_->submit(made,
                   [&taken](const base::Result<JobQueue::Submitted>& submitted) { taken = submitted.has_value(); });
    EXPECT_TRUE(run_until([&] { return taken.has_value(); }));
    return taken.value_or(false);
  };
  settings::QueueSettings config = queue_->config();
  config.max_bytes = 3 * submission()->document_text.size() + 10 * kDependencyBytes;
  queue_->set_config(config);
  EXPECT_TRUE(is_taken(0));
  EXPECT_TRUE(is_taken(6));
  EXPECT_FALSE(is_taken(6));
  EXPECT_TRUE(is_taken(4));
}

// A daemon that is told to stop while somebody is sent a list.
TEST_F(Queue, IsNotWorkedForBySomebodyWhoHasGone) {
  const auto access = AccessRules::make({}, ::getuid(), true);
  ASSERT_TRUE(access) << access.error().message();
  std::optional<JobApi> api(std::in_place, io_, *queue_, *access);
  std::atomic<bool> goes = false, has_gone = false, worked_beyond = false;
  boost::asio::post(queue_->pool(), [&] {
    while (!goes) std::this_thread::yield();
    const auto until = std::chrono::steady_clock::now() + 50ms;
    while (!has_gone && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    worked_beyond = has_gone.load();
  });
  goes = true;
  api.reset();
  has_gone = true;
  queue_->pool().join();
  EXPECT_FALSE(worked_beyond) << "work on the pool uses the one whose work it is";
}

}  // namespace
}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
// Goal: keys select, filter, sort and ask as the help says, and nothing is changed that was not confirmed.
// Method: keys are pressed on a sample machine; the view and the effects are looked at.
#include <gtest/gtest.h>

#include "top/sample.h"
#include "top/view_state.h"

namespace gpumux::top {
namespace {

class KeysTest : public ::testing::Test {
 protected:
  Effect press(const KeyPress& key) { return top::press(view_, model_, key, kSampleUnixNs); }
  Effect type(const std::string& letters) {
    Effect last;
    for (const char letter : letters) last = press({Key::kText, std::string(1, letter)});
    return last;
  }
  std::string selected_program() const {
    const auto rows = program_rows(model_, view_);
    std::vector<RowId> ids;
    for (const ProgramRow& row : rows) ids.push_back(row.id());
    return rows.empty() ? "" : rows[row_of(view_.programs, ids)].seat->program;
  }
  std::uint64_t selected_job() const {
    const auto rows = job_rows(model_, view_, kSampleUnixNs);
    std::vector<RowId> ids;
    for (const api_client::Job* job : rows) ids.push_back({0, job->id});
    return rows.empty() ? 0 : rows[row_of(view_.jobs, ids)]->id;
  }
  std::string question() const {
    const auto* asked = std::get_if<Confirming>(&view_.mode);
    return asked == nullptr ? "" : asked->change.question;
  }

  Model model_ = sample_model(1);
  View view_;
};

TEST_F(KeysTest, TheCursorMovesInThePane) {
  EXPECT_EQ(selected_program(), "train.py");
  press({Key::kDown});
  EXPECT_EQ(selected_program(), "tune.py");
  type("jj");
  EXPECT_EQ(selected_program(), "notebook");
  press({Key::kDown});
  EXPECT_EQ(selected_program(), "notebook");
  type("k");
  EXPECT_EQ(selected_program(), "serve.py");
  press({Key::kFirst});
  EXPECT_EQ(selected_program(), "train.py");
  press({Key::kTab});
  press({Key::kLast});
  EXPECT_EQ(selected_job(), 5u);
  EXPECT_EQ(selected_program(), "train.py");
}

TEST_F(KeysTest, TheSelectedRowStaysSelectedWhenTheOrderChanges) {
  press({Key::kDown});
  ASSERT_EQ(selected_program(), "tune.py");
  api_client::Snapshot snapshot = *model_.snapshot();
  std::swap(snapshot.gpus[0].seats[2].phase, snapshot.gpus[0].seats[3].phase);
  model_.take_snapshot(std::move(snapshot), kSampleNow);
  EXPECT_EQ(selected_program(), "tune.py");
  // One that is gone gives its place to the next one.
  snapshot = *model_.snapshot();
  snapshot.gpus[0].seats.erase(snapshot.gpus[0].seats.begin() + 2);
  model_.take_snapshot(std::move(snapshot), kSampleNow);
  EXPECT_EQ(selected_program(), "serve.py");
}

TEST_F(KeysTest, AFilterLeavesRowsOutAsItIsTyped) {
  type("/TUNE");
  EXPECT_EQ(program_rows(model_, view_).size(), 1u);
  press({Key::kErase});
  press({Key::kErase});
  EXPECT_EQ(view_.filter, "TU");
  press({Key::kEnter});
  EXPECT_TRUE(std::holds_alternative<Browsing>(view_.mode));
  EXPECT_EQ(selected_program(), "tune.py");
  type("/x");
  press({Key::kEscape});
  EXPECT_EQ(view_.filter, "TU");
  press({Key::kEscape});
  EXPECT_TRUE(view_.filter.empty());
  EXPECT_EQ(program_rows(model_, view_).size(), 4u);
}

TEST_F(KeysTest, ErasingTakesAWholeCharacter) {
  type("/a");
  press({Key::kText, "漢"});
  press({Key::kErase});
  EXPECT_EQ(view_.filter, "a");
  for (int i = 0; i < 100; ++i) type("b");
  EXPECT_LE(view_.filter.size(), 64u);
  // q is a letter here.
  EXPECT_FALSE(std::holds_alternative<Quit>(type("q")));
}

TEST_F(KeysTest, TheOrderIsChosenFromAMenu) {
  type("s");
  ASSERT_TRUE(std::holds_alternative<Sorting>(view_.mode));
  press({Key::kDown});
  press({Key::kDown});
  press({Key::kEnter});
  EXPECT_EQ(view_.program_order, 2u);  // GPU time
  EXPECT_EQ(program_rows(model_, view_).front().seat->program, "notebook");
  type("s");
  press({Key::kUp});
  press({Key::kEscape});
  EXPECT_EQ(view_.program_order, 2u);
  press({Key::kTab});
  type("s");
  press({Key::kUp});
  press({Key::kUp});
  press({Key::kEnter});
  EXPECT_EQ(view_.job_order, 3u);
  EXPECT_EQ(job_rows(model_, view_, kSampleUnixNs).front()->user, "eva");
}

TEST_F(KeysTest, ACancelledJobWasConfirmed) {
  press({Key::kTab});
  press({Key::kDown});
  EXPECT_TRUE(std::holds_alternative<std::monostate>(type("c")));
  EXPECT_EQ(question(), "Cancel job 2 (job-2) of eva?");
  // Every key but yes is a no.
  EXPECT_TRUE(std::holds_alternative<std::monostate>(press({Key::kEnter})));
  EXPECT_TRUE(std::holds_alternative<Browsing>(view_.mode));
  EXPECT_EQ(view_.message.text, "nothing was changed");
  press({Key::kF9});
  const Effect effect = type("y");
  const Change* change = std::get_if<Change>(&effect);
  ASSERT_NE(change, nullptr);
  EXPECT_EQ(change->request.target, "/v1/jobs/2");
  EXPECT_TRUE(std::holds_alternative<Browsing>(view_.mode));
}

TEST_F(KeysTest, TheQuestionsJobStaysTheJobIfTheOrderChanges) {
  press({Key::kTab});
  type("c");
  ASSERT_EQ(question(), "Cancel job 1 (job-1) of tom?");
  model_.take_jobs({});
  const Effect effect = type("y");
  EXPECT_EQ(std::get<Change>(effect).request.target, "/v1/jobs/1");
}

TEST_F(KeysTest, AProgramIsCancelledByItsJob) {
  type("c");
  EXPECT_TRUE(view_.message.is_error);
  EXPECT_NE(view_.message.text.find("kill 4701"), std::string::npos) << view_.message.text;
  ASSERT_TRUE(model_.take_trace(
      "{\"sequence\":100,\"time_ns\":1,\"gpu\":0,\"event\":\"request\",\"tenant\":1,\"pid\":4701,\"job\":2}\n"));
  type("c");
  EXPECT_EQ(question(), "Cancel job 2 (job-2) of eva?");
}

TEST_F(KeysTest, OnlyJobsThatWaitAreHeld) {
  type("H");
  EXPECT_TRUE(view_.message.is_error);
  press({Key::kTab});
  type("H");
  EXPECT_EQ(view_.message.text, "only a job that waits can be held");
  type("jjH");
  EXPECT_EQ(question(), "Hold job 3 (job-3) of tom?");
  type("n");
  press({Key::kLast});
  type("H");
  EXPECT_EQ(question(), "Release job 5 (job-5) of tom?");
}

TEST_F(KeysTest, APriorityIsAskedForAndConfirmed) {
  type("phigh");
  press({Key::kEnter});
  EXPECT_TRUE(view_.message.is_error);
  ASSERT_TRUE(std::holds_alternative<AskingPriority>(view_.mode));
  for (int i = 0; i < 4; ++i) press({Key::kErase});
  type("-3");
  EXPECT_TRUE(view_.message.text.empty());
  press({Key::kEnter});
  EXPECT_EQ(question(), "Change the priority of train.py (4701) of eva from 0 to -3?");
  const Effect effect = type("y");
  EXPECT_EQ(std::get<Change>(effect).request.target, "/v1/tenants/1");
  EXPECT_EQ(std::get<Change>(effect).request.body, "{\"priority\":-3}");
  type("p");
  press({Key::kEscape});
  EXPECT_TRUE(std::holds_alternative<Browsing>(view_.mode));
}

TEST_F(KeysTest, LeftAndRightChooseAGpu) {
  model_ = sample_model(2);
  EXPECT_EQ(program_rows(model_, view_).size(), 8u);
  press({Key::kRight});
  EXPECT_EQ(view_.gpu, 0u);
  EXPECT_EQ(program_rows(model_, view_).size(), 4u);
  press({Key::kRight});
  EXPECT_EQ(view_.gpu, 1u);
  press({Key::kRight});
  EXPECT_FALSE(view_.gpu);
  press({Key::kLeft});
  EXPECT_EQ(view_.gpu, 1u);
  press({Key::kEscape});
  EXPECT_FALSE(view_.gpu);
}

TEST_F(KeysTest, MoreJobsAreAnotherPage) {
  press({Key::kTab});
  press({Key::kLast});
  EXPECT_TRUE(std::holds_alternative<std::monostate>(press({Key::kDown})));
  api_client::JobPage page = model_.jobs();
  page.more = true;
  model_.take_jobs(page);
  EXPECT_TRUE(std::holds_alternative<AskForJobs>(press({Key::kPageDown})));
  EXPECT_EQ(view_.pages, (std::vector<std::uint64_t>{5}));
  EXPECT_TRUE(std::holds_alternative<AskForJobs>(press({Key::kPageUp})));
  EXPECT_TRUE(view_.pages.empty());
}

TEST_F(KeysTest, QuittingAndHelp) {
  EXPECT_TRUE(std::holds_alternative<Quit>(type("q")));
  EXPECT_TRUE(std::holds_alternative<Quit>(press({Key::kF10})));
  for (const char* key : {"?", "h"}) {
    type(key);
    EXPECT_TRUE(std::holds_alternative<Helping>(view_.mode)) << key;
    press({Key::kDown});
    EXPECT_EQ(std::get<Helping>(view_.mode).top, 1u);
    EXPECT_FALSE(std::holds_alternative<Quit>(type("q")));
    EXPECT_TRUE(std::holds_alternative<Browsing>(view_.mode)) << key;
  }
  type("c");
  EXPECT_TRUE(std::holds_alternative<Quit>(press({Key::kInterrupt})));
}

TEST_F(KeysTest, NothingIsThereToChange) {
  model_ = Model("");
  view_ = View();
  for (const char* keys : {"c", "p", "H", "j", "k", "G", "s", " "}) {
    type(keys);
    view_.mode = Browsing{};
  }
  press({Key::kTab});
  for (const char* keys : {"c", "p", "H", "j", "k", "G"}) type(keys);
  EXPECT_TRUE(std::holds_alternative<Browsing>(view_.mode));
}

}  // namespace
}  // namespace gpumux::top

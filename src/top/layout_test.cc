// SPDX-License-Identifier: Apache-2.0
// Goal: a screen of any size shows what is most important, nothing stands where it should not, and no name is obeyed.
// Method: a sample machine is drawn at several sizes; the canvas is read as lines and cells.
#include "top/layout.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>

#include "top/sample.h"

namespace gpumux::top {
namespace {

constexpr Clocks kClocks{kSampleNow, kSampleUnixNs};

class LayoutTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::setlocale(LC_CTYPE, "C.UTF-8");
    ::setenv("TZ", "UTC", 1);
  }

  Screen draw(std::size_t columns, std::size_t rows, bool colours = true, Letters letters = Letters::kUnicode) {
    return top::draw(model_, view_, kClocks, {rows, columns, letters, colours});
  }
  static std::string text(const Screen& screen) {
    std::string all;
    for (std::size_t row = 0; row < screen.canvas.rows(); ++row) all += screen.canvas.line(row) + "\n";
    return all;
  }
  // The first line that has `part`, and its number.
  static std::size_t row_with(const Screen& screen, const std::string& part) {
    for (std::size_t row = 0; row < screen.canvas.rows(); ++row) {
      if (screen.canvas.line(row).find(part) != std::string::npos) return row;
    }
    ADD_FAILURE() << part << " is not on the screen:\n" << text(screen);
    return 0;
  }
  static bool has(const Screen& screen, const std::string& part) {
    return text(screen).find(part) != std::string::npos;
  }

  Model model_ = sample_model(1);
  View view_;
};

TEST_F(LayoutTest, AUsualTerminal) {
  const Screen screen = draw(80, 24);
  EXPECT_EQ(screen.canvas.line(0).substr(0, 19), "gpumux top  22:13:2");
  EXPECT_TRUE(has(screen, "4 programs, 1 holds, 2 wait"));
  const std::size_t gpu = row_with(screen, "GPU 0  NVIDIA H100 80GB HBM3");
  EXPECT_NE(screen.canvas.line(gpu).find("61 C  313 W"), std::string::npos) << text(screen);
  EXPECT_NE(screen.canvas.line(gpu + 1).find("busy"), std::string::npos);
  EXPECT_TRUE(screen.canvas.line(gpu + 1).ends_with(" 97%]")) << text(screen);
  EXPECT_TRUE(screen.canvas.line(gpu + 2).ends_with("] 52.0 GiB of 80.0 GiB, 32.0 GiB evicted")) << text(screen);
  EXPECT_NE(screen.canvas.line(gpu + 3).find("held by a train.py (4701) for 2.00s   next b tune.py (4702): quantum of"),
            std::string::npos)
      << text(screen);
  EXPECT_NE(screen.canvas.line(gpu + 4).find("▏a train.~▏b tune.py"), std::string::npos) << text(screen);
  // Holders, waiters in their order, the rest; then jobs.
  const std::size_t holder = row_with(screen, "holding");
  EXPECT_NE(screen.canvas.line(holder + 1).find("waiting #1"), std::string::npos);
  EXPECT_NE(screen.canvas.line(holder + 2).find("waiting #2"), std::string::npos);
  EXPECT_NE(screen.canvas.line(holder + 3).find("idle"), std::string::npos);
  EXPECT_GT(row_with(screen, "job-1"), holder + 3);
  EXPECT_EQ(screen.canvas.line(21).substr(0, 34), "train.py (4701) of eva is holding:") << text(screen);
  EXPECT_EQ(screen.canvas.line(22), "the GPU") << text(screen);
  EXPECT_EQ(screen.canvas.line(23).substr(0, 13), "q Quit ? Help");
}

TEST_F(LayoutTest, AWideTerminalHasTimelinesOfPrograms) {
  for (const auto& [columns, rows] : {std::pair<std::size_t, std::size_t>{120, 40}, {200, 60}}) {
    const Screen screen = draw(columns, rows);
    EXPECT_NE(screen.canvas.line(row_with(screen, "  a train.py       [")).find("████"), std::string::npos)
        << text(screen);
    EXPECT_TRUE(has(screen, "WHY")) << text(screen);
    const std::string line = screen.canvas.line(row_with(screen, "busy"));
    EXPECT_NE(line.find("memory ["), std::string::npos) << text(screen);
  }
  EXPECT_TRUE(has(draw(200, 60), "daemon in /run/gpumux"));
}

TEST_F(LayoutTest, AReasonThatIsLongTakesTheFreeRows) {
  api_client::JobPage page = model_.jobs();
  std::string why;
  for (int i = 0; i < 40; ++i) why += "word" + std::to_string(i) + " ";
  page.jobs[2].why = why + "end";
  model_.take_jobs(std::move(page));
  view_.pane = Pane::kJobs;
  view_.jobs = {RowId{0, 3}, 2};
  const Screen tall = draw(80, 30);
  const std::size_t first = row_with(tall, "job 3 (job-3) of tom is queued");
  EXPECT_EQ(row_with(tall, "word39 end"), 28U) << text(tall);
  EXPECT_LT(first, 28U);
  EXPECT_LT(row_with(tall, "job-5"), first) << text(tall);
  // Without free rows the line is cut.
  const Screen low = draw(80, 18);
  EXPECT_EQ(row_with(low, "job 3 (job-3) of tom is queued"), 16U) << text(low);
  EXPECT_TRUE(low.canvas.line(16).ends_with("~")) << text(low);
}

TEST_F(LayoutTest, ProgramsThatAreNotUnderGpumuxAreNamed) {
  EXPECT_FALSE(has(draw(80, 24), "not under gpumux"));
  api_client::Snapshot snapshot = *model_.snapshot();
  snapshot.gpus[0].memory.foreign = 12ull << 30;
  snapshot.gpus[0].foreign = {{99, "desktop\x1b[2J", 6ull << 30}};
  model_.take_snapshot(std::move(snapshot), kSampleNow);
  for (const std::size_t columns : {80u, 120u}) {
    const Screen screen = draw(columns, 24);
    EXPECT_TRUE(has(screen, "not under gpumux: desktop?[2J (99, 6.0 GiB)")) << text(screen);
  }
  EXPECT_TRUE(has(draw(200, 24), "x desktop?")) << text(draw(200, 24));
}

TEST_F(LayoutTest, EveryCellOfEverySizeIsDrawnWithinTheScreen) {
  for (const std::uint32_t gpus : {0u, 1u, 2u, 8u, 20u}) {
    model_ = sample_model(gpus);
    for (const std::size_t rows : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 9u, 12u, 24u, 61u}) {
      for (const std::size_t columns : {0u, 1u, 2u, 7u, 19u, 33u, 60u, 80u, 133u, 240u}) {
        for (const Pane pane : {Pane::kPrograms, Pane::kJobs}) {
          for (const Mode& mode :
               {Mode(Browsing{}), Mode(Helping{99}), Mode(Sorting{3}), Mode(Filtering{}),
                Mode(AskingPriority{{"/v1/jobs/1", "job 1", 0}, "5"}), Mode(Confirming{cancel(1)})}) {
            view_.pane = pane;
            view_.mode = mode;
            const Screen screen = draw(columns, rows);
            EXPECT_EQ(screen.canvas.rows(), rows);
            for (std::size_t row = 0; row < rows; ++row)
              EXPECT_LE(cli::display_width(screen.canvas.line(row)), columns) << text(screen);
          }
        }
      }
    }
  }
}

TEST_F(LayoutTest, ManyGpusTakeOneLineEach) {
  model_ = sample_model(8);
  const Screen screen = draw(80, 24);
  for (std::size_t gpu = 0; gpu < 8; ++gpu)
    EXPECT_EQ(screen.canvas.line(1 + gpu).substr(0, 6), "  " + std::to_string(gpu) + "  [") << text(screen);
  // Of more than fit, those around the chosen one.
  model_ = sample_model(40);
  view_.gpu = 30;
  const Screen chosen = draw(80, 24);
  row_with(chosen, " 30  [");
  EXPECT_FALSE(has(chosen, "  0  ["));
  EXPECT_TRUE(has(chosen, "Only GPU 30."));
}

TEST_F(LayoutTest, WithoutColoursLettersTellProgramsApart) {
  const Screen screen = draw(80, 24, false, Letters::kAscii);
  EXPECT_TRUE(has(screen, "memory [aaaaaaaa")) << text(screen);
  EXPECT_TRUE(has(screen, "bbbbb|aaaa")) << text(screen);
  for (std::size_t row = 0; row < 24; ++row) {
    for (const char c : screen.canvas.line(row)) EXPECT_TRUE(c >= ' ' && c < 0x7f) << text(screen);
  }
}

TEST_F(LayoutTest, TheSelectedRowIsShown) {
  api_client::JobPage page;
  for (std::uint64_t id = 1; id <= 60; ++id) {
    api_client::Job& job = page.jobs.emplace_back();
    job.id = id;
    job.name = "x" + std::to_string(id) + "x";
    job.state = "queued";
  }
  page.more = true;
  model_.take_jobs(page);
  view_.pane = Pane::kJobs;
  view_.jobs = {RowId{0, 55}, 54};
  const Screen screen = draw(80, 24);
  const std::size_t row = row_with(screen, "x55x");
  EXPECT_TRUE(screen.canvas.at(row, 0).style.reversed);
  EXPECT_FALSE(has(screen, "x1x"));
  EXPECT_TRUE(has(screen, "more below")) << text(screen);
  EXPECT_TRUE(has(screen, " of 60")) << text(screen);
}

TEST_F(LayoutTest, ADaemonThatIsGoneIsToldAndItsLastWordShown) {
  model_.lose({base::Code::kUnavailable, 0, "no daemon answers at /run/gpumux/api.sock"},
              kSampleUnixNs - 5'000'000'000);
  const Screen gone = draw(80, 24);
  EXPECT_NE(gone.canvas.line(0).find("The daemon is gone since 22:13:15"), std::string::npos) << text(gone);
  EXPECT_TRUE(has(gone, "no daemon answers at"));
  EXPECT_TRUE(has(gone, "train.py"));
  model_.find();
  EXPECT_FALSE(has(draw(80, 24), "gone"));
  model_.lose({base::Code::kTimeout, 0, "late"}, kSampleUnixNs);
  EXPECT_TRUE(has(draw(80, 24), "The daemon gives no answer since"));
}

TEST_F(LayoutTest, QuestionsAndMessagesAreAboveTheKeys) {
  view_.mode = Confirming{cancel(model_.jobs().jobs.front())};
  EXPECT_EQ(draw(80, 24).canvas.line(22), "Cancel job 1 (job-1) of tom?  y/N");
  view_.mode = Filtering{};
  view_.filter = "tune";
  EXPECT_EQ(draw(80, 24).canvas.line(22), "Show only: tune_");
  view_.mode = Browsing{};
  view_.message = {"Not done: you may not", true};
  EXPECT_EQ(draw(80, 24).canvas.line(22), "Not done: you may not");
  view_.message = {};
  EXPECT_EQ(draw(80, 24).canvas.line(22).substr(0, 12), "Only \"tune\".");
}

TEST_F(LayoutTest, AQuestionKeepsItsAnswersInSight) {
  api_client::Job job;
  job.id = 1;
  job.name = std::string(500, 'n');
  view_.mode = Confirming{cancel(job)};
  EXPECT_TRUE(draw(80, 24).canvas.line(22).ends_with("~  y/N"));
}

TEST_F(LayoutTest, TheHelpScrolls) {
  view_.mode = Helping{};
  EXPECT_TRUE(has(draw(80, 24), "quit"));
  view_.mode = Helping{1000};
  EXPECT_TRUE(has(draw(80, 24), "Press any other key to go back."));
  EXPECT_TRUE(has(draw(80, 10), "Press any other key to go back."));
}

TEST_F(LayoutTest, HostileNamesAreCharacters) {
  const std::string hostile =
      "\x1b[2J\x1b]0;owned\x07<b>&amp;\n\r\xff\xe2\x80\xae"
      "evil\xcc\x81\xcc\x81\xcc\x81\xcc\x81 漢字漢字漢字漢字";
  api_client::Snapshot snapshot = *model_.snapshot();
  for (api_client::Gpu& gpu : snapshot.gpus) {
    gpu.name = gpu.remark = gpu.policy = gpu.mode_now = hostile;
    gpu.foreign = {{1, hostile, 1}};
    for (api_client::Seat& seat : gpu.seats) {
      seat.program = seat.user = seat.waits_for = seat.note = seat.phase = hostile;
      seat.container.pod = seat.container.pod_namespace = hostile;
    }
  }
  api_client::JobPage page = model_.jobs();
  for (api_client::Job& job : page.jobs) job.name = job.user = job.state = job.why = job.note = job.command = hostile;
  model_.take_snapshot(std::move(snapshot), kSampleNow);
  model_.take_jobs(std::move(page));
  model_.lose({base::Code::kInternal, 0, hostile}, kSampleUnixNs);
  view_.filter = "evil";
  for (const Letters letters : {Letters::kUnicode, Letters::kAscii}) {
    for (const std::size_t columns : {40u, 80u, 81u, 120u, 200u}) {
      for (const Pane pane : {Pane::kPrograms, Pane::kJobs}) {
        for (const bool is_question : {false, true}) {
          view_.pane = pane;
          view_.mode = is_question ? Mode(Confirming{cancel(model_.jobs().jobs.front())}) : Mode(Browsing{});
          const Screen screen = draw(columns, 40, true, letters);
          for (std::size_t row = 0; row < 40; ++row) {
            EXPECT_EQ(cli::printable(screen.canvas.line(row)), screen.canvas.line(row));
            EXPECT_LE(cli::display_width(screen.canvas.line(row)), columns);
          }
          EXPECT_TRUE(has(screen, "<b>&amp;")) << text(screen);
        }
      }
    }
  }
}

TEST_F(LayoutTest, BeforeTheFirstAnswerItSaysSo) {
  model_ = Model("/run/gpumux");
  EXPECT_TRUE(has(draw(80, 24), "Asking the daemon"));
  model_ = sample_model(0);
  EXPECT_TRUE(has(draw(80, 24), "The daemon serves no GPU"));
}

}  // namespace
}  // namespace gpumux::top

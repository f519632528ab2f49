// SPDX-License-Identifier: Apache-2.0
#include "top/top.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "api_client/conversation.h"
#include "os/system_clock.h"
#include "os/wall_clock.h"
#include "top/curses_terminal.h"
#include "top/layout.h"
#include "top/model.h"
#include "top/view_state.h"

namespace gpumux::top {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using namespace std::chrono_literals;

// A person sees a change within a second.
constexpr auto kTick = 1s;
// A column of the timeline is about a second. A little less than two ticks, for a tick may come early.
constexpr auto kTraceEvery = 1900ms;
// All views of a daemon share an answer that is not older, so that twenty of them cost little more than one.
constexpr base::Duration kStatusAge = 500ms;
// The daemon answers in milliseconds. After this it counts as one that hangs.
constexpr base::Duration kPatience = 5s;
// Some of a job has no event, and changes slowly: its expected start, and the reason for which it waits.
constexpr auto kJobsAtLeastEvery = 10s;
// More rows than a terminal has.
constexpr std::uint64_t kPageJobs = 100;
// The history that is there at the beginning: over a minute of a busy GPU.
constexpr std::uint64_t kFirstEvents = 4000;

class Top {
 public:
  explicit Top(std::string runtime_dir)
      : model_(runtime_dir),
        daemon_(context_, std::move(runtime_dir), kPatience),
        keys_(context_),
        signals_(context_, SIGWINCH, SIGINT, SIGTERM),
        timer_(context_) {
    signals_.add(SIGHUP);
  }

  // The terminal's own handling of signals comes after this.
  base::Status open() {
    auto opened = CursesTerminal::open();
    if (!opened) return tl::unexpected(std::move(opened).error());
    terminal_ = std::move(*opened);
    keys_.assign(CursesTerminal::key_events());
    return {};
  }

  // The signal that has ended it; 0: the user has.
  int run(api_client::Snapshot first) {
    model_.take_snapshot(std::move(first), os::now());
    draw();
    tick();
    wait_for_keys();
    wait_for_signals();
    context_.run();
    return ended_by_;
  }

 private:
  void draw() {
    const Clocks clocks{os::now(), os::wall_clock_ns()};
    const Screen screen = top::draw(model_, view_, clocks, terminal_->look());
    view_.page = screen.page;
    terminal_->show(screen.canvas);
  }

  // ---- the daemon

  void tick() {
    timer_.expires_after(kTick);
    timer_.async_wait([this](const error_code& error) {
      if (!error) tick();
    });
    // A daemon that is slow is not asked for more.
    if (daemon_.is_idle()) {
      look(kStatusAge);
    } else {
      draw();
    }
  }

  void look(base::Duration age) {
    const std::string target = "/v1/status?max_age_ns=" + std::to_string(age.count());
    daemon_.ask({"GET", target}, [this](const base::Result<std::string>& body) {
      auto snapshot = body.and_then(api_client::parse_snapshot);
      if (!snapshot) return lose(snapshot.error());
      model_.find();
      if (daemon_.connections() != connection_) {
        connection_ = daemon_.connections();
        model_.begin_anew();
      }
      model_.take_snapshot(std::move(*snapshot), os::now());
      const auto now = std::chrono::steady_clock::now();
      if (model_.next_event() != 0 && now < trace_due_) return draw();
      trace_due_ = now + kTraceEvery;
      look_at_trace();
    });
  }

  void look_at_trace() {
    const std::uint64_t next = model_.next_event();
    const std::string part = next == 0 ? "limit=" + std::to_string(kFirstEvents) : "since=" + std::to_string(next);
    daemon_.ask({"GET", "/v1/trace?" + part}, [this](const base::Result<std::string>& lines) {
      if (!lines) return lose(lines.error());
      if (const base::Status taken = model_.take_trace(*lines); !taken) return lose(taken.error());
      const auto now = std::chrono::steady_clock::now();
      if (!model_.take_job_changes() && now < jobs_due_) return draw();
      jobs_due_ = now + kJobsAtLeastEvery;
      look_at_jobs();
    });
  }

  // A daemon without a queue has no jobs, and its other answers stand.
  void look_at_jobs() {
    std::string target = "/v1/jobs?limit=" + std::to_string(kPageJobs);
    if (!view_.pages.empty()) target += "&beyond=" + std::to_string(view_.pages.back());
    daemon_.ask({"GET", target}, [this](const base::Result<std::string>& body) {
      auto page = body.and_then(api_client::parse_job_page);
      if (page) {
        model_.take_jobs(std::move(*page));
      } else if (view_.pane == Pane::kJobs) {
        view_.message = {page.error().message(), true};
      }
      draw();
    });
  }

  void lose(const base::Error& error) {
    model_.lose(error, os::wall_clock_ns());
    draw();
  }

  void change(const Change& wanted) {
    view_.message = {"asking the daemon ...", false};
    daemon_.ask(wanted.request, [this, wanted](const base::Result<std::string>& answer) {
      view_.message = outcome_of(wanted, answer);
      trace_due_ = {};
      jobs_due_ = {};
      if (answer) return look(base::Duration::zero());
      draw();
    });
  }

  // ---- the user

  void wait_for_keys() {
    keys_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const error_code& error) {
      if (error || CursesTerminal::has_ended()) return context_.stop();
      while (const auto key = terminal_->read()) {
        if (!press(*key)) return context_.stop();
      }
      draw();
      wait_for_keys();
    });
  }

  // False: the user quits.
  bool press(const KeyPress& key) {
    Effect effect = top::press(view_, model_, key, os::wall_clock_ns());
    if (std::holds_alternative<Quit>(effect)) return false;
    if (std::holds_alternative<AskForJobs>(effect)) look_at_jobs();
    if (const auto* wanted = std::get_if<Change>(&effect)) change(*wanted);
    return true;
  }

  void wait_for_signals() {
    signals_.async_wait([this](const error_code& error, int number) {
      if (error) return;
      if (number == SIGINT) return context_.stop();  // Ctrl-C quits
      if (number != SIGWINCH) {
        ended_by_ = number;
        return context_.stop();
      }
      terminal_->resize();
      draw();
      wait_for_signals();
    });
  }

  std::unique_ptr<CursesTerminal> terminal_;
  asio::io_context context_{1};
  Model model_;
  View view_;
  api_client::Conversation daemon_;
  asio::posix::stream_descriptor keys_;
  asio::signal_set signals_;
  asio::steady_timer timer_;
  std::uint64_t connection_ = 0;  // the one that the trace came by
  std::chrono::steady_clock::time_point trace_due_{};
  std::chrono::steady_clock::time_point jobs_due_{};
  int ended_by_ = 0;
};

}  // namespace

base::Status run_top(const api_client::Options& options) {
  const auto client = api_client::Client::connect(options);
  if (!client) return tl::unexpected(client.error());
  auto first = client->snapshot();
  if (!first) return tl::unexpected(first.error());
  int ended_by = 0;
  {
    Top top(client->runtime_dir());
    GPUMUX_TRY(top.open());
    ended_by = top.run(std::move(*first));
  }
  // The terminal is as it was, and the caller sees which signal it was.
  if (ended_by != 0) ::raise(ended_by);
  return {};
}

}  // namespace gpumux::top

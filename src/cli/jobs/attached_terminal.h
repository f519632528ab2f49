// SPDX-License-Identifier: Apache-2.0
// This terminal, connected with an interactive job's.
//
// Keys go to the job as they are typed, its output comes as it writes it, and both terminals have the same size. One
// key is ours: Ctrl+C leaves, and the job goes on; pressed twice within a second it cancels the job. So the command
// acts on the first press a second later, and still shows the output of that second.
//
// With keys of the user's own choice for leaving, Ctrl+C is a key of the job's.
//
// If the input is no terminal (a pipe, a file), all of it goes to the job, Ctrl+C's byte too, and its end ends nothing.
// SIGINT then acts as the key otherwise does.
//
// The terminal is raw only within run(). run() restores it, whether a signal, an error or a stop ends it. (Ctrl+Z goes
// to the job; SIGTSTP stops us.)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "cli/jobs/signal_pipe.h"
#include "os/file_descriptor.h"
#include "wire/attach_messages.h"

namespace gpumux::cli {

// The command acts on a first press of Ctrl+C after this, if no second one has come. A guess: a person who means both
// is quicker.
inline constexpr base::Duration kSecondPress = std::chrono::seconds(1);

// The meaning of a press of Ctrl+C: of the first one, and of those that follow.
class InterruptRule {
 public:
  enum class Meaning { kLeaveSoon, kCancel, kLeaveNow };

  Meaning press(base::TimePoint now);
  // When the first press is acted on; nothing: none is waiting.
  std::optional<base::TimePoint> leave_at() const { return leave_at_; }
  bool leaves(base::TimePoint now) const { return leave_at_ && now >= *leave_at_; }

 private:
  std::optional<base::TimePoint> leave_at_;
  bool cancelling_ = false;
};

// Finds the keys that leave among those that are typed. Keys that may be their beginning are kept back until the next.
class DetachKeys {
 public:
  // "ctrl-p,ctrl-q", as docker has it: letters, and ctrl- with a letter or one of @ [ \\ ] ^ _. kInvalid says so.
  static base::Result<DetachKeys> parse(std::string_view text);

  bool are_set() const { return !keys_.empty(); }
  // Whether they have been typed. `others`: the keys before, and those that were no beginning.
  bool typed(std::string_view keys, std::string& others);

 private:
  std::string keys_;
  std::size_t matched_ = 0;
};

struct AttachedOptions {
  std::string label;  // of the job, for messages
  int input = 0;
  int output = 1;
  DetachKeys detach_keys = {};                       // none: Ctrl+C leaves
  std::function<base::Status()> cancel;              // asks for the job to be cancelled
  std::function<void(const std::string& line)> say;  // to the user; may hold line breaks "\r\n"
};

enum class AttachedHow {
  kEnded,         // the job has
  kLeft,          // the user has
  kDisconnected,  // the other side has: connect again, or ask the daemon
};

struct AttachedOutcome {
  AttachedHow how = AttachedHow::kDisconnected;
  wire::AttachEnded ended;  // kEnded
  int signal = 0;           // kLeft: by this signal; 0: by Ctrl+C
};

class AttachedTerminal {
 public:
  AttachedTerminal(AttachedOptions options, SignalPipe& signals) : options_(std::move(options)), signals_(signals) {}

  // Connects and copies until something ends. kNotFound, kUnavailable: no process listens there.
  base::Result<AttachedOutcome> run(const std::string& socket_path);

  // The next run() is for another attempt of the job, with output of its own.
  void begin_anew() { next_ = 0; }

 private:
  base::Result<std::optional<AttachedOutcome>> hear_job();
  std::optional<AttachedOutcome> hear_signals();
  std::optional<AttachedOutcome> hear_user();
  std::optional<AttachedOutcome> interrupted();
  void send_input();
  void send_window();
  bool show(std::string_view bytes);
  void stop_here();

  AttachedOptions options_;
  SignalPipe& signals_;
  InterruptRule interrupts_;
  os::FileDescriptor socket_;
  class RawTerminal* raw_ = nullptr;  // within run()
  std::uint64_t next_ = 0;            // the first byte of output that has not been seen
  std::string pending_;               // input that has not been sent yet
  bool input_open_ = true;
  bool input_is_terminal_ = false;
};

// The status that a shell would exit with. Nothing: the message does not say how the job ended.
std::optional<int> exit_status_of_end(const wire::AttachEnded& ended);

}  // namespace gpumux::cli

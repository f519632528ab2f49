// SPDX-License-Identifier: Apache-2.0
// Finds out for each GPU whether its programs get more done at once or by turns (daemon/gpus/gain.h). It asks only
// where memory and standing leave that open, and tells the machine. Knows nothing of messages and sockets.
//
// Owned by the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/gpus/gain.h"
#include "daemon/gpus/leases.h"

namespace gpumux::daemon {

class Trials {
 public:
  // Asks a seat how much it has submitted. It must not call back.
  using Ask = std::function<void(base::SeatId, std::uint32_t question)>;

  explicit Trials(Leases& leases) : leases_(leases) {}
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;
  void on_ask(Ask ask) { ask_ = std::move(ask); }

  // The answer to Ask.
  void measured(base::SeatId seat, std::uint32_t question, std::uint64_t submissions);

  // After each Leases::rest(). True: it has chosen another way for a GPU, and another rest is wanted.
  bool look();
  // When look() is wanted next, although nothing happens.
  std::optional<base::TimePoint> next_deadline() const;

  // Why the mode `auto` has its present way, and which that is, for people. Empty: another mode is set, or there is
  // nothing to choose.
  std::string why(base::GpuIndex gpu) const;
  // Of the last trial on the GPU, if there was one.
  std::optional<Gain::Finding> finding(base::GpuIndex gpu) const;

 private:
  struct OfGpu {
    Gain gain;
    bool has_answer = false;
  };

  bool choose(base::GpuIndex gpu);
  std::string reason_for(base::GpuIndex gpu) const;

  Leases& leases_;
  Ask ask_;
  std::vector<OfGpu> gpus_;    // by index
  Gain::Situation situation_;  // kept only for its memory
};

}  // namespace gpumux::daemon

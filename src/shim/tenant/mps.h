// SPDX-License-Identifier: Apache-2.0
// This process as a client of an MPS server that the daemon has started for its user (docs/how-to/mps.md).
//
// The driver reads where its server is when it is initialised, from the environment. So the library asks the daemon
// before the program's first cuInit, waits for the answer, and sets the variables. The daemon takes the process for a
// client from its answer on, until the process ends.
//
// The program's own CUDA_MPS_PIPE_DIRECTORY stays as it is, unless it came from a parent that the daemon had told. A
// child asks for itself, for the parent's server may have ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "client/agent.h"

namespace gpumux::shim {

class Mps {
 public:
  // The program's own setting.
  explicit Mps(std::optional<bool> wanted) : wanted_(wanted) {}
  Mps(const Mps&) = delete;
  Mps& operator=(const Mps&) = delete;

  // Before the process asks or does not: the variables that came from a parent that the daemon had told of a server are
  // taken out. That server may have ended, and its parts were the parent's.
  static void drop_inherited();
  // Cheap, and before there is a tenant: whether the program says something of MPS, or the daemon invites programs.
  static bool may_be_asked();

  // Whether to ask the daemon: true at most once. `is_possible`: the tenant's connection begins after this, so that an
  // answer comes. Else the process stays without.
  bool begin_asking(bool is_possible);
  // On threads of the program's, after that: until the daemon has answered, or will not.
  void await_answer() const;

  // On the agent's thread. `answers`: the daemon that it is connected to now knows MPS.
  void on_connected(bool answers);
  // Whenever something may have to be said.
  void announce(client::Agent::Announcement& announcement);
  void on_answer(const wire::MpsAnswered& answer);
  // There is no daemon any more that would answer.
  void on_ungated() { finish(Phase::kWithout); }

 private:
  // kOutside: the process has not asked. kAsking: the agent is about to ask, or has asked and has no answer. kWithout:
  // it stays without. kClient: it has its server.
  enum Phase : std::uint32_t { kOutside, kAsking, kWithout, kClient };

  void finish(Phase phase);

  const std::optional<bool> wanted_;
  // Leaves kOutside on a thread of the program's, and kAsking on the agent's. A word to wait on.
  std::atomic<std::uint32_t> phase_{kOutside};
  // The agent's thread alone.
  bool is_told_ = false;  // the daemon of this connection
  std::uint32_t server_ = 0;
  std::uint32_t thread_percentage_ = 100;
};

}  // namespace gpumux::shim

// SPDX-License-Identifier: Apache-2.0
// The daemon's HTTP API, from the user's side: one blocking call each, with a time limit.
//
//   auto client = Client::connect({});               // looks where os::find_runtime_dir says
//   if (!client) ...                                 // kUnavailable: no daemon; kDenied: it does not let us in
//   auto snapshot = client->snapshot();
//
// Errors are sentences for people and say what to do. Their codes: kUnavailable means that there is no daemon to talk
// to (any more), kDenied that it refuses this user, kTimeout that it did not answer in time, kProtocol that what it
// said makes no sense, and kNotFound and kInvalid what the daemon itself says about a request.
//
// One connection per call: a daemon that restarts between two calls is not noticed. Not for use from several threads at
// once. Starts no thread and leaves no descriptor open between calls, so a process may fork or exec around it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api_client/types.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

// How long one call may take. The daemon answers from memory, in well under a millisecond; 10 s is for a machine that
// swaps.
inline constexpr base::Duration kDefaultTimeout = std::chrono::seconds(10);

// The largest answer that is read: 1,000 seats are about 400 KiB of JSON.
inline constexpr std::size_t kMaxAnswerBytes = 64 << 20;

// The longest line of a trace.
inline constexpr std::size_t kMaxTraceLineBytes = 64 << 10;

struct Options {
  std::string runtime_dir;  // empty: os::find_runtime_dir()
  base::Duration timeout = kDefaultTimeout;
};

class Client {
 public:
  // Finds the daemon's socket and makes one connection to see that somebody answers there.
  static base::Result<Client> connect(const Options& options);

  const std::string& runtime_dir() const { return runtime_dir_; }

  base::Result<DaemonInfo> daemon_info() const;
  base::Result<Snapshot> snapshot() const;

  // The bodies as the daemon wrote them, for --json.
  base::Result<std::string> daemon_info_text() const;
  base::Result<std::string> snapshot_text() const;

  // `gpu`: an index, a UUID or "all". `changes`: a JSON object as docs/api.md describes it. The settings now in force.
  base::Result<std::vector<Gpu>> change_settings(std::string_view gpu, const std::string& changes) const;

  // `tenant`: a Seat's. How it stands now.
  base::Result<TenantStanding> change_tenant(std::uint64_t tenant, const std::string& changes) const;

  // Asks a private daemon not to end for want of use while the calling process lives (it keeps its pid across exec).
  base::Status hold() const;

  // Reads the lease trace, oldest event first, one line (without its newline) at a time, until `on_line` returns false,
  // the trace ends, or, with `follow`, the daemon goes (kUnavailable). The time limit is for the first byte, and,
  // unless following, for each further one.
  base::Status trace(bool follow, std::uint64_t since, const std::function<bool(std::string_view line)>& on_line) const;

 private:
  Client(std::string runtime_dir, base::Duration timeout) : runtime_dir_(std::move(runtime_dir)), timeout_(timeout) {}

  base::Result<std::string> call(std::string_view method, const std::string& target, const std::string& body) const;

  std::string runtime_dir_;
  base::Duration timeout_;
};

}  // namespace gpumux::api_client

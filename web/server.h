// SPDX-License-Identifier: Apache-2.0
// The web view: the page, a WebSocket for each view, and the requests of the API that the page needs. It listens on
// 127.0.0.1 and ::1 alone, acts with the rights of its own user, and answers only browsers that have used a link
// (secrets.h).
//
// Every peer is a stranger until it has shown a session, and a request is bounded in size and time before and after.
//
//   GET /, /app.gen.*   the page's files, for every peer: they say nothing of this machine
//   POST /session       the token of a link for a session
//   GET /session        whose view this is
//   GET /live           the WebSocket (feed.h)
//   GET /v1/...         the daemon's answer, for the addresses that request_rules.h lists
//   GET /log/JOB        the end of a job's log
//   PATCH /v1/jobs/JOB  cancel, hold, suspend, or change the priority; refused by a read-only view
//
// Owned by the thread that runs the io_context. One thread of its own reads logs.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace gpumux::web {

struct Settings {
  std::uint16_t port = 0;   // 0: any that is free
  bool read_only = false;   // no change of anything
  std::string runtime_dir;  // of the daemon; empty: os::find_runtime_dir()
  std::string user;         // whose view this is, for the page
  std::string host;
  std::function<void()> on_session = {};  // a link was used. Called on the io_context's thread
};

class Server {
 public:
  // kExists: the port is taken.
  static base::Result<std::unique_ptr<Server>> open(boost::asio::io_context& io, Settings settings);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  // Opens the page in one browser, once. The link before does not work any more.
  base::Result<std::string> new_link();

 private:
  class Impl;
  explicit Server(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace gpumux::web

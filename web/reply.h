// SPDX-License-Identifier: Apache-2.0
// The answers to a browser, and the headers that every answer has.
#pragma once

#include <boost/beast/http.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "web/log_tail.h"
#include "web/page_files.h"
#include "web/upstream.h"

namespace gpumux::web {

struct Reply {
  boost::beast::http::status status = boost::beast::http::status::ok;
  std::string content_type = {};
  std::string body = {};
  std::string set_cookie = {};
  std::optional<std::uint64_t> log_bytes = {};
};

Reply json_reply(std::string body);
// As the daemon's API says it: {"error": {"code": ..., "message": ...}}.
Reply refusal(boost::beast::http::status status, base::Code code, const std::string& message);
Reply reply_of(const base::Error& error);
Reply reply_of(const PageFile& file);
Reply reply_of(const Answer& answer);
Reply reply_of(const LogTail& tail);

boost::beast::http::response<boost::beast::http::string_body> response_of(Reply reply, unsigned version, bool keep);

}  // namespace gpumux::web

// SPDX-License-Identifier: Apache-2.0
// The parts of a call that Client and Conversation share, and the request that every caller of the API makes.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::api_client {

// A connected blocking socket. A full backlog makes connect wait, at most the socket's send timeout; a `timeout` of
// zero: not at all.
base::Result<os::FileDescriptor> connect_stream(const std::string& runtime_dir, base::Duration timeout);

boost::beast::http::request<boost::beast::http::string_body> make_request(std::string_view method,
                                                                          const std::string& target,
                                                                          const std::string& body);

// The code that the daemon names so: "not_found". Nothing: it is none.
std::optional<base::Code> code_named(std::string name);

// The error that an answer with this HTTP status and body says.
base::Error read_error(unsigned http_status, const std::string& body);

// The error of a connection on which `error` ended `doing`. `path`: the socket's.
base::Error connection_error(const boost::system::error_code& error, const std::string& path, const char* doing);
base::Error late_error(const std::string& path, const char* doing);

}  // namespace gpumux::api_client

// SPDX-License-Identifier: Apache-2.0
// The parts of a call that need no connection: the socket, and what errors mean.
#pragma once

#include <boost/system/error_code.hpp>
#include <optional>
#include <string>

#include "api_client/request.h"
#include "base/clock.h"
#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::api_client {

// A connected blocking socket. A full backlog makes connect wait, at most the socket's send timeout; a `timeout` of
// zero: not at all.
base::Result<os::FileDescriptor> connect_stream(const std::string& runtime_dir, base::Duration timeout);

// The code that the daemon names so: "not_found". Nothing: it is none.
std::optional<base::Code> code_named(std::string name);

// The error that an answer with this HTTP status and body says.
base::Error read_error(unsigned http_status, const std::string& body);

// The body of an answer that is no error.
base::Result<std::string> body_of(base::Result<Answer> answer);

// The error of a connection on which `error` ended `doing`. `path`: the socket's.
base::Error connection_error(const boost::system::error_code& error, const std::string& path, const char* doing);

}  // namespace gpumux::api_client

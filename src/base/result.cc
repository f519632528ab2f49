// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace gpumux::base {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kInvalid: return "invalid";
    case Code::kNotFound: return "not found";
    case Code::kExists: return "exists";
    case Code::kDenied: return "denied";
    case Code::kExhausted: return "exhausted";
    case Code::kUnavailable: return "unavailable";
    case Code::kTimeout: return "timeout";
    case Code::kProtocol: return "protocol";
    case Code::kUnsupported: return "unsupported";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

std::string Error::message() const {
  if (system_errno == 0) return what;
  char buffer[128];
  // The GNU strerror_r may return a static string instead of filling the buffer.
  return what + ": " + strerror_r(system_errno, buffer, sizeof buffer);
}

tl::unexpected<Error> fail_errno(int system_errno, std::string what) {
  Code code = Code::kInternal;
  switch (system_errno) {
    case ENOENT:
    case ESRCH:
    case ENODEV:
    case ENXIO: code = Code::kNotFound; break;
    case EEXIST:
    case EADDRINUSE: code = Code::kExists; break;
    case EACCES:
    case EPERM: code = Code::kDenied; break;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC: code = Code::kExhausted; break;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN:
    case ENOTCONN: code = Code::kUnavailable; break;
    case ETIMEDOUT: code = Code::kTimeout; break;
    case EINVAL:
    case ENAMETOOLONG: code = Code::kInvalid; break;
    case ENOSYS:
    case EOPNOTSUPP: code = Code::kUnsupported; break;
    default: break;
  }
  return tl::unexpected<Error>(Error{code, system_errno, std::move(what)});
}

}  // namespace gpumux::base

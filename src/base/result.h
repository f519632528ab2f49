// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value, or an Error with the kind of failure and the step that was being tried.
//
// An Error is made once, where the failure is seen, with a code that a caller can branch on and a sentence for a
// reader. It is reported once, where it is handled. Nothing in our libraries throws.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace gpumux::base {

enum class Code {
  kInvalid,      // the input is wrong and will stay wrong
  kNotFound,     // the named thing does not exist
  kExists,       // the thing to make is there already
  kDenied,       // the asker may not
  kExhausted,    // a limit was reached
  kUnavailable,  // not now; trying again may help
  kTimeout,      // not in the time allowed
  kProtocol,     // the other side broke the protocol
  kUnsupported,  // this system cannot
  kInternal,     // a fault of ours
};

std::string_view to_string(Code code);

struct [[nodiscard]] Error {
  Code code = Code::kInternal;
  int system_errno = 0;  // 0: none
  std::string what;      // "cannot open /run/gpumux/api.sock": no trailing period, no newline

  // The sentence for a reader: `what`, then the system's reason if there is one.
  std::string message() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Code code, std::string what) {
  return tl::unexpected<Error>(Error{code, 0, std::move(what)});
}

// The code follows from the errno (ENOENT: not found, EACCES and EPERM: denied, ...).
tl::unexpected<Error> fail_errno(int system_errno, std::string what);

}  // namespace gpumux::base

// Returns the error of `expression` (a Result or Status) from the enclosing function, which returns a Result itself.
#define GPUMUX_TRY(expression)                                       \
  do {                                                               \
    auto gpumux_try_result = (expression);                           \
    if (!gpumux_try_result) {                                        \
      return ::tl::unexpected(std::move(gpumux_try_result).error()); \
    }                                                                \
  } while (false)

// SPDX-License-Identifier: Apache-2.0
// The secrets of one `gpumux web`: at most one unspent link, and the sessions of the browsers that have used one.
//
// A session has two secrets, and a request must show both. The cookie cannot be read by scripts, but a browser sends it
// to every port of the host. The key is kept by the page, whose storage no other port can read. So neither a script nor
// another user's server on this machine has both.
//
// All secrets are random and are compared in a time that does not depend on where they differ. Nothing here is logged.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux::web {

// Of each secret. 256 bits cannot be guessed, so attempts are not counted.
inline constexpr std::size_t kSecretBytes = 32;

// Browsers of one user. The oldest session ends when there is one too many.
inline constexpr std::size_t kMaxSessions = 32;

struct Session {
  std::string cookie;
  std::string key;
};

class Secrets {
 public:
  // A link's token. The link before is worth nothing any more, used or not.
  base::Result<std::string> new_token();

  // Spends the token. kDenied: it is not the newest, or it is spent.
  base::Result<Session> open_session(std::string_view token);

  // `cookies`: all values that came under the cookie's name, because a page of another port can add one.
  bool is_session(const std::vector<std::string_view>& cookies, std::string_view key) const;

 private:
  std::optional<std::string> token_;
  std::deque<Session> sessions_;  // the oldest first
};

}  // namespace gpumux::web

// SPDX-License-Identifier: Apache-2.0
#include "web/secrets.h"

#include <openssl/crypto.h>

#include "os/random.h"

namespace gpumux::web {
namespace {

bool is_equal(std::string_view secret, std::string_view shown) {
  return secret.size() == shown.size() && CRYPTO_memcmp(secret.data(), shown.data(), secret.size()) == 0;
}

}  // namespace

base::Result<std::string> Secrets::new_token() {
  auto token = os::random_hex(kSecretBytes);
  if (token) token_ = *token;
  return token;
}

base::Result<Session> Secrets::open_session(std::string_view token) {
  if (!token_ || !is_equal(*token_, token))
    return base::fail(base::Code::kDenied, "this link was used already, or a newer one has replaced it");
  token_.reset();
  auto cookie = os::random_hex(kSecretBytes);
  if (!cookie) return tl::unexpected(cookie.error());
  auto key = os::random_hex(kSecretBytes);
  if (!key) return tl::unexpected(key.error());
  if (sessions_.size() >= kMaxSessions) sessions_.pop_front();
  sessions_.push_back({std::move(*cookie), std::move(*key)});
  return sessions_.back();
}

bool Secrets::is_session(const std::vector<std::string_view>& cookies, std::string_view key) const {
  bool found = false;
  for (const Session& session : sessions_) {
    const bool has_key = is_equal(session.key, key);
    for (const std::string_view cookie : cookies) found |= is_equal(session.cookie, cookie) & has_key;
  }
  return found;
}

}  // namespace gpumux::web

// SPDX-License-Identifier: Apache-2.0
// Bytes in JSON: strings of users that are not UTF-8 (docs/api.md, Jobs).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::base {

// RFC 4648, section 4, with padding.
std::string encode_base64(std::string_view bytes);
// kInvalid: anything else than what encode_base64 writes.
Result<std::string> decode_base64(std::string_view text);

}  // namespace gpumux::base

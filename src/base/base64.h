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

// Whether the bytes are UTF-8 as Unicode defines it: shortest forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view bytes);

}  // namespace gpumux::base

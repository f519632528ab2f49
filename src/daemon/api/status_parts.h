// SPDX-License-Identifier: Apache-2.0
// Parts of GET /v1/status, for clients that want no more: each has its fields as they are there, for it is made from
// that answer's text.
//
// Pure; not for the loop's thread, which has better to do than to read text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpumux::daemon {

// {"gpus": [...]}
std::string gpus_part(std::string_view status);
// The only GPU that the answer has.
std::string gpu_part(std::string_view status);
// {"tenants": [...], "more": false}: by number, at most `limit` with a number above `beyond`.
std::string tenants_part(std::string_view status, std::uint64_t beyond, std::uint64_t limit);
std::optional<std::string> tenant_part(std::string_view status, std::uint64_t tenant);

}  // namespace gpumux::daemon

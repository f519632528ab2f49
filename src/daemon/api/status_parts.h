// SPDX-License-Identifier: Apache-2.0
// The seats of GET /v1/status by tenant, for clients that want no more: each has its fields as they are there.
//
// Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace gpumux::daemon {

// {"tenants": [...], "more": false}: by number, at most `limit` with a number above `beyond`.
nlohmann::ordered_json tenants_part(const nlohmann::ordered_json& status, std::uint64_t beyond, std::uint64_t limit);
std::optional<nlohmann::ordered_json> tenant_part(const nlohmann::ordered_json& status, std::uint64_t tenant);

}  // namespace gpumux::daemon

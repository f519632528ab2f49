// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/status_parts.h"

#include <map>
#include <utility>

namespace gpumux::daemon {
namespace {

using Json = nlohmann::ordered_json;

// Of a tenant, and the same on all its GPUs.
constexpr const char* kOfTenant[] = {"tenant",    "pid", "uid",      "user",  "program",
                                     "container", "job", "priority", "share", "max_share"};

// Each with its seats, by number.
std::map<std::uint64_t, Json> tenants_of(const Json& status) {
  std::map<std::uint64_t, Json> tenants;
  for (const Json& gpu : status["gpus"]) {
    for (Json seat : gpu["seats"]) {
      Json& tenant = tenants[seat["tenant"].get<std::uint64_t>()];
      for (const char* field : kOfTenant) {
        if (seat.contains(field)) tenant[field] = seat[field];
        seat.erase(field);
      }
      Json on_gpu{{"gpu", gpu["index"]}};
      on_gpu.update(seat);
      tenant["seats"].push_back(std::move(on_gpu));
    }
  }
  return tenants;
}

}  // namespace

Json tenants_part(const Json& status, std::uint64_t beyond, std::uint64_t limit) {
  Json list = Json::array();
  bool more = false;
  for (auto& [number, tenant] : tenants_of(status)) {
    if (number <= beyond) continue;
    more = list.size() == limit;
    if (more) break;
    list.push_back(std::move(tenant));
  }
  return {{"tenants", std::move(list)}, {"more", more}};
}

std::optional<Json> tenant_part(const Json& status, std::uint64_t tenant) {
  auto tenants = tenants_of(status);
  const auto found = tenants.find(tenant);
  if (found == tenants.end()) return std::nullopt;
  return std::move(found->second);
}

}  // namespace gpumux::daemon

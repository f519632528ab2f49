// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/status_parts.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace gpumux::daemon {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

// Of a tenant, and the same on all its GPUs.
constexpr const char* kOfTenant[] = {"tenant",    "pid", "uid",      "user",  "program",
                                     "container", "job", "priority", "share", "max_share"};

// Each with its seats, by number.
std::map<std::uint64_t, Json> tenants_of(std::string_view status) {
  std::map<std::uint64_t, Json> tenants;
  const Json whole = Json::parse(status);
  for (const Json& gpu : whole["gpus"]) {
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

std::string gpus_part(std::string_view status) { return text_of({{"gpus", Json::parse(status)["gpus"]}}); }

std::string gpu_part(std::string_view status) { return text_of(Json::parse(status)["gpus"].at(0)); }

std::string tenants_part(std::string_view status, std::uint64_t beyond, std::uint64_t limit) {
  Json list = Json::array();
  bool more = false;
  for (auto& [number, tenant] : tenants_of(status)) {
    if (number <= beyond) continue;
    more = list.size() == limit;
    if (more) break;
    list.push_back(std::move(tenant));
  }
  return text_of({{"tenants", std::move(list)}, {"more", more}});
}

std::optional<std::string> tenant_part(std::string_view status, std::uint64_t tenant) {
  auto tenants = tenants_of(status);
  const auto found = tenants.find(tenant);
  if (found == tenants.end()) return std::nullopt;
  return text_of(found->second);
}

}  // namespace gpumux::daemon

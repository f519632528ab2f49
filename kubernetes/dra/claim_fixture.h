// SPDX-License-Identifier: Apache-2.0
// ResourceClaims as the scheduler leaves them, for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpumux::kubernetes {

inline constexpr char kShareId[] = "a671734a-e8e5-11e4-8fde-42010af09327";

inline nlohmann::json a_share(const std::string& request, const std::string& device, const std::string& memory,
                              const std::string& cores) {
  return {{"request", request}, {"driver", "gpumux.io"}, {"pool", "node-1"},
          {"device", device},   {"shareID", kShareId},   {"consumedCapacity", {{"memory", memory}, {"cores", cores}}}};
}

inline nlohmann::json a_claim(const std::string& uid, std::vector<nlohmann::json> shares,
                              nlohmann::json configurations = nlohmann::json::array()) {
  return {{"kind", "ResourceClaim"},
          {"metadata", {{"namespace", "default"}, {"name", "claim-" + uid}, {"uid", uid}}},
          {"status", {{"allocation", {{"devices", {{"results", shares}, {"config", configurations}}}}}}}};
}

}  // namespace gpumux::kubernetes

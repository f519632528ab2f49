// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/grant.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/standing.h"
#include "kubernetes/dra/quantity.h"
#include "kubernetes/dra/slice.h"

namespace gpumux::kubernetes {
namespace {

using base::Code;
using nlohmann::json;

constexpr char kParametersVersion[] = "gpumux.io/v1alpha1";
constexpr char kParametersKind[] = "Sharing";
// Of the records, for versions to come.
constexpr int kRecordVersion = 1;

const json& member(const json& object, const char* name) {
  static const json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

std::string text(const json& object, const char* name) {
  const json& value = member(object, name);
  return value.is_string() ? value.get<std::string>() : std::string();
}

base::Result<std::optional<std::uint64_t>> consumed(const json& result, const char* name) {
  const json& amount = member(member(result, "consumedCapacity"), name);
  if (amount.is_null()) return std::optional<std::uint64_t>();
  const auto value = parse_quantity(amount.is_string() ? amount.get<std::string>() : amount.dump());
  if (!value) return tl::unexpected(value.error());
  return std::optional<std::uint64_t>(*value);
}

base::Result<std::int32_t> priority_of(const json& parameters) {
  const auto fail = [](const std::string& why) {
    return base::fail(Code::kInvalid, "parameters of gpumux.io: " + why);
  };
  if (text(parameters, "apiVersion") != kParametersVersion || text(parameters, "kind") != kParametersKind)
    return fail("they are not of apiVersion " + std::string(kParametersVersion) + " and kind " + kParametersKind);
  if (parameters.contains("mode"))
    return fail("a claim has no mode; it is the GPU's, for all claims on it (gpumux set, on the node)");
  for (const auto& [name, value] : parameters.items()) {
    if (name != "apiVersion" && name != "kind" && name != "priority")
      return fail("there is no '" + name + "'; there is: priority");
  }
  const json& priority = member(parameters, "priority");
  if (priority.is_null()) return 0;
  if (!priority.is_number_integer()) return fail("the priority is no whole number");
  const auto parsed = base::parse_priority(priority.dump());
  if (!parsed) return fail("priority: " + parsed.error().message());
  return *parsed;
}

// A configuration is for all requests, or for those that it names. "main" means all alternatives of main.
bool is_for(const json& configuration, const std::string& request) {
  const json& requests = member(configuration, "requests");
  if (!requests.is_array() || requests.empty()) return true;
  return std::any_of(requests.begin(), requests.end(), [&](const json& named) {
    return named.is_string() &&
           (named.get<std::string>() == request || request.starts_with(named.get<std::string>() + "/"));
  });
}

// The priority of the last configuration from `source`. None: there is no such configuration.
base::Result<std::optional<std::int32_t>> priority_from(const char* source, const json& configurations,
                                                        const std::string& request) {
  std::optional<std::int32_t> priority;
  if (!configurations.is_array()) return priority;
  for (const json& configuration : configurations) {
    const json& opaque = member(configuration, "opaque");
    if (text(configuration, "source") != source || text(opaque, "driver") != kDraDriver) continue;
    if (!is_for(configuration, request)) continue;
    const auto set = priority_of(member(opaque, "parameters"));
    if (!set) return tl::unexpected(set.error());
    priority = *set;
  }
  return priority;
}

// An administrator writes classes, and every user writes claims. So the class gives a priority, and the claim may only
// lower it.
base::Result<std::int32_t> priority_for(const json& configurations, const std::string& request) {
  const auto of_class = priority_from("FromClass", configurations, request);
  if (!of_class) return tl::unexpected(of_class.error());
  const auto of_claim = priority_from("FromClaim", configurations, request);
  if (!of_claim) return tl::unexpected(of_claim.error());
  const std::int32_t most = of_class->value_or(0);
  if (of_claim->value_or(most) <= most) return of_claim->value_or(most);
  return base::fail(Code::kInvalid, "priority " + std::to_string(**of_claim) + " is above the " + std::to_string(most) +
                                        " of its DeviceClass: a claim can only lower it; ask for a class with a "
                                        "higher priority");
}

base::Result<GrantedShare> share_of(const json& result) {
  GrantedShare share{text(result, "request"), text(result, "pool"), text(result, "device"), {}, {},
                     text(result, "shareID")};
  const auto memory = consumed(result, "memory");
  if (!memory) return tl::unexpected(memory.error());
  const auto cores = consumed(result, "cores");
  if (!cores) return tl::unexpected(cores.error());
  share.memory_bytes = *memory;
  share.cores = *cores;
  return share;
}

// Of each GPU the sum, within 1 and `most`. A GPU of which some share has no bound has none. An amount of 0 would mean
// that there is none, too.
std::map<std::string, std::uint64_t> amounts_of(const Grant& grant, std::optional<std::uint64_t> GrantedShare::*amount,
                                                std::uint64_t most) {
  std::map<std::string, std::uint64_t> sums;
  for (const GrantedShare& share : grant.shares) sums[share.device] += (share.*amount).value_or(0);
  for (const GrantedShare& share : grant.shares) {
    if (!(share.*amount)) sums.erase(share.device);
  }
  for (auto& [device, sum] : sums) sum = std::clamp<std::uint64_t>(sum, 1, most);
  return sums;
}

// None: there is a GPU without a bound.
std::optional<std::uint64_t> smallest(const Grant& grant, const std::map<std::string, std::uint64_t>& amounts) {
  const auto has_it = [&](const GrantedShare& share) { return amounts.contains(share.device); };
  if (!std::all_of(grant.shares.begin(), grant.shares.end(), has_it)) return std::nullopt;
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::min_element(amounts.begin(), amounts.end(), less)->second;
}

}  // namespace

base::Result<Grant> grant_of(std::string_view claim, const std::string& pool) {
  const json object = json::parse(claim, nullptr, false);
  const json& metadata = member(object, "metadata");
  Grant grant{text(metadata, "uid"), text(metadata, "namespace"), text(metadata, "name"), {}, 0};
  const auto fail = [&](const std::string& why) {
    return base::fail(Code::kInvalid, "ResourceClaim " + grant.name_space + "/" + grant.name + ": " + why);
  };
  if (grant.uid.empty() || grant.name.empty()) return fail("the API server's answer is no claim");
  const json& devices = member(member(member(object, "status"), "allocation"), "devices");
  const json& results = member(devices, "results");
  if (!results.is_array()) return fail("it is not allocated");
  std::set<std::int32_t> priorities;
  for (const json& result : results) {
    if (text(result, "driver") != kDraDriver || text(result, "pool") != pool) continue;
    auto share = share_of(result);
    if (!share) return fail(share.error().message());
    if (share->request.empty() || share->device.empty()) return fail("a device of it has no name");
    const auto priority = priority_for(member(devices, "config"), share->request);
    if (!priority) return fail(priority.error().message());
    priorities.insert(*priority);
    grant.shares.push_back(std::move(*share));
  }
  if (grant.shares.empty()) return fail("it has no GPU of this node (" + pool + ")");
  if (priorities.size() > 1) return fail("its requests have different priorities; a claim has one");
  grant.priority = *priorities.begin();
  return grant;
}

std::optional<std::string> uid_of(std::string_view claim) {
  const json object = json::parse(claim, nullptr, false);
  std::string uid = text(member(object, "metadata"), "uid");
  return uid.empty() ? std::nullopt : std::optional(std::move(uid));
}

json to_json(const Grant& grant) {
  json shares = json::array();
  for (const GrantedShare& share : grant.shares) {
    json made{{"request", share.request}, {"pool", share.pool}, {"device", share.device}};
    if (share.memory_bytes) made["memory_bytes"] = *share.memory_bytes;
    if (share.cores) made["cores"] = *share.cores;
    if (!share.share_id.empty()) made["share_id"] = share.share_id;
    shares.push_back(std::move(made));
  }
  return {{"version", kRecordVersion}, {"uid", grant.uid},           {"namespace", grant.name_space},
          {"name", grant.name},        {"priority", grant.priority}, {"shares", shares}};
}

base::Result<Grant> grant_from_json(std::string_view record) {
  const auto fail = [] { return base::fail(Code::kInvalid, "it is no record of a claim"); };
  const json object = json::parse(record, nullptr, false);
  if (member(object, "version") != kRecordVersion || !member(object, "priority").is_number_integer()) return fail();
  Grant grant{text(object, "uid"), text(object, "namespace"), text(object, "name"), {}, object["priority"]};
  const json& shares = member(object, "shares");
  if (grant.uid.empty() || grant.name.empty() || !shares.is_array() || shares.empty()) return fail();
  for (const json& made : shares) {
    GrantedShare share{text(made, "request"), text(made, "pool"), text(made, "device"), {}, {}, text(made, "share_id")};
    if (share.request.empty() || share.pool.empty() || share.device.empty()) return fail();
    for (const auto& [name, amount] : {std::pair{"memory_bytes", &share.memory_bytes}, {"cores", &share.cores}}) {
      const json& value = member(made, name);
      if (value.is_null()) continue;
      if (!value.is_number_unsigned()) return fail();
      *amount = value.get<std::uint64_t>();
    }
    grant.shares.push_back(std::move(share));
  }
  return grant;
}

std::vector<Variable> variables_of(const Grant& grant) {
  std::vector<Variable> variables{{"GPUMUX_RUN_ID", "claim-" + grant.uid}};
  if (const auto memory = smallest(grant, memory_of(grant)))
    variables.push_back({"GPUMUX_MEM_LIMIT", std::to_string(*memory)});
  if (const auto cores = smallest(grant, cores_of(grant)))
    variables.push_back({"GPUMUX_SHARE", base::format_share(static_cast<std::uint32_t>(*cores))});
  if (grant.priority != 0) variables.push_back({"GPUMUX_PRIORITY", std::to_string(grant.priority)});
  return variables;
}

std::map<std::string, std::uint64_t> memory_of(const Grant& grant) {
  return amounts_of(grant, &GrantedShare::memory_bytes, UINT64_MAX);
}

std::map<std::string, std::uint64_t> cores_of(const Grant& grant) {
  return amounts_of(grant, &GrantedShare::cores, base::kMostShare);
}

}  // namespace gpumux::kubernetes

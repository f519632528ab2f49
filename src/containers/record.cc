// SPDX-License-Identifier: Apache-2.0
#include "containers/record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "os/durable_file.h"

namespace gpumux::containers {
namespace {

using Json = nlohmann::json;

constexpr mode_t kMode = 0600;
constexpr std::size_t kMostIdBytes = 128;
// Kubernetes' names have 253 bytes at most, and claims have a quota and a share for each of a machine's GPUs.
constexpr std::size_t kMostRecordBytes = 64u << 10;
constexpr int kVersion = 1;

// Bytes that are not UTF-8 are replaced: names are for people.
std::string text_of(const Record& record) {
  Json claims = Json::array();
  for (const Claim& claim : record.claims) {
    Json quotas = Json::array();
    for (const Quota& quota : claim.quotas) quotas.push_back({{"gpu", quota.gpu}, {"bytes", quota.bytes}});
    Json shares = Json::array();
    for (const Share& share : claim.shares) shares.push_back({{"gpu", share.gpu}, {"cores", share.cores}});
    Json json{
        {"uid", claim.uid}, {"quotas", std::move(quotas)}, {"shares", std::move(shares)}, {"priority", claim.priority}};
    if (const auto& part = claim.on_each)
      json["on_each"] = {{"cores", part->cores}, {"thousandths", part->thousandths}, {"bytes", part->bytes}};
    claims.push_back(std::move(json));
  }
  const Json json{{"version", kVersion},
                  {"id", record.id},
                  {"control_group", record.control_group},
                  {"namespace", record.pod_namespace},
                  {"pod", record.pod},
                  {"name", record.name},
                  {"claims", std::move(claims)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

const std::string* text_in(const Json& object, const char* name) {
  const Json* value = member(object, name);
  return value == nullptr ? nullptr : value->get_ptr<const std::string*>();
}

std::optional<std::uint64_t> number_in(const Json& object, const char* name) {
  const Json* value = member(object, name);
  const auto* number = value == nullptr ? nullptr : value->get_ptr<const Json::number_unsigned_t*>();
  return number == nullptr ? std::nullopt : std::optional<std::uint64_t>(*number);
}

// Of an array of a GPU and a number each. False: it is none.
template <class Amount>
bool read_amounts(const Json& claim, const char* name, const char* unit, std::vector<Amount>& amounts) {
  const Json* array = member(claim, name);
  if (array == nullptr || !array->is_array()) return false;
  for (const Json& each : *array) {
    const std::string* gpu = text_in(each, "gpu");
    const auto number = number_in(each, unit);
    if (gpu == nullptr || !number) return false;
    amounts.push_back({*gpu, *number});
  }
  return true;
}

// A record of an earlier version has none: 0. False: it is none.
bool read_priority(const Json& claim, std::int32_t& priority) {
  const Json* value = member(claim, "priority");
  if (value == nullptr) return true;
  if (!value->is_number_integer()) return false;
  const auto parsed = base::parse_priority(value->dump());
  if (parsed) priority = *parsed;
  return parsed.has_value();
}

std::optional<Part> part_in(const Json& json) {
  const auto cores = number_in(json, "cores");
  const auto thousandths = number_in(json, "thousandths");
  const auto bytes = number_in(json, "bytes");
  if (!cores || !thousandths || !bytes) return std::nullopt;
  return Part{*cores, *thousandths, *bytes};
}

std::optional<Claim> claim_in(const Json& json) {
  const std::string* uid = text_in(json, "uid");
  if (uid == nullptr) return std::nullopt;
  Claim claim{*uid};
  if (!read_amounts(json, "quotas", "bytes", claim.quotas)) return std::nullopt;
  if (!read_amounts(json, "shares", "cores", claim.shares)) return std::nullopt;
  if (!read_priority(json, claim.priority)) return std::nullopt;
  if (const Json* part = member(json, "on_each")) {
    claim.on_each = part_in(*part);
    if (!claim.on_each) return std::nullopt;
  }
  return claim;
}

std::optional<Record> record_in(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  const Json* version = member(json, "version");
  const Json* claims = member(json, "claims");
  if (version == nullptr || *version != kVersion || claims == nullptr || !claims->is_array()) return std::nullopt;
  Record record;
  for (const auto& [name, value] : {std::pair{"id", &record.id}, std::pair{"control_group", &record.control_group},
                                    std::pair{"namespace", &record.pod_namespace}, std::pair{"pod", &record.pod},
                                    std::pair{"name", &record.name}}) {
    const std::string* found = text_in(json, name);
    if (found == nullptr) return std::nullopt;
    *value = *found;
  }
  for (const Json& each : *claims) {
    auto claim = claim_in(each);
    if (!claim) return std::nullopt;
    record.claims.push_back(std::move(*claim));
  }
  return record;
}

// Each names a GPU of its own. `kind`: the word for them.
template <class Amount>
base::Status check_gpus(const std::string& kind, const std::vector<Amount>& amounts) {
  for (auto one = amounts.begin(); one != amounts.end(); ++one) {
    if (!one->gpu.starts_with("GPU-") && !one->gpu.starts_with("MIG-")) {
      return base::fail(base::Code::kInvalid,
                        "the " + kind + " for '" + one->gpu + "' names no GPU by its UUID, GPU-... or MIG-...");
    }
    if (std::any_of(amounts.begin(), one, [&](const Amount& other) { return other.gpu == one->gpu; }))
      return base::fail(base::Code::kInvalid, one->gpu + " has two " + kind + "s");
  }
  return {};
}

base::Status check(const Record& record) {
  const auto fail = [&](const char* why) {
    return base::fail(base::Code::kInvalid, "container '" + record.id + "' can have no record: " + why);
  };
  if (!is_usable_id(record.id)) return fail("its id is no file name");
  if (record.control_group.empty() || record.control_group.front() != '/') return fail("it has no control group");
  std::vector<Claim> claims;
  for (const Claim& claim : record.claims) {
    if (claim.uid.empty()) return fail("a claim of it has no uid");
    if (claim.on_each && record.claims.size() > 1) return fail("a claim on each GPU is not its only one");
    GPUMUX_TRY(check_claim(claim));
    if (!add_claim(claims, claim).empty()) return fail("two claims of it have one GPU");
  }
  return claims.size() == record.claims.size() ? base::Status() : fail("it has a claim twice");
}

base::Status check_id(std::string_view id) {
  if (is_usable_id(id)) return {};
  return base::fail(base::Code::kInvalid, "'" + std::string(id) + "' is no id of a container");
}

// Sorted.
base::Result<std::vector<std::string>> names_in(int folder) {
  auto names = os::list_directory_at(folder, ".");
  if (!names) return base::fail_errno(names.error().system_errno, "cannot list the records of containers");
  std::sort(names->begin(), names->end());
  return names;
}

}  // namespace

base::Status check_claim(const Claim& claim) {
  const auto fail = [](std::string why) { return base::fail(base::Code::kInvalid, std::move(why)); };
  if (claim.uid.empty() && !claim.quotas.empty()) return fail("quotas need a claim, and none is named");
  if (claim.uid.empty() && !claim.shares.empty()) return fail("shares need a claim, and none is named");
  if (claim.uid.empty() && claim.priority != 0) return fail("a priority needs a claim, and none is named");
  GPUMUX_TRY(check_gpus("quota", claim.quotas));
  GPUMUX_TRY(check_gpus("share", claim.shares));
  for (const Quota& quota : claim.quotas) {
    if (quota.bytes == 0) return fail("the quota for " + quota.gpu + " has no bytes");
  }
  const auto check_cores = [&](const std::string& whose, std::uint64_t cores) -> base::Status {
    if (cores != 0 && cores <= kMostCores) return {};
    return fail(whose + " has " + std::to_string(cores) + " cores: 1 to " + std::to_string(kMostCores) +
                " are possible");
  };
  for (const Share& share : claim.shares) GPUMUX_TRY(check_cores("the share for " + share.gpu, share.cores));
  if (const auto priority = base::parse_priority(std::to_string(claim.priority)); !priority)
    return tl::unexpected(priority.error());
  if (!claim.on_each) return {};
  if (claim.uid.empty()) return fail("a part of each GPU needs a claim, and none is named");
  if (!claim.quotas.empty() || !claim.shares.empty()) return fail("a part of each GPU leaves no other quota and share");
  if (claim.on_each->thousandths == 0 || claim.on_each->thousandths > kWhole)
    return fail("a part of a GPU's memory is 1 to " + std::to_string(kWhole) + " thousandths of it");
  return check_cores("the part of each GPU", claim.on_each->cores);
}

std::optional<std::uint64_t> cores_on(const Claim& claim, std::string_view gpu) {
  if (claim.on_each) return claim.on_each->cores;
  for (const Share& share : claim.shares) {
    if (share.gpu == gpu) return share.cores;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> bytes_on(const Claim& claim, std::string_view gpu, std::uint64_t memory) {
  if (const auto& part = claim.on_each) {
    const std::uint64_t most = memory / kWhole * part->thousandths;
    return std::max<std::uint64_t>(part->bytes == 0 ? most : std::min(most, part->bytes), 1);
  }
  for (const Quota& quota : claim.quotas) {
    if (quota.gpu == gpu) return quota.bytes;
  }
  return std::nullopt;
}

std::optional<std::int32_t> most_priority(const std::vector<Claim>& claims) {
  std::optional<std::int32_t> lowest;
  for (const Claim& claim : claims) lowest = std::min(lowest.value_or(claim.priority), claim.priority);
  return lowest;
}

std::vector<std::string> add_claim(std::vector<Claim>& claims, Claim claim) {
  std::set<std::string> theirs;
  for (const Claim& other : claims) {
    if (other.uid == claim.uid) continue;
    for (const Quota& quota : other.quotas) theirs.insert(quota.gpu);
    for (const Share& share : other.shares) theirs.insert(share.gpu);
  }
  std::set<std::string> taken;
  const auto is_taken = [&](const auto& amount) {
    if (!theirs.contains(amount.gpu)) return false;
    taken.insert(amount.gpu);
    return true;
  };
  std::erase_if(claim.quotas, is_taken);
  std::erase_if(claim.shares, is_taken);
  const auto same = std::find_if(claims.begin(), claims.end(), [&](const Claim& one) { return one.uid == claim.uid; });
  if (same != claims.end()) {
    *same = std::move(claim);
  } else {
    claims.push_back(std::move(claim));
  }
  return {taken.begin(), taken.end()};
}

bool is_usable_id(std::string_view id) {
  return !id.empty() && id.size() <= kMostIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
}

base::Status write_record(int folder, const Record& record) {
  GPUMUX_TRY(check(record));
  const std::string text = text_of(record);
  if (text.size() > kMostRecordBytes)
    return base::fail(base::Code::kInvalid, "the record of " + record.id + " is too long");
  return os::replace_file_at(folder, record.id.c_str(), text, kMode);
}

base::Result<Record> read_record(int folder, std::string_view id) {
  GPUMUX_TRY(check_id(id));
  const std::string name(id);
  const auto text = os::read_file_at(folder, name.c_str(), kMostRecordBytes);
  if (!text) return tl::unexpected(text.error());
  auto record = record_in(*text);
  if (!record || record->id != id || !check(*record))
    return base::fail(base::Code::kInvalid, "the record of container " + name + " cannot be read: remove the file");
  return *std::move(record);
}

base::Status remove_record(int folder, std::string_view id) {
  GPUMUX_TRY(check_id(id));
  if (::unlinkat(folder, std::string(id).c_str(), 0) != 0 && errno != ENOENT)
    return base::fail_errno(errno, "cannot remove the record of container " + std::string(id));
  return {};
}

base::Result<std::vector<std::string>> record_ids(int folder) {
  auto names = names_in(folder);
  if (names) std::erase_if(*names, [](const std::string& name) { return !is_usable_id(name); });
  return names;
}

base::Status remove_unfinished(int folder) {
  const auto names = names_in(folder);
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    if (is_usable_id(os::name_of_abandoned(name))) os::remove_abandoned_at(folder, name);
  }
  return {};
}

}  // namespace gpumux::containers

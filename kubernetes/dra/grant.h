// SPDX-License-Identifier: Apache-2.0
// The part of this node that the scheduler has allocated to a claim, and the words of it for the claim's containers.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/cdi/injection.h"

namespace gpumux::kubernetes {

// A share of one GPU. A claim may have several, also of the same GPU.
struct GrantedShare {
  std::string request;  // of the claim; "main/big" for one of several alternatives
  std::string pool;
  std::string device;
  std::optional<std::uint64_t> memory_bytes;  // none: the server allocates whole devices only
  std::optional<std::uint64_t> cores;
  std::string share_id{};  // the scheduler's name for this share; empty: the server allocates whole devices only

  friend bool operator==(const GrantedShare&, const GrantedShare&) = default;
};

struct Grant {
  std::string uid;
  std::string name_space;
  std::string name;
  std::vector<GrantedShare> shares;  // at least one
  std::int32_t priority = 0;

  friend bool operator==(const Grant&, const Grant&) = default;
};

// From a ResourceClaim of any version of the API. `pool`: this node's; shares of other pools and drivers are others'
// business. kInvalid: the claim is not allocated here, or has parameters of ours that mean nothing. The message is for
// the pod's author.
//
// Parameters of ours, of a claim or its class: {"apiVersion": "gpumux.io/v1alpha1", "kind": "Sharing", "priority": 5}.
// A claim has its class's priority (0 if that names none), or a lower one of its own. A claim with a higher priority
// than its class's is refused.
base::Result<Grant> grant_of(std::string_view claim, const std::string& pool);

// Of a ResourceClaim, which may be allocated elsewhere or nowhere. None: it is no claim.
std::optional<std::string> uid_of(std::string_view claim);

// A grant as its record holds it, and the grant read from a record.
nlohmann::json to_json(const Grant& grant);
base::Result<Grant> grant_from_json(std::string_view text);

// The variables of docs/environment.md by which the programs of a container without a record keep to the grant. They
// are the same on all GPUs, so of different shares the smallest counts on each.
std::vector<Variable> variables_of(const Grant& grant);

// The claim's bound on each GPU, by device: the daemon holds the claim to it, whatever the variables say. A device of
// which some share has no bound has none.
std::map<std::string, std::uint64_t> memory_of(const Grant& grant);
std::map<std::string, std::uint64_t> cores_of(const Grant& grant);

}  // namespace gpumux::kubernetes

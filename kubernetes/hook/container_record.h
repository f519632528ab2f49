// SPDX-License-Identifier: Apache-2.0
// Records of containers, as the hook keeps them (containers/record.h). Their content comes from the specification, from
// the runtime's state and from the kernel's control group. Nothing comes from the image.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "containers/record.h"
#include "kubernetes/hook/runtime_state.h"

namespace gpumux::kubernetes {

// "FOLDER [--claim UID] [--quota GPU_UUID=BYTES ...] [--share GPU_UUID=CORES ...] [--priority N]"
struct RecordOrder {
  std::string folder;         // of the records
  containers::Claim claim{};  // without a uid: none
};

// kInvalid: it is not clear what is meant.
base::Result<RecordOrder> parse_record_order(std::span<char* const> words);

// The record of a container whose first process is in `control_group`, without claims. kInvalid: the daemon would not
// find it.
base::Result<containers::Record> record_of(const State& state, const std::string& control_group);

// Writes it, with the claims that the container's record has already: each claim has a hook of its own. kExists: an
// earlier claim counts on one of the claim's GPUs. All else is written then, too.
base::Status keep_record(const State& state, const RecordOrder& order);
// No error if there is none.
base::Status forget_record(const State& state, const std::string& folder);

}  // namespace gpumux::kubernetes

// SPDX-License-Identifier: Apache-2.0
// Which GPUs a program may see, by its CUDA_VISIBLE_DEVICES. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::daemon {

// One entry for each of `uuids` ("GPU-..."): whether the program may see that GPU. CUDA orders GPUs in another way than
// the daemon (CUDA_DEVICE_ORDER), so a number may be any GPU: then the program may see all. Names may be cut short, as
// CUDA takes them. A list ends at the first name that no GPU has. Empty: all.
std::vector<bool> visible_gpus(std::string_view list, std::span<const std::string> uuids);

}  // namespace gpumux::daemon

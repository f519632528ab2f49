// SPDX-License-Identifier: Apache-2.0
// Shares of GPUs, as the kubelet's device plugin API has them: each GPU is a number of devices that can be had one by
// one. A container that gets two shares has two GPUs.
//
// The rule: a container gets at most one share of each GPU. The API cannot say so. The kubelet counts shares, and its
// scheduler places a pod wherever enough are free. So two calls keep the rule together:
//
//   GetPreferredAllocation   preferred_shares(): different GPUs, if there are enough with a free share
//   Allocate                 shares_by_gpu(): refuses a container that would have two shares of one GPU
//
// Load is counted from the free shares that the kubelet names in its request. The plugin does not count its own calls:
// the kubelet reports no release.
//
// Pure functions; any thread. Equal requests give equal answers, in whatever order the kubelet names the shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpumux::kubernetes {

// The API's limit for the id of a device.
inline constexpr std::size_t kMaxShareIdBytes = 63;
// Above all that is of use. A node's list of devices stays small enough for one message.
inline constexpr std::uint32_t kMaxSharesPerGpu = 1000;

struct Share {
  std::string gpu;           // "GPU-..." or "MIG-...": what the driver calls it, on every start of the machine
  std::uint32_t number = 0;  // below kMaxSharesPerGpu

  friend bool operator==(const Share&, const Share&) = default;
};

// "GPU-UUID::7".
std::string share_id(const Share& share);
// kInvalid: it is no id that share_id() makes.
base::Result<Share> parse_share(std::string_view id);

// The GPU that comes next is, of those of which the container has the fewest shares, the one with
enum class Placement {
  kSpread,  // most free shares
  kPacked,  // fewest free shares, so that whole GPUs stay free
};

struct PreferredRequest {
  std::vector<std::string> available;     // ids of shares that are free
  std::vector<std::string> must_include;  // some of them
  std::size_t size = 0;                   // how many ids the answer has
};

// Seats on each GPU, as the daemon says. It decides between GPUs that have as many free shares; a GPU without an entry
// has none.
using Seats = std::map<std::string, std::uint32_t>;

// The ids that the container should get, `must_include` first. If fewer GPUs than `size` have a free share, some GPU
// has several: shares_by_gpu() refuses that later, with words for the user. kInvalid: an id is none of ours, or the
// request contradicts itself.
base::Result<std::vector<std::string>> preferred_shares(const PreferredRequest& request, Placement placement,
                                                        const Seats& seats = {});

enum class SameGpu {
  kRefuse,  // the rule above
  kAllow,   // several shares of one GPU count as one GPU with as many shares
};

// The GPUs that a container gets: each once, with its number of shares, in the order of the ids. kInvalid: an id is
// none of ours, or is named twice. kExhausted: two shares are of one GPU; the message is for the pod's author.
base::Result<std::vector<std::pair<std::string, std::uint32_t>>> shares_by_gpu(const std::vector<std::string>& ids,
                                                                               SameGpu same_gpu);

}  // namespace gpumux::kubernetes

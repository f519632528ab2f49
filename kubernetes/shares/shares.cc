// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/shares/shares.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

namespace gpumux::kubernetes {
namespace {

constexpr std::string_view kSeparator = "::";

tl::unexpected<base::Error> invalid(std::string what) { return base::fail(base::Code::kInvalid, std::move(what)); }

// By number: share 2 comes before share 10.
struct Gpu {
  std::set<std::uint32_t> free;
  std::size_t given = 0;
};

// The GPU's place in the order of choice; the smallest one is next.
auto place_of(const std::string& name, const Gpu& gpu, Placement placement, const Seats& seats) {
  const auto free = static_cast<std::int64_t>(gpu.free.size());
  const auto found = seats.find(name);
  return std::make_tuple(gpu.given, placement == Placement::kSpread ? -free : free,
                         found == seats.end() ? 0u : found->second, std::string_view(name));
}

}  // namespace

std::string share_id(const Share& share) { return share.gpu + std::string(kSeparator) + std::to_string(share.number); }

base::Result<Share> parse_share(std::string_view id) {
  const auto refuse = [&] {
    return invalid("'" + std::string(id.substr(0, kMaxShareIdBytes)) + "' is no share of ours");
  };
  const std::size_t at = id.rfind(kSeparator);
  if (id.size() > kMaxShareIdBytes || at == 0 || at == std::string_view::npos) return refuse();
  const std::string_view digits = id.substr(at + kSeparator.size());
  Share share{std::string(id.substr(0, at)), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), share.number);
  // A share has exactly one id: "1", not "01".
  if (error != std::errc() || end != digits.data() + digits.size() || share.number >= kMaxSharesPerGpu ||
      share_id(share) != id)
    return refuse();
  return share;
}

base::Result<std::vector<std::string>> preferred_shares(const PreferredRequest& request, Placement placement,
                                                        const Seats& seats) {
  std::map<std::string, Gpu> gpus;
  for (const std::string& id : request.available) {
    const auto share = parse_share(id);
    if (!share) return tl::unexpected(share.error());
    if (!gpus[share->gpu].free.insert(share->number).second) return invalid(id + " is named twice as available");
  }
  if (request.size > request.available.size() || request.size < request.must_include.size()) {
    return invalid(std::to_string(request.size) + " shares cannot be chosen of " +
                   std::to_string(request.available.size()) + " that are available, with " +
                   std::to_string(request.must_include.size()) + " that must be included");
  }
  std::vector<std::string> chosen;
  const auto give = [&](Gpu& gpu, const std::string& name, std::uint32_t number) {
    gpu.free.erase(number);
    ++gpu.given;
    chosen.push_back(share_id({name, number}));
  };
  for (const std::string& id : request.must_include) {
    const auto share = parse_share(id);
    if (!share) return tl::unexpected(share.error());
    const auto found = gpus.find(share->gpu);
    if (found == gpus.end() || found->second.free.count(share->number) == 0)
      return invalid(id + " must be included, and is not available");
    give(found->second, share->gpu, share->number);
  }
  while (chosen.size() < request.size) {
    auto next = gpus.end();
    for (auto gpu = gpus.begin(); gpu != gpus.end(); ++gpu) {
      if (gpu->second.free.empty()) continue;
      if (next == gpus.end() ||
          place_of(gpu->first, gpu->second, placement, seats) < place_of(next->first, next->second, placement, seats))
        next = gpu;
    }
    give(next->second, next->first, *next->second.free.begin());
  }
  return chosen;
}

base::Result<std::vector<std::pair<std::string, std::uint32_t>>> shares_by_gpu(const std::vector<std::string>& ids,
                                                                               SameGpu same_gpu) {
  std::vector<std::pair<std::string, std::uint32_t>> gpus;
  std::set<std::string_view> seen;
  for (const std::string& id : ids) {
    const auto share = parse_share(id);
    if (!share) return tl::unexpected(share.error());
    if (!seen.insert(id).second) return invalid(id + " is named twice");
    const auto same = std::find_if(gpus.begin(), gpus.end(), [&](const auto& gpu) { return gpu.first == share->gpu; });
    if (same == gpus.end()) {
      gpus.emplace_back(share->gpu, 1);
    } else {
      ++same->second;
    }
  }
  std::string several;
  for (const auto& [gpu, count] : gpus) {
    if (count > 1) several += (several.empty() ? "" : ", ") + std::to_string(count) + " of " + gpu;
  }
  if (same_gpu == SameGpu::kAllow || several.empty()) return gpus;
  return base::fail(base::Code::kExhausted,
                    "the container asks for " + std::to_string(ids.size()) +
                        " shares, each of a GPU of its own, and would get " + several +
                        "; ask for no more shares than GPUs of a node have free ones, or set same_gpu = allow to take "
                        "several shares of one GPU");
}

}  // namespace gpumux::kubernetes

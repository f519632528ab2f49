// SPDX-License-Identifier: Apache-2.0
// The groups of a GPU.
#include "sched/lease/share_groups.h"

#include <algorithm>

#include "sched/lease/units.h"

namespace gpumux::sched {

std::shared_ptr<ShareGroup> ShareGroups::join(Seat& seat, const std::string& name) {
  auto group = std::make_shared<ShareGroup>(name);
  if (!name.empty()) group = named_.try_emplace(name, group).first->second;
  auto& seats = group->seats_;
  seats.insert(std::upper_bound(seats.begin(), seats.end(), &seat, BySeat()), &seat);
  return group;
}

void ShareGroups::leave(Seat& seat, ShareGroup& group) {
  std::erase(group.seats_, &seat);
  if (group.name().empty() || !group.seats_.empty()) return;
  std::erase_if(named_, [&](const auto& entry) {
    return entry.second->seats_.empty() && entry.second->virtual_time() <= present_;
  });
  std::size_t remembered = 0;
  auto owes_least = named_.end();
  for (auto entry = named_.begin(); entry != named_.end(); ++entry) {
    const ShareGroup& other = *entry->second;
    if (!other.seats_.empty()) continue;
    ++remembered;
    if (owes_least == named_.end() || other.virtual_time() < owes_least->second->virtual_time()) owes_least = entry;
  }
  if (remembered > kMostRemembered) named_.erase(owes_least);
}

}  // namespace gpumux::sched

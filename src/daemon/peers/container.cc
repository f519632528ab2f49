// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/container.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/units.h"
#include "containers/control_group.h"
#include "os/durable_file.h"
#include "os/runtime_dir.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

// Of all processes.
std::vector<std::string> control_groups() {
  std::vector<std::string> groups;
  for (const std::string& name : os::list_directory("/proc").value_or(std::vector<std::string>())) {
    const auto pid = base::parse_integer(name, 1, INT32_MAX);
    if (!pid) continue;
    if (auto group = containers::control_group_of(static_cast<pid_t>(*pid)); !group.empty())
      groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

base::Result<ContainerRecords> ContainerRecords::open(const std::string& path) {
  GPUMUX_TRY(os::make_own_dir(path, 0700));
  auto folder = os::open_directory(path);
  if (!folder) return tl::unexpected(folder.error());
  GPUMUX_TRY(containers::remove_unfinished(folder->get()));
  ContainerRecords records(std::move(*folder));
  GPUMUX_TRY(records.remove_left_over());
  return records;
}

base::Status ContainerRecords::remove_left_over() const {
  // Before the processes, for a container's record is younger than its first process.
  const auto ids = containers::record_ids(folder_.get());
  if (!ids) return tl::unexpected(ids.error());
  if (ids->empty()) return {};
  const std::vector<std::string> groups = control_groups();
  for (const std::string& id : *ids) {
    const auto record = containers::read_record(folder_.get(), id);
    const auto is_in_it = [&](const std::string& group) { return containers::is_within(group, record->control_group); };
    if (record && std::any_of(groups.begin(), groups.end(), is_in_it)) continue;
    GPUMUX_TRY(containers::remove_record(folder_.get(), id));
  }
  return {};
}

std::shared_ptr<const containers::Record> ContainerRecords::container_of(pid_t pid) const {
  std::string group = containers::control_group_of(pid);
  std::string id = containers::container_id_in(group);
  if (id.empty()) return nullptr;
  if (folder_) {
    auto record = containers::read_record(folder_.get(), id);
    if (record && containers::is_within(group, record->control_group))
      return std::make_shared<const containers::Record>(*std::move(record));
    if (record) {
      server::log_warning("a control group has a container's id and is not that container's",
                          {{"pid", pid}, {"control_group", group}, {"containers", record->control_group}});
    } else if (record.error().code != base::Code::kNotFound) {
      server::log_warning("a container's quotas are not enforced: its record cannot be read",
                          {{"container", id}, {"why", record.error().message()}});
    }
  }
  return std::make_shared<const containers::Record>(
      containers::Record{.id = std::move(id), .control_group = std::move(group)});
}

}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/hook/container_record.h"

#include <string_view>
#include <utility>

#include "base/standing.h"
#include "base/units.h"
#include "containers/control_group.h"
#include "os/durable_file.h"

namespace gpumux::kubernetes {
namespace {

tl::unexpected<base::Error> invalid(std::string what) { return base::fail(base::Code::kInvalid, std::move(what)); }

// "GPU_UUID=NUMBER"
template <class Amount>
base::Status add(std::vector<Amount>& amounts, const std::string& name, const std::string& value,
                 const std::string& number) {
  const std::size_t equals = value.find('=');
  if (equals == std::string::npos) return invalid(name + " " + value + ": GPU_UUID=NUMBER is needed");
  const auto parsed = base::parse_integer(std::string_view(value).substr(equals + 1), 1, UINT64_MAX);
  if (!parsed) return invalid(name + " " + value + ": " + number + ", 1 or more, is needed after the =");
  amounts.push_back({value.substr(0, equals), *parsed});
  return {};
}

}  // namespace

base::Result<RecordOrder> parse_record_order(std::span<char* const> words) {
  if (words.empty() || words[0][0] != '/') return invalid("--record needs an absolute path, of the records' folder");
  RecordOrder order{words[0]};
  for (words = words.subspan(1); !words.empty(); words = words.subspan(2)) {
    const std::string name = words[0];
    if (name != "--claim" && name != "--quota" && name != "--share" && name != "--priority")
      return invalid("'" + name + "' is none of --claim, --quota, --share and --priority");
    if (words.size() == 1) return invalid(name + " needs a value");
    const std::string value = words[1];
    if (name == "--claim") {
      if (!order.claim.uid.empty()) return invalid("--claim is given twice");
      if (value.empty()) return invalid("--claim needs the claim's uid");
      order.claim.uid = value;
    } else if (name == "--priority") {
      const auto priority = base::parse_priority(value);
      if (!priority) return invalid(name + ": " + priority.error().message());
      order.claim.priority = *priority;
    } else if (name == "--quota") {
      GPUMUX_TRY(add(order.claim.quotas, name, value, "a whole number of bytes"));
    } else {
      GPUMUX_TRY(add(order.claim.shares, name, value, "a whole number of cores"));
    }
  }
  GPUMUX_TRY(containers::check_claim(order.claim));
  return order;
}

base::Result<containers::Record> record_of(const State& state, const std::string& control_group) {
  if (control_group.empty())
    return invalid("the state's process " + std::to_string(state.pid) + " has ended, or has no control group");
  // The daemon knows a tenant's container by its control group alone.
  if (containers::container_id_in(control_group) != state.id)
    return invalid("its control group " + control_group + " is not named by the container's id of 64 digits");
  return containers::Record{.id = state.id,
                            .control_group = control_group,
                            .pod_namespace = state.pod_namespace,
                            .pod = state.pod,
                            .name = state.name,
                            .claims = {}};
}

base::Status keep_record(const State& state, const RecordOrder& order) {
  auto record = record_of(state, containers::control_group_of(state.pid));
  if (!record) return tl::unexpected(record.error());
  const auto folder = os::open_directory(order.folder);
  if (!folder) return tl::unexpected(folder.error());
  if (auto old = containers::read_record(folder->get(), record->id)) record->claims = std::move(old->claims);
  std::vector<std::string> taken;
  if (!order.claim.uid.empty()) taken = containers::add_claim(record->claims, order.claim);
  GPUMUX_TRY(containers::write_record(folder->get(), *record));
  if (taken.empty()) return {};
  return base::fail(base::Code::kExists, "claim " + order.claim.uid + " does not count on " + taken.front() +
                                             ", where another claim of the container does; ask for both shares of that "
                                             "GPU in one claim");
}

base::Status forget_record(const State& state, const std::string& folder) {
  const auto opened = os::open_directory(folder);
  if (!opened) return tl::unexpected(opened.error());
  return containers::remove_record(opened->get(), state.id);
}

}  // namespace gpumux::kubernetes

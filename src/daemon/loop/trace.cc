// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/trace.h"

#include "server/api/api_types.h"

namespace gpumux::daemon {

std::shared_ptr<const TenantLabel> TenantLabel::make(pid_t pid, uid_t uid, std::string_view program,
                                                     ContainerLabel container, std::uint64_t job) {
  std::string pod = container.pod.empty() ? "" : server::json_string(container.pod_namespace + "/" + container.pod);
  return std::make_shared<const TenantLabel>(TenantLabel{
      pid, uid, job, std::string(program), server::json_string(program), std::move(container), std::move(pod)});
}

void Trace::record(TraceEntry entry) {
  entry.sequence = next_++;
  const std::size_t place = (entry.sequence - 1) % capacity_;
  if (place < ring_.size()) {
    ring_[place] = std::move(entry);
  } else {
    ring_.push_back(std::move(entry));
  }
  if (listener_) listener_(ring_[place]);
}

const TraceEntry* Trace::at_or_after(std::uint64_t sequence) const {
  const std::uint64_t oldest = next_ - ring_.size();
  if (sequence < oldest) sequence = oldest;
  if (sequence >= next_) return nullptr;
  return &ring_[(sequence - 1) % capacity_];
}

void append_json_line(std::string& text, const TraceEntry& entry, std::optional<uid_t> names_of) {
  const auto add = [&text](std::string_view name, std::string_view json) {
    text.append(text.ends_with('{') ? "\"" : ", \"").append(name).append("\": ").append(json);
  };
  const auto add_word = [&add](std::string_view name, std::string_view word) {
    add(name, std::string("\"").append(word).append("\""));
  };
  text += '{';
  add("sequence", std::to_string(entry.sequence));
  add("time_ns", std::to_string(entry.time.time_since_epoch().count()));
  if (entry.gpu >= 0) add("gpu", std::to_string(entry.gpu));
  add_word("event", entry.event);
  if (entry.tenant.value != 0) add("tenant", std::to_string(entry.tenant.value));
  if (entry.label != nullptr) {
    const bool is_hidden = names_of && *names_of != entry.label->uid;
    if (entry.tenant.value != 0) {
      add("pid", std::to_string(entry.label->pid));
      add("program", is_hidden ? server::json_string(server::kHiddenName) : entry.label->program_json);
    } else if (!is_hidden) {
      add("name", entry.label->program_json);
    }
    if (!is_hidden && !entry.label->pod_json.empty()) add("pod", entry.label->pod_json);
    if (!is_hidden && entry.label->job != 0) add("job", std::to_string(entry.label->job));
  }
  if (entry.epoch.value != 0) add("epoch", std::to_string(entry.epoch.value));
  if (entry.has_lease) add_word("lease", entry.exclusive ? "exclusive" : "shared");
  if (!entry.detail.empty()) add_word("detail", entry.detail);
  if (!entry.before.empty()) {
    add_word("before", entry.before);
    add("before_ns", std::to_string(entry.lasted.count()));
  }
  if (entry.changes_json != nullptr) add("changes", *entry.changes_json);
  text += "}\n";
}

}  // namespace gpumux::daemon

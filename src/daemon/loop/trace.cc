// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/trace.h"

#include <nlohmann/json.hpp>

namespace gpumux::daemon {

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::shared_ptr<const TenantLabel> TenantLabel::make(pid_t pid, uid_t uid, std::string_view program,
                                                     ContainerLabel container, std::uint64_t job) {
  std::string pod = container.pod.empty() ? "" : json_string(container.pod_namespace + "/" + container.pod);
  return std::make_shared<const TenantLabel>(
      TenantLabel{pid, uid, job, std::string(program), json_string(program), std::move(container), std::move(pod)});
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
  text += "{\"sequence\": " + std::to_string(entry.sequence);
  text += ", \"time_ns\": " + std::to_string(entry.time.time_since_epoch().count());
  if (entry.gpu >= 0) text += ", \"gpu\": " + std::to_string(entry.gpu);
  text += ", \"event\": \"";
  text += entry.event;
  text += '"';
  if (entry.tenant.value != 0) text += ", \"tenant\": " + std::to_string(entry.tenant.value);
  if (entry.label != nullptr) {
    const bool is_hidden = names_of && *names_of != entry.label->uid;
    if (entry.tenant.value != 0) {
      text += ", \"pid\": " + std::to_string(entry.label->pid) + ", \"program\": ";
      text += is_hidden ? json_string(kHiddenName) : entry.label->program_json;
    } else if (!is_hidden) {
      text += ", \"name\": " + entry.label->program_json;
    }
    if (!is_hidden && !entry.label->pod_json.empty()) text += ", \"pod\": " + entry.label->pod_json;
    if (!is_hidden && entry.label->job != 0) text += ", \"job\": " + std::to_string(entry.label->job);
  }
  if (entry.epoch.value != 0) text += ", \"epoch\": " + std::to_string(entry.epoch.value);
  if (entry.has_lease) text += entry.exclusive ? ", \"lease\": \"exclusive\"" : ", \"lease\": \"shared\"";
  if (!entry.detail.empty()) {
    text += ", \"detail\": \"";
    text += entry.detail;
    text += '"';
  }
  if (!entry.before.empty()) {
    text += ", \"before\": \"";
    text += entry.before;
    text += "\", \"before_ns\": " + std::to_string(entry.lasted.count());
  }
  if (entry.changes_json != nullptr) text += ", \"changes\": " + *entry.changes_json;
  text += "}\n";
}

}  // namespace gpumux::daemon

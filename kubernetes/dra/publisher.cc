// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/publisher.h"

#include <algorithm>
#include <utility>

namespace gpumux::kubernetes {
namespace {

using base::Code;
using nlohmann::json;

constexpr char kGroup[] = "/apis/resource.k8s.io";

base::Result<json> parsed(const base::Result<std::string>& answer, const char* what) {
  if (!answer) return tl::unexpected(answer.error());
  json object = json::parse(*answer, nullptr, false);
  if (object.is_object()) return object;
  return base::fail(Code::kProtocol, std::string("the API server's answer is no ") + what);
}

std::string text_at(const json& object, const char* pointer) {
  const json::json_pointer at(pointer);
  if (!object.contains(at) || !object[at].is_string()) return {};
  return object[at].get<std::string>();
}

std::int64_t generation_of(const json& slice) {
  const json::json_pointer at("/spec/pool/generation");
  return slice.contains(at) && slice[at].is_number_integer() ? slice[at].get<std::int64_t>() : 0;
}

}  // namespace

base::Result<std::string> find_resource_version(ApiServer& server) {
  const auto group = parsed(server.get(kGroup), "list of versions");
  if (!group && group.error().code != Code::kNotFound) return tl::unexpected(group.error());
  for (const char* known : {"v1", "v1beta2", "v1beta1"}) {
    if (!group || !group->contains("versions") || !(*group)["versions"].is_array()) break;
    for (const json& version : (*group)["versions"]) {
      if (text_at(version, "/version") == known) return known;
    }
  }
  return base::fail(Code::kUnsupported,
                    "the API server serves no resource.k8s.io in a version that is known here (v1, v1beta2, v1beta1); "
                    "enable DynamicResourceAllocation, or use --api device-plugin");
}

SlicePublisher::SlicePublisher(ApiServerSettings server, SliceSettings settings, Report report)
    : server_(std::move(server)), settings_(std::move(settings)), report_(std::move(report)) {}

void SlicePublisher::set_gpus(std::vector<DraGpu> gpus) {
  const std::lock_guard lock(mutex_);
  if (gpus_ == gpus) return;
  gpus_ = std::move(gpus);
  is_new_ = true;
  changed_.notify_all();
}

void SlicePublisher::run() {
  std::string last_failure;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_stopped_ || gpus_; });
  while (!is_stopped_) {
    is_new_ = false;
    const std::vector<DraGpu> gpus = *gpus_;
    lock.unlock();
    const base::Status looked = look(gpus);
    const std::string failure = looked ? "" : looked.error().message();
    if (!failure.empty() && failure != last_failure) report_("the node's ResourceSlices are not published: " + failure);
    if (failure.empty() && !last_failure.empty()) report_("the node's ResourceSlices are published again");
    last_failure = failure;
    lock.lock();
    changed_.wait_for(lock, looked ? std::chrono::milliseconds(kLookEvery) : std::chrono::milliseconds(kRetryEvery),
                      [&] { return is_stopped_ || is_new_; });
  }
}

void SlicePublisher::stop() {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
}

base::Status SlicePublisher::look(const std::vector<DraGpu>& gpus) {
  if (version_.empty()) {
    auto version = find_resource_version(server_);
    if (!version) return tl::unexpected(version.error());
    version_ = std::move(*version);
  }
  const auto devices = slice_devices(gpus, settings_, version_);
  if (!devices) return tl::unexpected(devices.error());
  const std::string path = std::string(kGroup) + "/" + version_ + "/resourceslices";
  const auto list =
      parsed(server_.get(path + "?fieldSelector=spec.nodeName%3D" + settings_.node + "%2Cspec.driver%3D" + kDraDriver),
             "list of slices");
  if (!list) {
    // A server that was changed may serve another version.
    if (list.error().code == Code::kNotFound) version_.clear();
    return tl::unexpected(list.error());
  }
  Versions found;
  std::int64_t generation = 0;
  const json items = list->value("items", json::array());
  for (const json& slice : items) {
    if (text_at(slice, "/spec/nodeName") != settings_.node || text_at(slice, "/spec/driver") != kDraDriver) continue;
    generation = std::max(generation, generation_of(slice));
    found[text_at(slice, "/metadata/name")] = text_at(slice, "/metadata/resourceVersion");
  }
  if (written_ && written_->versions == found && written_->devices == *devices) return {};
  return write(path, std::move(found), *devices, generation + 1);
}

base::Status SlicePublisher::write(const std::string& path, Versions found, const json& devices,
                                   std::int64_t generation) {
  const auto owner = node_uid();
  if (!owner) return tl::unexpected(owner.error());
  Versions versions;
  for (json& slice : resource_slices(devices, settings_, version_, generation, *owner)) {
    const std::string name = text_at(slice, "/metadata/name");
    const auto old = found.extract(name);
    if (!old.empty()) slice["metadata"]["resourceVersion"] = old.mapped();
    const auto answer = parsed(
        old.empty() ? server_.create(path, slice.dump()) : server_.replace(path + "/" + name, slice.dump()), "slice");
    if (!answer) return tl::unexpected(answer.error());
    versions[name] = text_at(*answer, "/metadata/resourceVersion");
  }
  for (const auto& [name, version] : found) {
    if (const auto removed = server_.remove(path + "/" + name); !removed && removed.error().code != Code::kNotFound)
      return removed;
  }
  written_ = Written{std::move(versions), devices};
  return {};
}

base::Result<std::string> SlicePublisher::node_uid() {
  const auto node = parsed(server_.get("/api/v1/nodes/" + settings_.node), "node");
  if (node) {
    no_owner_.clear();
    return text_at(*node, "/metadata/uid");
  }
  if (node.error().code != Code::kDenied && node.error().code != Code::kNotFound) return tl::unexpected(node.error());
  // GPUs are worth more than their owner.
  if (no_owner_ != node.error().message()) {
    no_owner_ = node.error().message();
    report_("the node's ResourceSlices have no owner, so they stay when the Node is removed: " + no_owner_);
  }
  return std::string();
}

}  // namespace gpumux::kubernetes

// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/hook/runtime_state.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace gpumux::kubernetes {
namespace {

using Json = nlohmann::json;

// Bytes that are no JSON become a value that is no object.
Json parse(std::string_view text) { return Json::parse(text.begin(), text.end(), nullptr, false); }

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// A path that system calls take whole: not empty, and without the zero that would end it early.
const std::string* path_in(const Json* value) {
  const std::string* text = value == nullptr ? nullptr : value->get_ptr<const std::string*>();
  return text == nullptr || text->empty() || text->find('\0') != std::string::npos ? nullptr : text;
}

std::string text_in(const Json* object, const char* name) {
  const Json* value = object == nullptr ? nullptr : member(*object, name);
  const auto* text = value == nullptr ? nullptr : value->get_ptr<const std::string*>();
  return text == nullptr ? std::string() : *text;
}

pid_t pid_in(const Json& state) {
  const Json* value = member(state, "pid");
  const auto* number = value == nullptr ? nullptr : value->get_ptr<const Json::number_unsigned_t*>();
  return number == nullptr || *number > INT32_MAX ? 0 : static_cast<pid_t>(*number);
}

// The names of one runtime's annotations.
struct Annotations {
  const char* pod_namespace;
  const char* pod;
  const char* name;
};

// CRI-O's first: CRI-O passes a pod's own annotations on, and containerd only those that its operator lists.
constexpr Annotations kAnnotations[] = {
    {"io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"},
    {"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"}};

}  // namespace

base::Result<State> parse_state(std::string_view text) {
  const Json parsed = parse(text);
  const std::string* bundle = path_in(member(parsed, "bundle"));
  if (bundle == nullptr || bundle->front() != '/') {
    return base::fail(base::Code::kInvalid, "standard input is no container state with an absolute \"bundle\"");
  }
  State state{text_in(&parsed, "id"), *bundle, pid_in(parsed)};
  const Json* annotations = member(parsed, "annotations");
  for (const Annotations& one : kAnnotations) {
    state.pod = text_in(annotations, one.pod);
    if (state.pod.empty()) continue;
    state.pod_namespace = text_in(annotations, one.pod_namespace);
    state.name = text_in(annotations, one.name);
    break;
  }
  return state;
}

base::Result<Root> root_of(std::string_view config, const std::string& bundle) {
  const Json parsed = parse(config);
  const Json* root = member(parsed, "root");
  const std::string* path = root == nullptr ? nullptr : path_in(member(*root, "path"));
  if (path == nullptr) return base::fail(base::Code::kInvalid, bundle + "/config.json has no \"path\" of a \"root\"");
  const Json* read_only = member(*root, "readonly");
  return Root{path->front() == '/' ? *path : bundle + "/" + *path, read_only != nullptr && *read_only == true};
}

}  // namespace gpumux::kubernetes

// SPDX-License-Identifier: Apache-2.0
// Which handles a program holds. A handle is the object's address; the table says whether it is one, and keeps the
// object alive while it is. A stale or invented handle is found out instead of followed.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gpumux::sim {

template <class Object>
class HandleTable {
 public:
  // Handle types are pointers to types without a definition.
  template <class Handle>
  Handle add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    auto* address = object.get();
    objects_.emplace(address, std::move(object));
    return reinterpret_cast<Handle>(address);
  }

  std::shared_ptr<Object> find(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // Null if it was not there.
  std::shared_ptr<Object> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  std::vector<std::shared_ptr<Object>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Object>> objects;
    objects.reserve(objects_.size());
    for (const auto& [address, object] : objects_) objects.push_back(object);
    return objects;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Object>> objects_;
};

}  // namespace gpumux::sim

// SPDX-License-Identifier: Apache-2.0
// A small set in a vector, ascending. It does not allocate for each element. Looking into an empty one costs nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gpumux::sched {

template <class T, class Less>
class FlatSet {
 public:
  auto begin() const { return elements_.begin(); }
  auto end() const { return elements_.end(); }
  bool empty() const { return elements_.empty(); }
  std::size_t size() const { return elements_.size(); }
  // REQUIRES: !empty()
  const T& front() const { return elements_.front(); }
  const T& back() const { return elements_.back(); }

  bool contains(const T& element) const { return std::binary_search(begin(), end(), element, Less()); }
  void insert(const T& element) {
    const auto at = std::lower_bound(elements_.begin(), elements_.end(), element, Less());
    if (at == elements_.end() || Less()(element, *at)) elements_.insert(at, element);
  }
  void erase(const T& element) {
    const auto at = std::lower_bound(elements_.begin(), elements_.end(), element, Less());
    if (at != elements_.end() && !Less()(element, *at)) elements_.erase(at);
  }

 private:
  std::vector<T> elements_;
};

}  // namespace gpumux::sched

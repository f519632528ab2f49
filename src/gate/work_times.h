// SPDX-License-Identifier: Apache-2.0
// How long a seat's submissions take on the GPU, by what they are.
//
// The call does not tell how long a submission takes, and the average of those before it says little. A training step
// has hundreds of kernels of ten microseconds and then some of two milliseconds. But programs repeat themselves. So
// each kind of submission (which kernel, with how many threads; how large a copy) has a time of its own. The same
// kernel on the same threads may be another matrix: then it comes after other work, and has another time there.
//
// The times are learned from groups of submissions that ran one after the other on a stream. A group's time is shared
// out in proportion to its members' expected times. The rest beyond the known members' times goes to the unknown ones.
//
// A table of fixed size, in which a kind may take the place of another; it is then learned again. Not for several
// threads at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpumux::gate {

// The same number for submissions that are likely to take the same time. Any number; a hash.
using WorkKind = std::uint64_t;

// One submission: its kind, and the same together with what came before it.
struct Work {
  WorkKind kind = 0;
  WorkKind in_context = 0;
};

class WorkTimes {
 public:
  // In nanoseconds. Zero: not known.
  double of(const Work& work) const;

  // These ran one after the other and took `elapsed_ns` together.
  void learn(std::span<const Work> group, double elapsed_ns);
  // They took no longer than `elapsed_ns`, for the GPU idled in between. Known members may turn out shorter. An unknown
  // member is believed to take `most_ns` at most.
  void learn_at_most(std::span<const Work> group, double elapsed_ns, double most_ns);

 private:
  // 64 KiB, made with the first one learned. A guess: more kinds of work than programs have.
  static constexpr std::size_t kEntries = 4096;

  struct Entry {
    WorkKind kind = 0;
    double ns = 0;
  };
  static std::size_t place_of(WorkKind kind);
  double look_up(WorkKind kind) const;
  void store(WorkKind kind, double ns) { entries_[place_of(kind)] = {kind, ns}; }
  double known_ns(std::span<const Work> group) const;
  bool learn_unknown(std::span<const Work> group, double elapsed_ns, double most_ns);
  void change(std::span<const Work> group, double ratio);

  std::vector<Entry> entries_;
};

}  // namespace gpumux::gate

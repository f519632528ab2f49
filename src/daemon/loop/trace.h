// SPDX-License-Identifier: Apache-2.0
// The lease trace: which tenant asked for, got and lost which GPU when, and how jobs' states changed. A ring in memory,
// read by GET /v1/trace and copied to --trace FILE.
//
// Owned by the loop's thread. An entry is 128 bytes and is made for every message and grant, so it holds no text of its
// own. A tenant's name is shared by all its entries; everything else is a word from a fixed list. Exception: the text
// of a change of settings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace gpumux::daemon {

// 8 MiB; at 1,000 switches a second, about 13 seconds of history.
inline constexpr std::size_t kTraceEntries = 65536;

// The container that a tenant is in; all empty: in none.
struct ContainerLabel {
  std::string id;
  // Of a container that has a record (containers/record.h); otherwise empty.
  std::string pod_namespace;
  std::string pod;
  std::string name;
  std::string claim;
};

// A tenant's name for people, or a job's, which has its own name for a program's. Shared, because it outlives the
// tenant in the trace.
struct TenantLabel {
  pid_t pid = 0;  // 0: a job
  uid_t uid = 0;
  std::uint64_t job = 0;  // of the queue; 0: in none
  std::string program;
  std::string program_json;  // with quotes, escaped
  ContainerLabel container;
  std::string pod_json;  // "namespace/pod", with quotes, escaped; empty: in no pod that is known

  static std::shared_ptr<const TenantLabel> make(pid_t pid, uid_t uid, std::string_view program,
                                                 ContainerLabel container = {}, std::uint64_t job = 0);
};

// A new kind of entry has these readers, by its name: `cli/views/trace_view.cc` and `trace_history.cc`,
// `cli/timeline/timeline.cc`, `top/model.cc`, `web/page/src/state.ts` and `leases.ts`; docs/api.md and docs/timeline.md
// list it. An entry of no tenant, other than `job`, is in no picture.
//
// Of an entry, readers who may not see names see all but `label`: it must say nothing else that is not for all.
struct TraceEntry {
  std::uint64_t sequence = 0;  // from 1, without gaps
  base::TimePoint time{};
  std::string_view event{};   // a literal
  std::string_view detail{};  // a literal, or empty
  std::string_view before{};  // the name of the state that this entry ends, a literal; empty: none that has a length
  base::Duration lasted{};    // how long `before` was so
  std::int32_t gpu = -1;      // -1: none
  bool has_lease = false;
  bool exclusive = false;
  base::TenantId tenant{};  // 0: none
  base::LeaseEpoch epoch{};
  std::shared_ptr<const TenantLabel> label{};
  std::shared_ptr<const std::string> changes_json{};  // of `settings`: {"name": ["before", "after"]}; null: none
};

class Trace {
 public:
  explicit Trace(std::size_t capacity = kTraceEntries) : capacity_(capacity) {}

  // Numbers and keeps the entry.
  void record(TraceEntry entry);

  // The oldest entry with a sequence of at least `sequence`; null: none yet.
  const TraceEntry* at_or_after(std::uint64_t sequence) const;
  std::uint64_t last_sequence() const { return next_ - 1; }

  // Called after each record with the new entry. One listener: the server that serves followers and the file.
  void listen(std::function<void(const TraceEntry&)> listener) { listener_ = std::move(listener); }

 private:
  std::size_t capacity_;
  std::vector<TraceEntry> ring_;  // grows to capacity_, then entry n lies at n % capacity_
  std::uint64_t next_ = 1;
  std::function<void(const TraceEntry&)> listener_;
};

// One line of JSON with its newline. `names_of`: the only user whose programs have their names in it.
void append_json_line(std::string& text, const TraceEntry& entry, std::optional<uid_t> names_of = {});

}  // namespace gpumux::daemon

// SPDX-License-Identifier: Apache-2.0
// The user's view, and the effect of each key on it. Pure.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "top/changes.h"
#include "top/model.h"

namespace gpumux::top {

enum class Pane : std::uint8_t { kPrograms, kJobs };

// A row stays the same row while others come and go.
struct RowId {
  std::uint64_t gpu = 0;
  std::uint64_t number = 0;  // the tenant, or the job
  bool operator==(const RowId&) const = default;
};

struct ProgramRow {
  const api_client::Gpu* gpu = nullptr;
  const api_client::Seat* seat = nullptr;
  RowId id() const { return {gpu->index, seat->tenant}; }
};

// The selected row of a pane. `row` counts while the row with `id` is there; `index` says which comes instead.
struct Cursor {
  std::optional<RowId> id{};
  std::size_t index = 0;
};

// The orders of each table, as the menu names them.
inline constexpr std::array<std::string_view, 7> kProgramOrders{"turn: holders, then the queue",
                                                                "GPU time in the last 5 s",
                                                                "GPU time",
                                                                "time waited",
                                                                "memory on the GPU",
                                                                "program",
                                                                "user"};
inline constexpr std::array<std::string_view, 5> kJobOrders{"queue: running, then waiting", "number", "name", "user",
                                                            "time"};

// The part of the screen that keys go to.
struct Browsing {};
struct Helping {
  std::size_t top = 0;
};
struct Sorting {
  std::size_t choice = 0;
};
struct Filtering {
  std::string before;  // the filter that comes back if this is given up
};
struct AskingPriority {
  PriorityOf target;
  std::string text;
};
struct Confirming {
  Change change;
};
using Mode = std::variant<Browsing, Helping, Sorting, Filtering, AskingPriority, Confirming>;

// The lengths of the timeline: single turns, a minute, and all that is kept.
inline constexpr std::array<base::Duration, 3> kWindows{std::chrono::seconds(15), std::chrono::seconds(60), kHistory};

struct View {
  Pane pane = Pane::kPrograms;
  Mode mode = Browsing{};
  Cursor programs;
  Cursor jobs;
  std::size_t program_order = 0;
  std::size_t job_order = 0;
  std::string filter;
  std::optional<std::uint32_t> gpu;  // the only one whose programs are shown
  std::size_t window = 1;            // of kWindows
  std::size_t page = 10;             // the rows that Page Down moves by: those that the pane had when it was drawn
  std::vector<std::uint64_t> pages;  // of jobs: the last job of each page before the one that is shown
  Message message;                   // the answer to the last change, or what a key could not do
};

// The rows of each pane in their order, without those that the filter leaves out. They point into the model.
std::vector<ProgramRow> program_rows(const Model& model, const View& view);
std::vector<const api_client::Job*> job_rows(const Model& model, const View& view, std::int64_t now_unix_ns);

// The index of the cursor's row among `ids`.
std::size_t row_of(const Cursor& cursor, const std::vector<RowId>& ids);

enum class Key : std::uint8_t {
  kText,  // with its character
  kUp,
  kDown,
  kLeft,
  kRight,
  kPageUp,
  kPageDown,
  kFirst,
  kLast,
  kTab,
  kEnter,
  kEscape,
  kErase,
  kF1,
  kF3,
  kF4,
  kF6,
  kF7,
  kF9,
  kF10,
  kInterrupt
};

struct KeyPress {
  Key key = Key::kText;
  std::string text = {};  // kText: the character in UTF-8
};

// The event loop's part after a key.
struct Quit {};
struct AskForJobs {};  // view.pages has changed
using Effect = std::variant<std::monostate, Quit, AskForJobs, Change>;

Effect press(View& view, const Model& model, const KeyPress& key, std::int64_t now_unix_ns);

}  // namespace gpumux::top

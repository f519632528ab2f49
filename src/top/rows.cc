// SPDX-License-Identifier: Apache-2.0
// The rows of the tables: which there are, and in which order.
#include <algorithm>

#include "cli/jobs/job_groups.h"
#include "cli/jobs/job_texts.h"
#include "cli/views/seat_texts.h"
#include "top/view_state.h"

namespace gpumux::top {
namespace {

using api_client::Job;
using api_client::Seat;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Letters of ASCII match in either case.
bool contains(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) { return lower(a) == lower(b); };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

bool matches(const std::vector<std::string>& texts, const std::string& filter) {
  return filter.empty() ||
         std::any_of(texts.begin(), texts.end(), [&](const std::string& text) { return contains(text, filter); });
}

std::uint64_t on_gpu(const Seat& seat) { return seat.memory ? seat.memory->resident + seat.memory->unpageable : 0; }

bool program_goes_first(const Seat& a, const Seat& b, std::size_t order) {
  switch (order) {
    case 1: return a.recent_gpu_time > b.recent_gpu_time;
    case 2: return a.gpu_time > b.gpu_time;
    case 3: return a.waited > b.waited;
    case 4: return on_gpu(a) > on_gpu(b);
    case 5: return cli::program_text(a) < cli::program_text(b);
    case 6: return cli::user_text(a) < cli::user_text(b);
    default: return false;  // as they are: by turn
  }
}

}  // namespace

std::vector<ProgramRow> program_rows(const Model& model, const View& view) {
  std::vector<ProgramRow> rows;
  if (!model.snapshot()) return rows;
  for (const api_client::Gpu& gpu : model.snapshot()->gpus) {
    if (view.gpu && gpu.index != *view.gpu) continue;
    for (const Seat* seat : cli::in_order(gpu)) {
      const std::vector<std::string> texts{cli::program_text(*seat), cli::user_text(*seat), std::to_string(seat->pid),
                                           seat->phase};
      if (matches(texts, view.filter)) rows.push_back({&gpu, seat});
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const ProgramRow& a, const ProgramRow& b) {
    return program_goes_first(*a.seat, *b.seat, view.program_order);
  });
  return rows;
}

std::vector<const Job*> job_rows(const Model& model, const View& view, std::int64_t now_unix_ns) {
  std::vector<const Job*> rows;
  for (const Job& job : model.jobs().jobs) {
    if (matches({cli::job_label(job), job.name, job.user, job.state}, view.filter)) rows.push_back(&job);
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Job* a, const Job* b) {
    switch (view.job_order) {
      case 1: return a->id < b->id;
      case 2: return a->name < b->name;
      case 3: return a->user < b->user;
      case 4: return cli::elapsed(*a, now_unix_ns) > cli::elapsed(*b, now_unix_ns);
      default: return false;  // as they are: by the queue
    }
  });
  return rows;
}

std::size_t row_of(const Cursor& cursor, const std::vector<RowId>& ids) {
  if (cursor.id) {
    const auto found = std::find(ids.begin(), ids.end(), *cursor.id);
    if (found != ids.end()) return static_cast<std::size_t>(found - ids.begin());
  }
  return ids.empty() ? 0 : std::min(cursor.index, ids.size() - 1);
}

}  // namespace gpumux::top

// SPDX-License-Identifier: Apache-2.0
#include "daemon/queue/ledger_rows.h"

#include <chrono>
#include <string>
#include <utility>
#include <variant>

namespace gpumux::daemon {
namespace {

namespace store = jobs::store;

double seconds(base::Duration time) { return std::chrono::duration<double>(time).count(); }

std::string cut(const std::string& text) { return text.substr(0, store::kMaxLedgerTextBytes); }

store::LedgerRow row_of(const LedgerKey& key, const std::vector<jobs::JobQueue::GpuOf>& gpus) {
  store::LedgerRow row{.owner = {key.owner.uid, cut(key.owner.pod_namespace), cut(key.owner.pod)},
                       .program = {},
                       .gpu = gpus.at(key.gpu.value).uuid};
  if (const auto* program = std::get_if<LedgerProgram>(&key.what))
    row.program = store::LedgerProgram{cut(program->name), jobs::JobId{program->job}};
  return row;
}

store::LedgerSums sums_of(const LedgerFigures& figures) {
  return {.held = seconds(figures.held),
          .gpu_time = seconds(figures.gpu_time),
          .waited = seconds(figures.waited),
          .resident_byte_seconds = figures.resident_byte_seconds,
          .evicted_byte_seconds = figures.evicted_byte_seconds,
          .switches = figures.switches};
}

}  // namespace

std::vector<jobs::UsedRow> rows_of(const std::vector<LedgerLine>& lines,
                                   const std::vector<jobs::JobQueue::GpuOf>& gpus) {
  std::vector<jobs::UsedRow> rows;
  rows.reserve(lines.size());
  for (const LedgerLine& line : lines) rows.push_back({row_of(line.key, gpus), sums_of(line.figures)});
  return rows;
}

}  // namespace gpumux::daemon

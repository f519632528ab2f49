// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/checks.h"

#include <set>

namespace gpumux::jobs::store {
namespace {

Status too_long(std::string_view what, std::size_t has, std::size_t most) {
  return base::fail(base::Code::kInvalid, "the job's " + std::string(what) + " has " + std::to_string(has) +
                                              " bytes; at most " + std::to_string(most) + " can be stored");
}

Status check_lengths(const StoredJob& job, std::size_t document) {
  if (job.name.size() > kMaxNameBytes) return too_long("name", job.name.size(), kMaxNameBytes);
  if (job.token.size() > kMaxTokenBytes) return too_long("token", job.token.size(), kMaxTokenBytes);
  if (job.log.size() > kMaxLogBytes) return too_long("log's path", job.log.size(), kMaxLogBytes);
  if (job.note.size() > kMaxNoteBytes) return too_long("note", job.note.size(), kMaxNoteBytes);
  if (job.command.size() > kMaxCommandBytes) return too_long("command", job.command.size(), kMaxCommandBytes);
  if (document > kMaxDocumentBytes) return too_long("description", document, kMaxDocumentBytes);
  return {};
}

Status check_texts(const LedgerRow& row) {
  for (const std::string* text : {&row.owner.pod_namespace, &row.owner.pod, &row.gpu}) {
    if (text->size() > kMaxLedgerTextBytes) return base::fail(base::Code::kInvalid, "a name in the ledger is too long");
  }
  if (row.program && row.program->name.size() > kMaxLedgerTextBytes)
    return base::fail(base::Code::kInvalid, "a program's name in the ledger is too long");
  return {};
}

}  // namespace

Status check(const std::vector<Change>& changes) {
  std::set<JobId> inserted;
  for (const Change& change : changes) {
    if (const auto* insert = std::get_if<Insert>(&change)) {
      const JobId id = insert->job.spec.id;
      if (id == jobs::kNoJob || id.value > INT64_MAX)
        return base::fail(base::Code::kInvalid, "a job without a proper id");
      if (!inserted.insert(id).second)
        return base::fail(base::Code::kExists, "job " + std::to_string(id.value) + " is stored twice at once");
      GPUMUX_TRY(check_lengths(insert->job, insert->text().size()));
    } else if (const auto* update = std::get_if<Update>(&change)) {
      if (update->note.size() > kMaxNoteBytes) return too_long("note", update->note.size(), kMaxNoteBytes);
    } else if (const auto* row = std::get_if<AddToLedger>(&change)) {
      GPUMUX_TRY(check_texts(row->row));
    }
  }
  return {};
}

}  // namespace gpumux::jobs::store

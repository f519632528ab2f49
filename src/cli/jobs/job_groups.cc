// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/job_groups.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "cli/jobs/job_texts.h"

namespace gpumux::cli {
namespace {

using api_client::Job;

// A list of indices is as long as a column can bear.
constexpr std::size_t kLongestIndices = 24;

// In this order.
constexpr std::array<std::string_view, 10> kCounted{
    "running", "waiting", "suspended", "held", "done", "failed", "cancelled", "timed out", "dependency failed", "lost"};

std::string_view counted_as(const Job& job) {
  const std::string state = state_text(job);
  const std::string_view shown = state == "queued" ? std::string_view("waiting") : std::string_view(state);
  const auto* const found = std::find(kCounted.begin(), kCounted.end(), shown);
  return found != kCounted.end() ? *found : job.is_done() ? std::string_view("done") : std::string_view("running");
}

std::string counts(const std::vector<Job>& jobs, bool is_summary) {
  std::map<std::string_view, std::uint64_t> count;
  for (const Job& job : jobs) ++count[counted_as(job)];
  std::string text;
  for (const std::string_view what : kCounted) {
    const bool always = is_summary && (what == "running" || what == "waiting");
    if (count[what] > 0 || always)
      text += (text.empty() ? "" : ", ") + std::to_string(count[what]) + " " + std::string(what);
  }
  return text;
}

}  // namespace

std::vector<JobGroup> by_array(std::vector<Job> jobs) {
  std::vector<JobGroup> groups;
  std::map<std::uint64_t, std::size_t> of_array;
  for (Job& job : jobs) {
    const auto known = job.array ? of_array.find(*job.array) : of_array.end();
    if (known != of_array.end()) {
      groups[known->second].push_back(std::move(job));
      continue;
    }
    if (job.array) of_array[*job.array] = groups.size();
    groups.emplace_back().push_back(std::move(job));
  }
  return groups;
}

std::vector<JobGroup> one_by_one(std::vector<Job> jobs) {
  std::vector<JobGroup> groups;
  groups.reserve(jobs.size());
  for (Job& job : jobs) groups.emplace_back().push_back(std::move(job));
  return groups;
}

std::string job_label(const Job& job) {
  return job.array && job.array_index ? std::to_string(*job.array) + "_" + std::to_string(*job.array_index)
                                      : std::to_string(job.id);
}

std::string group_label(const JobGroup& group) {
  const Job& first = group.front();
  if (group.size() == 1 || !first.array) return job_label(first);
  std::vector<std::uint64_t> indices;
  for (const Job& job : group) indices.push_back(job.array_index.value_or(0));
  std::sort(indices.begin(), indices.end());
  return std::to_string(*first.array) + "_[" + index_ranges(indices) +
         (first.array_limit ? "%" + std::to_string(*first.array_limit) : "") + "]";
}

std::string index_ranges(const std::vector<std::uint64_t>& indices) {
  if (indices.empty()) return "";
  const std::string ends = std::to_string(indices.front()) + "-" + std::to_string(indices.back());
  const std::uint64_t step = indices.size() > 2 ? indices[1] - indices[0] : 1;
  bool is_even = step > 1;
  for (std::size_t i = 1; i < indices.size() && is_even; ++i) is_even = indices[i] - indices[i - 1] == step;
  if (is_even) return ends + ":" + std::to_string(step);
  std::string text;
  for (std::size_t i = 0; i < indices.size();) {
    std::size_t last = i;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
    if (text.size() > kLongestIndices) return text + ",...";
    text += (text.empty() ? "" : ",") + std::to_string(indices[i]);
    if (last > i) text += "-" + std::to_string(indices[last]);
    i = last + 1;
  }
  return text;
}

std::string counts_text(const std::vector<Job>& jobs) { return counts(jobs, false); }
std::string summary_text(const std::vector<Job>& jobs) { return counts(jobs, true); }

}  // namespace gpumux::cli

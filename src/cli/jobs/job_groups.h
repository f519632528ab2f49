// SPDX-License-Identifier: Apache-2.0
// Arrays in one line: jobs in groups, a group being a single job or elements of one array.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api_client/jobs.h"

namespace gpumux::cli {

// Never empty.
using JobGroup = std::vector<api_client::Job>;

// Elements of one array together, where the first of them stands.
std::vector<JobGroup> by_array(std::vector<api_client::Job> jobs);
std::vector<JobGroup> one_by_one(std::vector<api_client::Job> jobs);

// "17", or "17_3" for an element of an array: the form that every command takes.
std::string job_label(const api_client::Job& job);
// "17", or "51_[0-199%2]" for several elements.
std::string group_label(const JobGroup& group);

// "0-9", "0-40:4", "1,3,7-20"; a long list is cut: "1,5,6,...". REQUIRES: ascending.
std::string index_ranges(const std::vector<std::uint64_t>& indices);

// "2 running, 197 waiting, 1 failed": how many are in each state, or have ended in which way. Only what there is.
std::string counts_text(const std::vector<api_client::Job>& jobs);
// The same, but running and waiting jobs are counted in any case.
std::string summary_text(const std::vector<api_client::Job>& jobs);

}  // namespace gpumux::cli

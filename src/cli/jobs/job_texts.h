// SPDX-License-Identifier: Apache-2.0
// Words for a job's facts, as all views of jobs have them. As they came: not yet printable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api_client/jobs.h"
#include "base/clock.h"
#include "cli/frame/terminal.h"
#include "cli/frame/words.h"

namespace gpumux::cli {

template <class Number>
std::string joined(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

// "90s", "12m05s": whole seconds, for what lasts minutes.
std::string time_text(base::Duration duration);

// How long the job has run, or, before that, waited.
base::Duration elapsed(const api_client::Job& job, std::int64_t now_unix_ns);

// "running"; of a job that is done, its end: "done", "failed", "cancelled", ...
std::string state_text(const api_client::Job& job);
Colour colour_of(const api_client::Job& job);

// "0,2" that it has; "(0,2)" that it will have. Any two are "any 2": "(2)" would look like GPU 2.
std::string gpus_text(const api_client::Job& job);
std::string memory_text(const api_client::Job& job);
// "2023-11-14 22:13:20"; "-": never.
std::string date_text(std::int64_t unix_ns);
// Until its time is over, by its own limit or the queue's: "12m05s left". Empty: it has none, or does not run.
std::string time_left(const api_client::Job& job);
// Its own: "1:30:00"; empty: none.
std::string limit_text(const api_client::Job& job);
// "within 20m": the job starts between now and then, as far as time limits tell. Empty: they tell nothing.
std::string start_text(const api_client::Job& job);
// "1h02m" that its programs have had of GPUs; empty: none.
std::string gpu_time_text(double gpu_seconds);
// The most memory that they had on one GPU; empty: none.
std::string peak_text(std::uint64_t bytes);
// "-": it has none.
std::string exit_text(const api_client::Job& job);

}  // namespace gpumux::cli

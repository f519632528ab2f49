// SPDX-License-Identifier: Apache-2.0
// The changes that the user may make from within `gpumux top`, and the text for the daemon's answer. Pure.
//
// A change is a request of the HTTP API, with the user's own rights. The daemon decides whether it is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api_client/jobs.h"
#include "api_client/request.h"
#include "api_client/types.h"
#include "base/result.h"

namespace gpumux::top {

struct Message {
  std::string text{};
  bool is_error = false;
};

// It is sent when the user has confirmed the question.
struct Change {
  api_client::Request request;
  std::string question;  // "Cancel job 17 (train) of eva?"
  std::string done;      // "job 17 (train) is told to end"
};

// "job 17 (train) of eva"
std::string name_of(const api_client::Job& job);

Change cancel(const api_client::Job& job);
// Of a job that is known by its number only.
Change cancel(std::uint64_t job);
// Holds a job that waits, and releases one that is held. Nothing: the job does neither.
std::optional<Change> hold_or_release(const api_client::Job& job);

// A job or a program whose priority is to change.
struct PriorityOf {
  std::string address;  // of the PATCH
  std::string name;
  std::int64_t now = 0;
};
PriorityOf priority_of(const api_client::Job& job);
PriorityOf priority_of(const api_client::Seat& seat);
// kInvalid: `text` is no priority.
base::Result<Change> change_priority(const PriorityOf& target, std::string_view text);

// The message for the daemon's answer.
Message outcome_of(const Change& change, const base::Result<std::string>& answer);

}  // namespace gpumux::top

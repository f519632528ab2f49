// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/admin_change.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "api_client/jobs.h"
#include "base/standing.h"
#include "base/units.h"
#include "cli/frame/command.h"

namespace gpumux::cli {
namespace {

using base::Code;
using base::Result;
using Changes = std::vector<AdminChange>;

constexpr std::array<std::string_view, 6> kActions{"show", "pause", "unpause", "drain", "resume", "limits"};
constexpr std::array<std::string_view, 4> kLimits{"running", "queued", "gpus", "priority_cap"};

// More than any queue ever holds.
constexpr std::uint64_t kMostJobs = 1'000'000'000;

template <std::size_t N>
std::string or_list(const std::array<std::string_view, N>& words) {
  std::string text;
  for (std::size_t i = 0; i < N; ++i)
    text += std::string(i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(words[i]);
  return text;
}

base::Error unknown(std::string_view kind, std::string_view word, const std::vector<std::string_view>& known,
                    const std::string& all) {
  const std::string_view guess = nearest(word, known);
  return {Code::kInvalid, 0,
          "'" + std::string(word.substr(0, 64)) + "' is no " + std::string(kind) +
              (guess.empty() ? "" : " (did you mean " + std::string(guess) + "?)") + ": write " + all};
}

Result<Changes> parse_limits(const std::vector<std::string>& words) {
  if (words.size() < 3 || words[1].empty())
    return base::fail(Code::kInvalid, "limits needs a user and a limit, such as: limits eva running=2");
  nlohmann::json body = nlohmann::json::object();
  for (std::size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "default") {
      body["default"] = true;
      continue;
    }
    const std::size_t equals = words[i].find('=');
    const std::string key = words[i].substr(0, equals);
    if (equals == std::string::npos || std::find(kLimits.begin(), kLimits.end(), key) == kLimits.end())
      return tl::unexpected(unknown("limit", key, {kLimits.begin(), kLimits.end()},
                                    or_list(kLimits) + ", each with =NUMBER, or default"));
    const std::string value = words[i].substr(equals + 1);
    if (body.contains(key)) return base::fail(Code::kInvalid, key + " is given twice");
    if (value == "unlimited") {
      body[key] = nullptr;
    } else if (key == "priority_cap") {
      const auto cap = base::parse_priority(value);
      if (!cap) return tl::unexpected(base::Error{Code::kInvalid, 0, key + ": " + cap.error().what});
      body[key] = *cap;
    } else {
      const auto number = base::parse_integer(value, 0, kMostJobs);
      if (!number) return tl::unexpected(base::Error{Code::kInvalid, 0, key + ": " + number.error().what});
      body[key] = *number;
    }
  }
  if (body.contains("default") && body.size() > 1)
    return base::fail(Code::kInvalid, "default removes all limits of the user: it cannot be combined with others");
  return Changes{{"users/" + api_client::url_encoded(words[1]), body.dump()}};
}

}  // namespace

Result<Changes> parse_admin_words(const std::vector<std::string>& words) {
  if (words.empty()) return base::fail(Code::kInvalid, "ACTION is missing: write " + or_list(kActions));
  const std::string& action = words[0];
  const bool alone = action == "show" || action == "pause" || action == "unpause";
  if (alone && words.size() > 1) return base::fail(Code::kInvalid, action + " takes no further words");
  if (action == "show") return Changes{};
  if (alone) return Changes{{"", action == "pause" ? R"({"paused":true})" : R"({"paused":false})"}};
  if (action == "limits") return parse_limits(words);
  if (action == "drain" || action == "resume") {
    if (words.size() == 1)
      return base::fail(Code::kInvalid, action + " needs GPUs: write their numbers or UUIDs, or all");
    Changes changes;
    for (std::size_t i = 1; i < words.size(); ++i) {
      changes.push_back({"gpus/" + api_client::url_encoded(words[i]),
                         action == "drain" ? R"({"drained":true})" : R"({"drained":false})"});
    }
    return changes;
  }
  return tl::unexpected(unknown("action", action, {kActions.begin(), kActions.end()}, or_list(kActions)));
}

}  // namespace gpumux::cli

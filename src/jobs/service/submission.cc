// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/submission.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/limits.h"
#include "base/program_name.h"
#include "base/shell_words.h"
#include "base/split.h"
#include "base/standing.h"
#include "base/units.h"
#include "jobs/service/json_fields.h"
#include "jobs/store/job_store.h"

namespace gpumux::jobs {
namespace {

using SortedJson = nlohmann::json;
using base::Code;
using base::Result;
using base::Status;

// The loop looks at each of them when the job is handed in and when it ends. An array counts as one.
constexpr std::size_t kMaxDependencies = 100;
constexpr std::size_t kMaxArrayDependencies = 100'000;  // of all elements together
// Ten years: longer than any job, and 64 bits of nanoseconds have place for it many times.
constexpr std::uint64_t kMaxTimeLimit = std::uint64_t{10} * 365 * 24 * 3600 * 1'000'000'000;

tl::unexpected<base::Error> refusal(std::string what) { return base::fail(Code::kInvalid, std::move(what)); }

Status read_gpus(JsonFields& fields, Submission& submission) {
  auto& spec = submission.spec;
  std::vector<std::uint32_t>& order = submission.document.gpu_order;
  const SortedJson* ids = fields.find("gpu_ids");
  const bool has_count = fields.find("gpus") != nullptr;
  GPUMUX_TRY(fields.number("gpus", spec.gpu_count, 1, base::kMaxGpus));
  if (ids == nullptr) return {};
  if (has_count) return refusal("either gpus or gpu_ids: how many, or which");
  if (!ids->is_array() || ids->empty()) return refusal("gpu_ids must be a list of GPUs' indices: [0, 2]");
  for (const SortedJson& id : *ids) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= base::kMaxGpus)
      return refusal("gpu_ids must be indices of GPUs, from 0 on");
    const base::GpuIndex gpu{id.get<std::uint32_t>()};
    if (spec.gpus.contains(gpu)) return refusal("gpu_ids names GPU " + std::to_string(gpu.value) + " twice");
    spec.gpus.insert(gpu);
    order.push_back(gpu.value);
  }
  spec.gpu_count = spec.gpus.size();
  return {};
}

Status read_limits(JsonFields& fields, JobSpec& spec) {
  std::uint64_t limit = 0;
  GPUMUX_TRY(fields.number("time_limit_ns", limit, 0, kMaxTimeLimit));
  spec.time_limit = base::Duration(static_cast<std::int64_t>(limit));
  GPUMUX_TRY(fields.number("memory_bytes", spec.memory, 0, std::uint64_t{1} << 50));
  return fields.number("priority", spec.priority, -base::kMostPriority, base::kMostPriority);
}

Status read_ways(JsonFields& fields, JobSpec& spec) {
  std::string on_limit = "suspend";
  GPUMUX_TRY(fields.text("on_time_limit", on_limit, 16));
  if (on_limit != "suspend" && on_limit != "cancel") return refusal("on_time_limit must be suspend or cancel");
  spec.on_limit = on_limit == "cancel" ? OnLimit::kCancel : OnLimit::kSuspend;
  GPUMUX_TRY(fields.flag("exclusive", spec.exclusive));
  GPUMUX_TRY(fields.flag("requeue", spec.requeue));
  return fields.flag("held", spec.held);
}

Status read_dependencies(JsonFields& fields, JobSpec& spec) {
  const SortedJson* after = fields.find("after");
  if (after == nullptr) return {};
  static constexpr char kWhat[] = "after must be a list like [{\"job\": 5, \"need\": \"ok\"}], where need is ok or any";
  if (!after->is_array()) return refusal(kWhat);
  if (after->size() > kMaxDependencies)
    return refusal("a job may come after " + std::to_string(kMaxDependencies) +
                   " others; all elements of an array are one, named by its id");
  for (const SortedJson& element : *after) {
    if (!element.is_object()) return refusal(kWhat);
    JsonFields fields_of(element);
    Dependency dependency;
    std::uint64_t job = 0;
    std::string need;
    GPUMUX_TRY(fields_of.number("job", job, 1, std::numeric_limits<std::int64_t>::max()));
    GPUMUX_TRY(fields_of.text("need", need, 8));
    GPUMUX_TRY(fields_of.nothing_else());
    if (job == 0 || (need != "ok" && need != "any")) return refusal(kWhat);
    dependency.on = {job};
    dependency.need = need == "ok" ? Dependency::Need::kOk : Dependency::Need::kAny;
    const auto is_same = [&](const Dependency& other) {
      return other.on == dependency.on && other.need == dependency.need;
    };
    if (std::none_of(spec.after.begin(), spec.after.end(), is_same)) spec.after.push_back(dependency);
  }
  return {};
}

std::string name_of_program(const std::vector<std::string>& arguments) {
  const std::vector<std::string_view> words(arguments.begin(), arguments.end());
  return std::string(base::program_name(words).substr(0, store::kMaxNameBytes));
}

}  // namespace

Result<ArrayElements> parse_array(std::string_view text) {
  const auto wrong = [&](const std::string& what) {
    return refusal("array '" + std::string(text.substr(0, 64)) + "': " + what +
                   "; it can be 0-9, 1,3,7-20 or 0-40:4, with %2 at the end for two at once");
  };
  ArrayElements array;
  std::string_view rest = text;
  if (const std::size_t percent = rest.find('%'); percent != std::string_view::npos) {
    const auto at_once = base::parse_integer(rest.substr(percent + 1), 1, kMaxArrayElements);
    if (!at_once) return wrong("after % there must be a number from 1 to " + std::to_string(kMaxArrayElements));
    array.at_once = static_cast<std::uint32_t>(*at_once);
    rest = rest.substr(0, percent);
  }
  std::set<std::uint32_t> indices;
  for (std::string_view part : base::split(rest, ',')) {
    std::uint64_t step = 1;
    if (const std::size_t colon = part.find(':'); colon != std::string_view::npos) {
      const auto parsed = base::parse_integer(part.substr(colon + 1), 1, UINT32_MAX);
      if (!parsed || part.find('-') == std::string_view::npos) return wrong("a step is the 4 of 0-40:4");
      step = *parsed;
      part = part.substr(0, colon);
    }
    const std::size_t dash = part.find('-');
    const auto first = base::parse_integer(part.substr(0, dash), 0, 999'999'999);
    const auto last =
        dash == std::string_view::npos ? first : base::parse_integer(part.substr(dash + 1), 0, 999'999'999);
    if (!first || !last || *first > *last) return wrong("'" + std::string(part.substr(0, 64)) + "' is no range");
    if ((*last - *first) / step + 1 + indices.size() > kMaxArrayElements)
      return wrong("more than " + std::to_string(kMaxArrayElements) + " elements");
    for (std::uint64_t i = *first; i <= *last; i += step) {
      if (!indices.insert(static_cast<std::uint32_t>(i)).second) return wrong(std::to_string(i) + " is in it twice");
    }
  }
  array.indices.assign(indices.begin(), indices.end());
  return array;
}

Result<Wishes> parse_wishes(std::string_view body) {
  const auto json = parse_bounded_json(body);
  if (!json) return tl::unexpected(json.error());
  JsonFields fields(*json);
  Submission asked;
  GPUMUX_TRY(read_gpus(fields, asked));
  GPUMUX_TRY(read_limits(fields, asked.spec));
  GPUMUX_TRY(fields.nothing_else());
  Wishes wishes;
  if (fields.find("priority") != nullptr) wishes.priority = asked.spec.priority;
  if (fields.find("time_limit_ns") != nullptr) wishes.time_limit = asked.spec.time_limit;
  if (fields.find("memory_bytes") != nullptr) wishes.memory = asked.spec.memory;
  if (fields.find("gpus") != nullptr || fields.find("gpu_ids") != nullptr)
    wishes.gpus = WishedGpus{asked.spec.gpu_count, std::move(asked.document.gpu_order)};
  return wishes;
}

Result<Submission> parse_submission(std::string_view body) {
  const auto json = parse_bounded_json(body);
  if (!json) return tl::unexpected(json.error());
  JsonFields fields(*json);
  Submission submission;
  GPUMUX_TRY(read_command(fields, submission.document));
  GPUMUX_TRY(read_gpus(fields, submission));
  GPUMUX_TRY(read_limits(fields, submission.spec));
  GPUMUX_TRY(read_ways(fields, submission.spec));
  GPUMUX_TRY(read_dependencies(fields, submission.spec));
  GPUMUX_TRY(fields.text("name", submission.name, store::kMaxNameBytes));
  if (submission.name.empty()) submission.name = name_of_program(submission.document.arguments);
  submission.command = base::shortened(base::shell_words(submission.document.arguments), store::kMaxCommandBytes);
  GPUMUX_TRY(fields.number("begin_unix_ns", submission.begin_at, 0, std::numeric_limits<std::int64_t>::max()));
  GPUMUX_TRY(fields.text("token", submission.token, store::kMaxTokenBytes));
  std::string array;
  GPUMUX_TRY(fields.text("array", array, 65'536));
  GPUMUX_TRY(fields.nothing_else());
  if (!array.empty()) {
    auto elements = parse_array(array);
    if (!elements) return tl::unexpected(elements.error());
    submission.elements = std::move(elements->indices);
    submission.spec.array_limit = elements->at_once;
    if (submission.elements.size() * submission.spec.after.size() > kMaxArrayDependencies)
      return refusal(
          "the array has more than " + std::to_string(kMaxArrayDependencies) +
          " dependencies, those of all elements together: let one job come after them all, and the array after that "
          "job");
    if (submission.document.interactive) return refusal("an array cannot be interactive: it has many terminals");
  }
  if (submission.document.interactive && !submission.document.error_output.empty())
    return refusal("error_output: an interactive job writes everything to its terminal");
  return submission;
}

}  // namespace gpumux::jobs

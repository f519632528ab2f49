// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_document.h"

#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/units.h"
#include "jobs/service/json_fields.h"
#include "server/api/strict_json.h"
#include "server/loop/files.h"

namespace gpumux::jobs {
namespace {

using SortedJson = nlohmann::json;
using base::Code;
using base::Result;
using base::Status;

constexpr std::size_t kMaxPathBytes = 4095;     // PATH_MAX without its zero
constexpr std::size_t kMaxSetupBytes = 65'536;  // a script belongs into a file
constexpr int kMaxDepth = 4;                    // {"environment": [{"base64": ...}]}, and one
// /proc/PID/limits has 16 lines of some 80 bytes.
constexpr std::size_t kMaxLimitsBytes = 16'384;
constexpr std::size_t kMaxStatusBytes = 1u << 20;  // lists all groups of a process: 65536 at most
constexpr pid_t kFirstProcess = 1;
constexpr std::size_t kLookupBytes = 65'536;  // a user's line in the database

tl::unexpected<base::Error> malformed(std::string what) { return base::fail(Code::kInvalid, std::move(what)); }

Status read_window(JsonFields& fields, wire::WindowSize& window) {
  const SortedJson* value = fields.find("window");
  if (value == nullptr) return {};
  if (!value->is_object()) return malformed("window must be {\"rows\": 24, \"columns\": 80}");
  JsonFields size(*value);
  GPUMUX_TRY(size.number("rows", window.rows, 0, 65535));
  GPUMUX_TRY(size.number("columns", window.columns, 0, 65535));
  return size.nothing_else();
}

SortedJson submitter_json(const Submitter& who) {
  SortedJson limits = SortedJson::array();
  for (const wire::ResourceLimit& limit : who.limits) limits.push_back({limit.resource, limit.soft, limit.hard});
  return {{"uid", who.uid},
          {"gid", who.gid},
          {"user", text_json(who.user_name)},
          {"home", text_json(who.home)},
          {"groups", who.groups},
          {"no_new_privs", who.no_new_privs},
          {"limits", std::move(limits)}};
}

Status read_submitter(const SortedJson& json, Submitter& who) {
  if (!json.is_object()) return malformed("submitter");
  JsonFields fields(json);
  GPUMUX_TRY(fields.number("uid", who.uid, 0, UINT32_MAX));
  GPUMUX_TRY(fields.number("gid", who.gid, 0, UINT32_MAX));
  GPUMUX_TRY(fields.text("user", who.user_name, kMaxPathBytes));
  GPUMUX_TRY(fields.text("home", who.home, kMaxPathBytes));
  GPUMUX_TRY(fields.flag("no_new_privs", who.no_new_privs));
  const SortedJson* groups = fields.find("groups");
  const SortedJson* limits = fields.find("limits");
  if (groups == nullptr || limits == nullptr || !groups->is_array() || !limits->is_array())
    return malformed("submitter");
  for (const SortedJson& group : *groups) {
    if (!group.is_number_unsigned()) return malformed("groups");
    who.groups.push_back(group.get<gid_t>());
  }
  for (const SortedJson& limit : *limits) {
    if (!limit.is_array() || limit.size() != 3 ||
        !std::all_of(limit.begin(), limit.end(), [](const SortedJson& n) { return n.is_number_unsigned(); }))
      return malformed("limits");
    who.limits.push_back({.resource = limit[0].get<std::uint32_t>(),
                          .soft = limit[1].get<std::uint64_t>(),
                          .hard = limit[2].get<std::uint64_t>()});
  }
  return fields.nothing_else();
}

}  // namespace

// Bounded before it is believed: a body of brackets would take fifty times its size in memory.
Result<SortedJson> parse_bounded_json(std::string_view text) {
  auto json = server::parse_strict_json<SortedJson>(text, {.depth = kMaxDepth, .values = wire::kMaxSpecStrings});
  if (json && !json->is_object()) return malformed("the submission must be a JSON object (docs/api.md)");
  return json;
}

// Reads the fields that a document and a submission have in common.
Status read_command(JsonFields& fields, JobDocument& document) {
  GPUMUX_TRY(fields.texts("arguments", document.arguments));
  GPUMUX_TRY(fields.text("directory", document.directory, kMaxPathBytes));
  GPUMUX_TRY(fields.texts("environment", document.environment));
  GPUMUX_TRY(fields.text("setup_command", document.setup_command, kMaxSetupBytes));
  GPUMUX_TRY(fields.text("output", document.output, kMaxPathBytes));
  GPUMUX_TRY(fields.text("error_output", document.error_output, kMaxPathBytes));
  GPUMUX_TRY(fields.flag("append", document.append));
  GPUMUX_TRY(fields.flag("interactive", document.interactive));
  GPUMUX_TRY(read_window(fields, document.window));
  GPUMUX_TRY(fields.number("umask", document.umask, 0, 0777));
  GPUMUX_TRY(fields.number("nice", document.nice, -20, 19));
  if (document.arguments.empty() || document.arguments[0].empty())
    return malformed("arguments: there is no command to run");
  if (document.directory.empty() || document.directory[0] != '/')
    return malformed("directory must be an absolute path");
  for (const std::string& variable : document.environment) {
    if (variable.find('=') == std::string::npos || variable[0] == '=')
      return malformed("environment must have NAME=value, and not '" + variable.substr(0, 64) + "'");
  }
  return {};
}

// As the kernel writes it, readable by every process: prlimit() would need a capability.
//
//   Limit                     Soft Limit           Hard Limit           Units
//   Max open files            1024                 524288               files
std::vector<wire::ResourceLimit> parse_limits(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, int>, 16> kNames{{{"Max cpu time", RLIMIT_CPU},
                                                                            {"Max file size", RLIMIT_FSIZE},
                                                                            {"Max data size", RLIMIT_DATA},
                                                                            {"Max stack size", RLIMIT_STACK},
                                                                            {"Max core file size", RLIMIT_CORE},
                                                                            {"Max resident set", RLIMIT_RSS},
                                                                            {"Max processes", RLIMIT_NPROC},
                                                                            {"Max open files", RLIMIT_NOFILE},
                                                                            {"Max locked memory", RLIMIT_MEMLOCK},
                                                                            {"Max address space", RLIMIT_AS},
                                                                            {"Max file locks", RLIMIT_LOCKS},
                                                                            {"Max pending signals", RLIMIT_SIGPENDING},
                                                                            {"Max msgqueue size", RLIMIT_MSGQUEUE},
                                                                            {"Max nice priority", RLIMIT_NICE},
                                                                            {"Max realtime priority", RLIMIT_RTPRIO},
                                                                            {"Max realtime timeout", RLIMIT_RTTIME}}};
  std::vector<wire::ResourceLimit> limits;
  for (const auto& [name, resource] : kNames) {
    const std::size_t line = text.find("\n" + std::string(name) + " ");
    if (line == std::string_view::npos) continue;
    std::size_t at = line + 1 + name.size();
    const auto next = [&]() -> std::optional<std::uint64_t> {
      at = text.find_first_not_of(' ', at);
      const std::size_t end = text.find_first_of(" \n", at);
      if (at == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
      const std::string_view word = text.substr(at, end - at);
      at = end;
      if (word == "unlimited") return RLIM_INFINITY;
      const auto number = base::parse_integer(word, 0, UINT64_MAX);
      return number ? std::optional(*number) : std::nullopt;
    };
    const auto soft = next();
    const auto hard = next();
    if (soft && hard)
      limits.push_back({.resource = static_cast<std::uint32_t>(resource), .soft = *soft, .hard = *hard});
  }
  return limits;
}

// NoNewPrivs:     1
// Seccomp:        2
// Seccomp_filters:        1
//
// Kernels before 5.9 do not count the filters: there it is one, or none.
Confinement parse_confinement(std::string_view text) {
  const auto number = [text](std::string_view name) -> std::optional<std::uint64_t> {
    const std::size_t line = text.find("\n" + std::string(name) + ":");
    if (line == std::string_view::npos) return std::nullopt;
    const std::size_t begin = text.find_first_not_of(" \t", line + name.size() + 2);
    if (begin == std::string_view::npos) return std::nullopt;
    const auto value = base::parse_integer(text.substr(begin, text.find('\n', begin) - begin), 0, UINT32_MAX);
    return value ? std::optional(*value) : std::nullopt;
  };
  return {.no_new_privs = number("NoNewPrivs").value_or(0) != 0,
          .seccomp_filters = number("Seccomp_filters").value_or(number("Seccomp").value_or(0) != 0 ? 1 : 0)};
}

Result<Submitter> look_at_submitter(const server::Peer& peer) {
  Submitter who;
  who.uid = peer.uid;
  who.gid = peer.groups.empty() ? static_cast<gid_t>(peer.uid) : peer.groups.front();
  if (peer.groups.size() > 1) who.groups.assign(peer.groups.begin() + 1, peer.groups.end());
  std::vector<char> buffer(kLookupBytes);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(peer.uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    who.user_name = found->pw_name;
    who.home = found->pw_dir;
  }
  // Limits and confinement are of the process that has connected, if it is there still when they have been read.
  const std::string folder = "/proc/" + std::to_string(peer.pid);
  struct stat status {};
  if (peer.pid <= 0 || ::stat(folder.c_str(), &status) != 0 || status.st_uid != peer.uid) {
    return base::fail(
        Code::kDenied,
        "the process that submits cannot be seen from the daemon (it has ended, or runs set-user-ID), so its resource "
        "limits are not known: submit from an ordinary process of the machine");
  }
  const auto text = server::read_file(folder + "/limits", kMaxLimitsBytes);
  if (!text) return tl::unexpected(text.error());
  who.limits = parse_limits(*text);
  const auto status_text = server::read_file(folder + "/status", kMaxStatusBytes);
  if (!status_text) return tl::unexpected(status_text.error());
  const Confinement confinement = parse_confinement(*status_text);
  who.no_new_privs = confinement.no_new_privs;
  if (peer.has_ended()) return base::fail(Code::kDenied, "the process that submits has ended");
  // A filter cannot be read, so no job can be given it. A filter that all of a machine is under (a container's) is on
  // jobs, too.
  const std::string of_all = "/proc/" + std::to_string(kFirstProcess) + "/status";
  const Confinement least = parse_confinement(server::read_file(of_all, kMaxStatusBytes).value_or(""));
  if (confinement.seccomp_filters > least.seccomp_filters) {
    return base::fail(Code::kDenied,
                      "the process that submits is under a seccomp filter, which its job would escape: submit from a "
                      "process without one, such as a login shell");
  }
  return who;
}

std::string to_text(const JobDocument& document) {
  SortedJson json{{"submitter", submitter_json(document.submitter)},
                  {"arguments", texts_json(document.arguments)},
                  {"directory", text_json(document.directory)},
                  {"environment", texts_json(document.environment)},
                  {"umask", document.umask},
                  {"nice", document.nice}};
  // Fields that most jobs do not have are not written: a million documents are kept.
  if (!document.setup_command.empty()) json["setup_command"] = text_json(document.setup_command);
  if (!document.output.empty()) json["output"] = text_json(document.output);
  if (!document.error_output.empty()) json["error_output"] = text_json(document.error_output);
  if (document.append) json["append"] = true;
  if (document.interactive) {
    json["interactive"] = true;
    json["window"] = {{"rows", document.window.rows}, {"columns", document.window.columns}};
  }
  if (!document.gpu_order.empty()) json["gpu_order"] = document.gpu_order;
  return json.dump();
}

Result<JobDocument> parse_document(std::string_view text) {
  const auto json = parse_bounded_json(text);
  if (!json) return tl::unexpected(json.error());
  JsonFields fields(*json);
  JobDocument document;
  GPUMUX_TRY(read_command(fields, document));
  const SortedJson* submitter = fields.find("submitter");
  if (submitter == nullptr) return malformed("the job's document does not say whose it is");
  GPUMUX_TRY(read_submitter(*submitter, document.submitter));
  if (const SortedJson* order = fields.find("gpu_order")) {
    if (!order->is_array()) return malformed("gpu_order");
    for (const SortedJson& gpu : *order) {
      if (!gpu.is_number_unsigned()) return malformed("gpu_order");
      document.gpu_order.push_back(gpu.get<std::uint32_t>());
    }
  }
  GPUMUX_TRY(fields.nothing_else());
  return document;
}

}  // namespace gpumux::jobs

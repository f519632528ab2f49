// SPDX-License-Identifier: Apache-2.0
#include "api_client/types.h"

#include <algorithm>

#include "api_client/fields.gen.h"

namespace gpumux::api_client {
namespace {

using base::Result;
using nlohmann::json;

// "reason=quantum waited_ns=12": strings bare, everything else as JSON writes it.
std::string describe_other_fields(const json& object) {
  std::string text;
  for (const auto& [name, value] : object.items()) {
    const bool known = std::find(kTraceEventFields.begin(), kTraceEventFields.end(), name) != kTraceEventFields.end();
    if (known || value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty())) continue;
    if (!text.empty()) text += ' ';
    text += name + "=";
    // A stray byte that is not UTF-8 must not make dump throw.
    text += value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return text;
}

}  // namespace

void complete(Reader& reader, TraceEvent& event) {
  if (const json* changes = reader.find("changes"); changes != nullptr && changes->is_object()) {
    for (const auto& [name, values] : changes->items()) {
      const bool is_pair = values.is_array() && values.size() == 2 && values[0].is_string() && values[1].is_string();
      if (!is_pair) continue;
      event.changes.push_back({name, values[0].get<std::string>(), values[1].get<std::string>()});
    }
  }
  if (reader.object().is_object()) event.others = describe_other_fields(reader.object());
}

Result<DaemonInfo> parse_daemon_info(std::string_view text) { return parse(text, daemon_info_fields); }

Result<Snapshot> parse_snapshot(std::string_view text) { return parse(text, snapshot_fields); }

Result<std::vector<Gpu>> parse_settings(std::string_view text) {
  return parse<std::vector<Gpu>>(
      text, [](Reader& reader, std::vector<Gpu>& gpus) { reader.read("gpus", gpus, "a GPU", gpu_fields); });
}

Result<Seat> parse_tenant(std::string_view text) { return parse(text, seat_fields); }

Result<TraceEvent> parse_trace_event(std::string_view text) { return parse(text, trace_event_fields, "a trace event"); }

}  // namespace gpumux::api_client

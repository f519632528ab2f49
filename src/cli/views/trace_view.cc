// SPDX-License-Identifier: Apache-2.0
#include "cli/views/trace_view.h"

#include <algorithm>
#include <cstdio>

#include "cli/frame/words.h"
#include "cli/views/status_view.h"

namespace gpumux::cli {
namespace {

Colour colour_of(const std::string& event) {
  if (event == "grant" || event == "answering") return Colour::kGreen;
  if (event == "request") return Colour::kYellow;
  if (event == "revoke" || event == "gate_closed" || event == "drained" || event == "evicted" || event == "moves" ||
      event == "complete")
    return Colour::kCyan;
  if (event == "stall" || event == "partner" || event == "silent" || event == "kill" || event == "refused")
    return Colour::kRed;
  return Colour::kNone;
}

std::string time_of_day(base::Duration since_epoch) {
  char microseconds[16];
  std::snprintf(microseconds, sizeof microseconds, ".%06lld",
                static_cast<long long>(since_epoch.count() % 1'000'000'000 / 1000));
  return local_time_text(since_epoch.count(), kTimeOfDay) + microseconds;
}

}  // namespace

std::string TraceView::line(const api_client::TraceEvent& event) {
  std::string tail;
  const auto add = [&tail](const std::string& text) { tail += (tail.empty() ? "" : ", ") + text; };
  if (!event.lease.empty()) add(event.lease);
  if (shows_epochs_ && event.epoch != 0) add("epoch " + std::to_string(event.epoch));
  const auto steps = holds_.add(event);
  if (event.gpu && !steps.empty() && steps.front().tenure) add("after " + short_duration(*steps.front().tenure));
  if (!event.before.empty()) add(printable(event.before) + " for " + short_duration(event.lasted));
  if (!event.detail.empty()) add(printable(event.detail));
  for (const api_client::SettingChange& change : event.changes) {
    std::string name = printable(change.name);
    std::replace(name.begin(), name.end(), '_', ' ');
    add(name + " " + printable(change.before) + " -> " + printable(change.after));
  }
  if (!event.pod.empty()) add("pod " + printable(event.pod));
  if (event.tenant != 0 && event.job != 0) add("job " + std::to_string(event.job));
  if (!event.others.empty()) add(printable(event.others));

  std::string name = printable(event.event);
  std::string who;
  if (event.pid != 0 || !event.program.empty()) {
    who = printable(event.program.empty() ? "?" : event.program) + " (" + std::to_string(event.pid) + ")";
  } else if (event.job != 0) {
    who = printable(event.name) + " (job " + std::to_string(event.job) + ")";
  }
  std::string text = time_of_day(event.time.time_since_epoch() + to_wall_) + "  ";
  text += event.gpu ? "GPU " + std::to_string(*event.gpu) : std::string("     ");
  text = pad(text, 24);
  const std::size_t name_width = display_width(name);
  text += paint(output_, colour_of(event.event), name);
  if (!who.empty() || !tail.empty()) {
    // gate_closed is the longest of the names.
    text.append(name_width < 11 ? 13 - name_width : 2, ' ');
    text += pad(who, 24);
    if (!tail.empty()) text += "  " + tail;
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace gpumux::cli

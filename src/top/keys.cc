// SPDX-License-Identifier: Apache-2.0
// The effect of each key. The keys are those of htop and nvtop, as far as the same thing is there.
#include <algorithm>

#include "top/view_state.h"

namespace gpumux::top {
namespace {

// Enough to find a name. The daemon accepts longer names of users and jobs.
constexpr std::size_t kLongestInput = 64;

// One key while tables are looked at.
class Browser {
 public:
  Browser(View& view, const Model& model, std::int64_t now_unix_ns)
      : view_(view),
        model_(model),
        programs_(program_rows(model, view)),
        jobs_(job_rows(model, view, now_unix_ns)),
        ids_(ids()),
        row_(row_of(cursor(), ids_)) {}

  Effect press(const KeyPress& key) {
    switch (key.key) {
      case Key::kUp: return move_to(row_ - std::min<std::size_t>(row_, 1));
      case Key::kDown: return row_ + 1 < ids_.size() ? move_to(row_ + 1) : next_page();
      case Key::kPageUp: return row_ == 0 ? page_before() : move_to(row_ - std::min(row_, view_.page));
      case Key::kPageDown: return row_ + 1 < ids_.size() ? move_to(row_ + view_.page) : next_page();
      case Key::kFirst: return move_to(0);
      case Key::kLast: return move_to(ids_.size());
      case Key::kTab: view_.pane = view_.pane == Pane::kPrograms ? Pane::kJobs : Pane::kPrograms; return {};
      case Key::kLeft: return choose_gpu(false);
      case Key::kRight: return choose_gpu(true);
      case Key::kEscape: return leave_filters();
      case Key::kEnter: view_.message = {}; return {};
      case Key::kF1: return help();
      case Key::kF3:
      case Key::kF4: return filter();
      case Key::kF6: return sort();
      case Key::kF7: return priority();
      case Key::kF9: return cancel_selected();
      case Key::kF10:
      case Key::kInterrupt: return Quit{};
      case Key::kErase: return {};
      case Key::kText: return letter(key.text);
    }
    return {};
  }

 private:
  Effect letter(const std::string& text) {
    switch (text.size() == 1 ? text[0] : '\0') {
      case 'q':
      case 'Q': return Quit{};
      case 'k': return press({Key::kUp});
      case 'j': return press({Key::kDown});
      case 'g': return press({Key::kFirst});
      case 'G': return press({Key::kLast});
      case ' ': return press({Key::kPageDown});
      case 'b': return press({Key::kPageUp});
      case '?':
      case 'h': return help();
      case '/': return filter();
      case 's': return sort();
      case 'p': return priority();
      case 'c': return cancel_selected();
      case 'H': return hold();
      case 't': view_.window = (view_.window + 1) % kWindows.size(); return {};
      default: return {};
    }
  }

  Cursor& cursor() { return view_.pane == Pane::kPrograms ? view_.programs : view_.jobs; }
  std::vector<RowId> ids() const {
    std::vector<RowId> all;
    if (view_.pane == Pane::kPrograms) {
      for (const ProgramRow& row : programs_) all.push_back(row.id());
    } else {
      for (const api_client::Job* job : jobs_) all.push_back({0, job->id});
    }
    return all;
  }

  Effect move_to(std::size_t row) {
    view_.message = {};
    if (ids_.empty()) return {};
    row = std::min(row, ids_.size() - 1);
    cursor() = {ids_[row], row};
    return {};
  }

  // Of jobs, the daemon gives one page at a time.
  Effect next_page() {
    view_.message = {};
    if (view_.pane != Pane::kJobs || !model_.jobs().more) return {};
    std::uint64_t last = 0;
    for (const api_client::Job& job : model_.jobs().jobs) last = std::max(last, job.id);
    view_.pages.push_back(last);
    view_.jobs = {};
    return AskForJobs{};
  }
  Effect page_before() {
    view_.message = {};
    if (view_.pane != Pane::kJobs || view_.pages.empty()) return {};
    view_.pages.pop_back();
    view_.jobs = {};
    return AskForJobs{};
  }

  // None, the first one, ..., the last one, none.
  Effect choose_gpu(bool next) {
    view_.message = {};
    if (!model_.snapshot() || model_.snapshot()->gpus.empty()) return {};
    const auto& gpus = model_.snapshot()->gpus;
    std::size_t place = 0;  // 0: none
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      if (view_.gpu == gpus[i].index) place = i + 1;
    }
    place = (place + (next ? 1 : gpus.size())) % (gpus.size() + 1);
    view_.gpu = place == 0 ? std::nullopt : std::optional(gpus[place - 1].index);
    return {};
  }

  Effect leave_filters() {
    view_.filter.clear();
    view_.gpu.reset();
    view_.message = {};
    return {};
  }

  Effect help() {
    view_.mode = Helping{};
    return {};
  }
  Effect filter() {
    view_.message = {};
    view_.mode = Filtering{view_.filter};
    return {};
  }
  Effect sort() {
    view_.message = {};
    view_.mode = Sorting{view_.pane == Pane::kPrograms ? view_.program_order : view_.job_order};
    return {};
  }

  Effect refuse(std::string why) {
    view_.message = {std::move(why), true};
    return {};
  }
  Effect confirm(Change change) {
    view_.message = {};
    view_.mode = Confirming{std::move(change)};
    return {};
  }

  const api_client::Job* job() const { return view_.pane == Pane::kJobs && !jobs_.empty() ? jobs_[row_] : nullptr; }
  const api_client::Seat* program() const {
    return view_.pane == Pane::kPrograms && !programs_.empty() ? programs_[row_].seat : nullptr;
  }

  Effect cancel_selected() {
    if (job() != nullptr) return confirm(cancel(*job()));
    if (program() == nullptr) return refuse("there is nothing to cancel");
    const std::uint64_t number = model_.job_of(program()->tenant);
    if (number == 0) {
      return refuse(program()->program + " is of no job that you may see: `kill " + std::to_string(program()->pid) +
                    "` ends it");
    }
    for (const api_client::Job& one : model_.jobs().jobs) {
      if (one.id == number) return confirm(cancel(one));
    }
    return confirm(cancel(number));
  }

  Effect hold() {
    if (job() == nullptr) return refuse("only jobs can be held: Tab selects the jobs");
    auto change = hold_or_release(*job());
    return change ? confirm(std::move(*change)) : refuse("only a job that waits can be held");
  }

  Effect priority() {
    if (job() == nullptr && program() == nullptr) return refuse("there is nothing whose priority could change");
    view_.message = {};
    view_.mode = AskingPriority{job() != nullptr ? priority_of(*job()) : priority_of(*program()), ""};
    return {};
  }

  View& view_;
  const Model& model_;
  const std::vector<ProgramRow> programs_;
  const std::vector<const api_client::Job*> jobs_;
  const std::vector<RowId> ids_;
  const std::size_t row_;
};

// The text that a key leaves. Erasing takes a whole character.
void edit(std::string& text, const KeyPress& key) {
  if (key.key == Key::kText && text.size() + key.text.size() <= kLongestInput) text += key.text;
  if (key.key != Key::kErase) return;
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
  if (!text.empty()) text.pop_back();
}

bool is_one_of(const KeyPress& key, std::string_view letters) {
  return key.key == Key::kText && key.text.size() == 1 && letters.find(key.text[0]) != std::string_view::npos;
}

void press_in(View& view, const Helping& shown, const KeyPress& key) {
  const std::size_t step = key.key == Key::kPageDown || key.key == Key::kPageUp ? view.page : 1;
  const bool is_down = key.key == Key::kDown || key.key == Key::kPageDown || is_one_of(key, "j ");
  const bool is_up = key.key == Key::kUp || key.key == Key::kPageUp || is_one_of(key, "kb");
  if (is_down) {
    view.mode = Helping{shown.top + step};
  } else if (is_up) {
    view.mode = Helping{shown.top - std::min(shown.top, step)};
  } else {
    view.mode = Browsing{};
  }
}

void press_in(View& view, const Sorting& menu, const KeyPress& key) {
  const bool of_programs = view.pane == Pane::kPrograms;
  const std::size_t count = of_programs ? kProgramOrders.size() : kJobOrders.size();
  if (key.key == Key::kUp || is_one_of(key, "k")) {
    view.mode = Sorting{(menu.choice + count - 1) % count};
  } else if (key.key == Key::kDown || key.key == Key::kF6 || is_one_of(key, "js")) {
    view.mode = Sorting{(menu.choice + 1) % count};
  } else {
    if (key.key == Key::kEnter) (of_programs ? view.program_order : view.job_order) = menu.choice;
    view.mode = Browsing{};
  }
}

void press_in(View& view, const Filtering& input, const KeyPress& key) {
  edit(view.filter, key);
  if (key.key == Key::kEscape) view.filter = input.before;
  if (key.key == Key::kEscape || key.key == Key::kEnter) view.mode = Browsing{};
}

void press_in(View& view, AskingPriority input, const KeyPress& key) {
  view.message = {};
  if (key.key == Key::kEscape) {
    view.mode = Browsing{};
  } else if (key.key == Key::kEnter) {
    auto change = change_priority(input.target, input.text);
    if (change) {
      view.mode = Confirming{std::move(*change)};
    } else {
      view.message = {change.error().message(), true};
    }
  } else {
    edit(input.text, key);
    view.mode = std::move(input);
  }
}

}  // namespace

Effect press(View& view, const Model& model, const KeyPress& key, std::int64_t now_unix_ns) {
  if (key.key == Key::kInterrupt || key.key == Key::kF10) return Quit{};
  // A copy, for the key may change which mode it is.
  const Mode mode = view.mode;
  if (std::holds_alternative<Browsing>(mode)) return Browser(view, model, now_unix_ns).press(key);
  if (const auto* const asked = std::get_if<Confirming>(&mode)) {
    view.mode = Browsing{};
    if (is_one_of(key, "yY")) return asked->change;
    view.message = {"nothing was changed", false};
  }
  if (const auto* const shown = std::get_if<Helping>(&mode)) press_in(view, *shown, key);
  if (const auto* const menu = std::get_if<Sorting>(&mode)) press_in(view, *menu, key);
  if (const auto* const input = std::get_if<Filtering>(&mode)) press_in(view, *input, key);
  if (const auto* const input = std::get_if<AskingPriority>(&mode)) press_in(view, *input, key);
  return {};
}

}  // namespace gpumux::top

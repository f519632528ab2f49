// SPDX-License-Identifier: Apache-2.0
#include "top/marks.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace gpumux::top {
namespace {

// Red is for what is wrong.
constexpr std::array<Hue, 5> kHues{Hue::kGreen, Hue::kYellow, Hue::kCyan, Hue::kMagenta, Hue::kBlue};
// x is the mark of all that is not under gpumux.
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

// The owner of a letter, from the best choice for another program to the worst.
enum class Use : std::uint8_t { kNone, kOnAnotherGpu, kOfOneThatIsGone, kTaken };

}  // namespace

void Marks::take_snapshot(const api_client::Snapshot& snapshot, base::TimePoint now) {
  for (auto& [gpu, places] : gpus_) {
    for (auto& [program, place] : places) place.has_seat = false;
  }
  // By tenant and GPU, so that the first letters are those of the oldest programs.
  std::map<std::pair<std::uint64_t, std::uint32_t>, Program> seats;
  for (const api_client::Gpu& gpu : snapshot.gpus) {
    for (const api_client::Seat& seat : gpu.seats) seats[{seat.tenant, gpu.index}] = know(seat.tenant, seat.pid);
  }
  // Letters of programs that have a seat are taken, before another program looks for one.
  for (const auto& [seat, program] : seats) {
    const auto found = gpus_[seat.second].find(program);
    if (found != gpus_[seat.second].end()) found->second.has_seat = true;
  }
  for (const auto& [seat, program] : seats) {
    Place& here = place(seat.second, program);
    here.seen = now;
    here.has_seat = true;
  }
}

void Marks::take_event(const api_client::TraceEvent& event) {
  if (event.tenant == 0 || !event.gpu) return;
  Place& here = place(*event.gpu, know(event.tenant, event.pid));
  here.seen = std::max(here.seen, event.time);
}

void Marks::forget(base::TimePoint before) {
  for (auto& [gpu, places] : gpus_)
    std::erase_if(places, [&](const auto& one) { return !one.second.has_seat && one.second.seen < before; });
  std::erase_if(program_of_, [&](const auto& one) {
    return std::none_of(gpus_.begin(), gpus_.end(), [&](const auto& gpu) { return gpu.second.contains(one.second); });
  });
}

Mark Marks::of(std::uint32_t gpu, std::uint64_t tenant) const {
  const auto program = program_of_.find(tenant);
  const auto places = gpus_.find(gpu);
  if (program == program_of_.end() || places == gpus_.end()) return {};
  const auto place = places->second.find(program->second);
  if (place == places->second.end()) return {};
  const std::size_t number = place->second.number;
  return {number < kLetters.size() ? kLetters[number] : kNoLetter, kHues[number % kHues.size()]};
}

Marks::Program Marks::know(std::uint64_t tenant, std::int64_t pid) {
  return program_of_.try_emplace(tenant, pid != 0 ? pid : -static_cast<Program>(tenant)).first->second;
}

Marks::Place& Marks::place(std::uint32_t gpu, Program program) {
  Places& places = gpus_[gpu];
  if (const auto found = places.find(program); found != places.end()) return found->second;
  const std::size_t number = choose(gpu, program);
  if (number < kLetters.size()) std::erase_if(places, [&](const auto& one) { return one.second.number == number; });
  return places[program] = {.number = number};
}

std::size_t Marks::choose(std::uint32_t gpu, Program program) const {
  struct Letter {
    Use use = Use::kNone;
    base::TimePoint seen{};
    auto operator<=>(const Letter&) const = default;
  };
  std::array<Letter, kLetters.size()> letters{};
  std::size_t own = kLetters.size();
  for (const auto& [index, places] : gpus_) {
    for (const auto& [other, place] : places) {
      if (place.number >= letters.size()) continue;
      if (other == program) own = place.number;
      const Use use = index != gpu ? Use::kOnAnotherGpu : place.has_seat ? Use::kTaken : Use::kOfOneThatIsGone;
      Letter& letter = letters[place.number];
      letter = std::max(letter, Letter{use, use == Use::kOfOneThatIsGone ? place.seen : base::TimePoint{}});
    }
  }
  if (own < letters.size() && letters[own].use < Use::kOfOneThatIsGone) return own;
  const auto best = std::min_element(letters.begin(), letters.end());
  return best->use == Use::kTaken ? kLetters.size() : static_cast<std::size_t>(best - letters.begin());
}

}  // namespace gpumux::top

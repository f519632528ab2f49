// SPDX-License-Identifier: Apache-2.0
// Goal: each view fits the terminal, shows what matters most, and cannot be used to write escape sequences to it.
// Method: hand-made snapshots at widths from 20 to 200 columns and without a limit.
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>

#include "cli/frame/command.h"
#include "cli/frame/table.h"
#include "cli/frame/terminal.h"
#include "cli/views/status_view.h"
#include "cli/views/trace_view.h"

namespace gpumux::cli {
namespace {

using namespace std::chrono_literals;

Output terminal(std::size_t columns) {
  return {.terminal = true, .moves = true, .colours = false, .columns = columns, .rows = 24};
}

class ViewTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { std::setlocale(LC_CTYPE, "C.UTF-8"); }
};
using TerminalTest = ViewTest;
using TableTest = ViewTest;
using StatusTest = ViewTest;
using TraceTest = ViewTest;

TEST_F(TerminalTest, ControlCharactersAndBrokenUtf8BecomeQuestionMarks) {
  EXPECT_EQ(printable("train.py"), "train.py");
  EXPECT_EQ(printable("\x1b]0;title\x07"), "?]0;title?");
  EXPECT_EQ(printable("a\tb\nc\x7f"), "a b c?");
  EXPECT_EQ(printable("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "?31m")
      << "C1 control: CSI in one byte";
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "evil"),
            "?evil")
      << "right-to-left override";
  EXPECT_EQ(printable("\xff\xc3"), "??");
  EXPECT_EQ(printable("\xc0\xaf"), "??") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "???") << "surrogate";
  EXPECT_EQ(printable_lines("a\nb\x1b"), "a\nb?");
}

TEST_F(TerminalTest, JsonHasNoControlCharactersOnATerminal) {
  Output terminal;
  terminal.terminal = true;
  const std::string json = "{\"name\": \"a\x7f\xc2\x9b\xe2\x80\xae\xc3\xa9\xff\x1b\"}\n";
  EXPECT_EQ(json_for(terminal, json), "{\"name\": \"a\\u007f\\u009b\\u202e\xc3\xa9\\ufffd\\u001b\"}\n");
  EXPECT_EQ(json_for(Output(), json), json) << "a program gets the bytes as they are";
  EXPECT_EQ(json_for(Output(), "{}"), "{}\n");
}

TEST_F(TerminalTest, FitCountsColumnsNotBytes) {
  EXPECT_EQ(fit("abcdef", 6), "abcdef");
  EXPECT_EQ(fit("abcdef", 5), "abcd~");
  EXPECT_EQ(fit("abcdef", 1), "~");
  EXPECT_EQ(fit("abcdef", 0), "");
  EXPECT_EQ(fit("\xc3\xa9\xc3\xa9\xc3\xa9", 2), "\xc3\xa9~");
  // Two columns each.
  EXPECT_EQ(display_width("\xe6\x97\xa5\xe6\x9c\xac"), 4u);
  EXPECT_EQ(fit("\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e", 4), "\xe6\x97\xa5~");
}

TEST_F(TerminalTest, WrapBreaksAtSpacesAndLosesNothing) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrap("one two three", 0), (Lines{"one two three"}));
  EXPECT_EQ(wrap("one two three", 13), (Lines{"one two three"}));
  EXPECT_EQ(wrap("one two three", 12), (Lines{"one two", "three"}));
  EXPECT_EQ(wrap("one two three", 7), (Lines{"one two", "three"})) << "a space at the end takes no room";
  EXPECT_EQ(wrap("  one two three", 9, 4), (Lines{"  one two", "    three"}));
  EXPECT_EQ(wrap("abcdefgh", 3, 1), (Lines{"abc", " de", " fg", " h"})) << "a word that is too long";
  EXPECT_EQ(wrap("ab", 1, 4), (Lines{"a", "b"}));
  EXPECT_EQ(wrap("", 5), (Lines{""}));
  EXPECT_EQ(wrap("\xe6\x97\xa5\xe6\x9c\xac", 3), (Lines{"\xe6\x97\xa5", "\xe6\x9c\xac"}));
}

TEST_F(TerminalTest, ColoursOnlyWhereTheyAreWantedAndPossible) {
  EXPECT_TRUE(describe_output(true, 80, 24, nullptr, "xterm", nullptr).colours);
  EXPECT_TRUE(describe_output(true, 80, 24, "", "xterm", nullptr).colours) << "an empty NO_COLOR is none";
  EXPECT_FALSE(describe_output(true, 80, 24, "1", "xterm", nullptr).colours);
  EXPECT_FALSE(describe_output(true, 80, 24, nullptr, "dumb", nullptr).colours);
  EXPECT_FALSE(describe_output(true, 80, 24, nullptr, "dumb", nullptr).moves);
  EXPECT_TRUE(describe_output(true, 80, 24, "1", "xterm", nullptr).moves) << "NO_COLOR is about colours only";
  EXPECT_FALSE(describe_output(true, 80, 24, nullptr, nullptr, nullptr).colours);
  EXPECT_FALSE(describe_output(false, 80, 24, nullptr, "xterm", nullptr).colours);
  EXPECT_EQ(describe_output(false, 80, 24, nullptr, "xterm", "60").columns, 0u) << "a file has no width";
  EXPECT_EQ(describe_output(true, 132, 24, nullptr, "xterm", "60").columns, 132u);
  EXPECT_EQ(describe_output(true, 0, 0, nullptr, "xterm", "60").columns, 60u);
  EXPECT_EQ(describe_output(true, 0, 0, nullptr, "xterm", "x").columns, 80u);
}

TEST_F(TableTest, LayOutShrinksThenLeavesOutThenCuts) {
  const std::vector<Column> columns{
      {.title = "A", .minimum = 4}, {.title = "B", .leave_out = 1}, {.title = "C", .leave_out = 2}};
  EXPECT_EQ(lay_out(columns, {10, 5, 5}, 0), (std::vector<std::size_t>{10, 5, 5}));
  EXPECT_EQ(lay_out(columns, {10, 5, 5}, 24), (std::vector<std::size_t>{10, 5, 5}));
  EXPECT_EQ(lay_out(columns, {10, 5, 5}, 20), (std::vector<std::size_t>{6, 5, 5}));
  EXPECT_EQ(lay_out(columns, {10, 5, 5}, 17), (std::vector<std::size_t>{10, 5, 0}))
      << "C goes, and A has its room back";
  EXPECT_EQ(lay_out(columns, {10, 5, 5}, 10), (std::vector<std::size_t>{10, 0, 0}));
  EXPECT_EQ(lay_out(columns, {10, 5, 5}, 3), (std::vector<std::size_t>{3, 0, 0}));
}

TEST_F(TableTest, ATextStandsBelowItsRowUnlessTheTableFitsAsItIs) {
  Table table({{.title = "NAME"}, {.title = "WHY", .below = true}}, 1);
  table.add_row({{"a"}, {"one two three"}});
  table.add_row({{"b"}, {"x"}});
  table.add_row({{"c"}, {""}});
  const std::vector<std::string> beside{" NAME  WHY", " a     one two three", " b     x", " c"};
  EXPECT_EQ(table.lines(terminal(20)), beside);
  EXPECT_EQ(table.lines(terminal(19)),
            (std::vector<std::string>{" NAME", " a", "     one two three", " b", "     x", " c"}));
  EXPECT_EQ(table.lines(terminal(13)),
            (std::vector<std::string>{" NAME", " a", "     one two", "     three", " b", "     x", " c"}));
  EXPECT_EQ(table.lines(Output{}), beside);
}

TEST_F(TableTest, AlignsAndLeavesNoTrailingSpaces) {
  Table table({{.title = "NAME"}, {.title = "N", .align = Align::kRight}, {.title = "NOTE", .hide_if_empty = true}}, 1);
  table.add_row({{"a"}, {"10"}, {""}});
  table.add_row({{"bcdef"}, {"7"}, {""}});
  EXPECT_EQ(table.lines(Output{}), (std::vector<std::string>{" NAME    N", " a      10", " bcdef   7"}));
}

api_client::Seat make_seat(std::uint64_t tenant, std::int64_t pid, const char* user, const char* program,
                           const char* phase) {
  api_client::Seat seat;
  seat.tenant = tenant;
  seat.pid = pid;
  seat.user = user;
  seat.program = program;
  seat.phase = phase;
  return seat;
}

api_client::Snapshot busy() {
  api_client::Snapshot snapshot;
  api_client::Gpu gpu;
  gpu.name = "NVIDIA H100 80GB HBM3";
  gpu.mode = "serial";
  gpu.policy = "fair";
  gpu.quantum = "auto";
  gpu.quantum_now = 50ms;
  gpu.memory_total_bytes = 80ull << 30;
  gpu.memory_used_bytes = 12ull << 30;
  gpu.switches = 34;
  gpu.load = {.utilization_percent = 97,
              .power_milliwatts = 312'600,
              .power_limit_milliwatts = 700'000,
              .temperature_celsius = 61};
  snapshot.recent = 5500ms;
  gpu.foreign = {{.pid = 77, .name = "Xorg", .memory_bytes = 120 << 20}};
  const api_client::Seat idle = make_seat(3, 13, "eva", "notebook", "idle");
  api_client::Seat second = make_seat(2, 4712, "bob", "a_very_long_program_name_for_a_table.py", "waiting");
  second.queue_place = 1;
  second.since = 30ms;
  second.waits_for = "quantum of tenant 1";
  api_client::Seat first = make_seat(1, 4711, "eva", "train.py", "holding");
  first.lease = "exclusive";
  first.since = 12ms;
  first.grants = 5;
  first.recent_gpu_time = 2300ms;
  gpu.seats = {idle, second, first};
  snapshot.gpus = {gpu};
  return snapshot;
}

TEST_F(StatusTest, FitsEveryWidth) {
  for (std::size_t columns = 20; columns <= 200; ++columns) {
    for (const std::string& line : status_lines(busy(), terminal(columns))) {
      EXPECT_LE(display_width(line), columns) << columns << ": " << line;
    }
  }
}

TEST_F(StatusTest, At40And80And200ColumnsTheRightThingsAreLeft) {
  const auto text = [](std::size_t columns) {
    std::string all;
    for (const std::string& line : status_lines(busy(), columns == 0 ? Output{} : terminal(columns)))
      all += line + "\n";
    return all;
  };
  for (const std::size_t columns : {40u, 80u, 200u, 0u}) {
    SCOPED_TRACE(text(columns));
    EXPECT_NE(text(columns).find("train.py"), std::string::npos);
    EXPECT_NE(text(columns).find("holding"), std::string::npos);
    EXPECT_NE(text(columns).find("waiting #1"), std::string::npos);
  }
  EXPECT_EQ(text(40).find("GRANTS"), std::string::npos);
  EXPECT_NE(text(80).find("quantum of train.py (4711)"), std::string::npos) << text(80);
  EXPECT_NE(text(200).find("quantum of train.py (4711)"), std::string::npos);
  EXPECT_EQ(text(200), text(0)) << "nothing is cut where there is room";
  EXPECT_NE(text(0).find("a_very_long_program_name_for_a_table.py"), std::string::npos);
  EXPECT_EQ(text(80).find('\x1b'), std::string::npos);
}

TEST_F(StatusTest, HoldersComeFirstThenTheQueue) {
  const auto lines = status_lines(busy(), Output{});
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0], "GPU 0  NVIDIA H100 80GB HBM3");
  EXPECT_EQ(lines[1], "  97 % busy, 313 of 700 W, 61 C; 12.0 GiB of 80.0 GiB used");
  EXPECT_EQ(lines[2], "  serial, fair, quantum auto (now 50.0ms); 34 switches");
  EXPECT_EQ(lines[3], "  not under gpumux: Xorg (77, 120 MiB)");
  EXPECT_NE(lines[5].find("train.py"), std::string::npos);
  EXPECT_NE(lines[6].find("waiting #1"), std::string::npos);
  EXPECT_NE(lines[7].find("idle"), std::string::npos);
}

TEST_F(StatusTest, LoadIsShownAsFarAsItIsKnown) {
  api_client::Snapshot snapshot = busy();
  const auto lines = [&] { return status_lines(snapshot, Output{}); };
  EXPECT_NE(lines()[4].find("LAST 5S"), std::string::npos);
  EXPECT_NE(lines()[5].find(" 42%"), std::string::npos) << lines()[5];
  EXPECT_NE(lines()[7].find(" 0%"), std::string::npos) << lines()[7];
  snapshot.gpus[0].seats[2].recent_gpu_time = 1us;
  EXPECT_NE(lines()[5].find(" <1%"), std::string::npos) << lines()[5];
  snapshot.recent = 0s;
  EXPECT_EQ(lines()[4].find("LAST 5S"), std::string::npos) << "the daemon has just started";
  snapshot.gpus[0].load = {.power_milliwatts = 80'000};
  EXPECT_EQ(lines()[1], "  80 W; 12.0 GiB of 80.0 GiB used");
  snapshot.gpus[0].load = {};
  EXPECT_EQ(lines()[1], "  12.0 GiB of 80.0 GiB used");
}

TEST_F(StatusTest, ACostThatIsNoMeasurementIsNotShown) {
  api_client::Snapshot snapshot = busy();
  snapshot.gpus[0].switch_cost = 7ns;
  EXPECT_EQ(status_lines(snapshot, Output{})[2], "  serial, fair, quantum auto (now 50.0ms); 34 switches");
  snapshot.gpus[0].switch_cost = 3ms;
  EXPECT_EQ(status_lines(snapshot, Output{})[2], "  serial, fair, quantum auto (now 50.0ms); 34 switches, 3.00ms each");
}

TEST_F(StatusTest, WhyAndSettingsAreNeverCut) {
  api_client::Snapshot snapshot = busy();
  snapshot.gpus[0].remark = "a and b do not fit together in 400 MiB: their memory moves whenever the GPU changes hands";
  snapshot.gpus[0].seats[1].waits_for = "memory, of which nothing moves: host memory is used up, or it is stopped";
  snapshot.gpus[0].seats[1].gang = "torchrun-4711 (2 of 2)";
  for (const std::size_t columns : {80u, 120u, 200u}) {
    std::string words;
    for (const std::string& line : status_lines(snapshot, terminal(columns))) words += line + " ";
    SCOPED_TRACE(words);
    const auto says = [&](std::string_view text) {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        if (words.find(text.substr(at, end - at)) == std::string::npos) return false;
        at = end + 1;
      }
      return true;
    };
    EXPECT_TRUE(says(snapshot.gpus[0].remark));
    EXPECT_TRUE(says(snapshot.gpus[0].seats[1].waits_for));
    EXPECT_TRUE(says("serial, fair, quantum auto (now 50.0ms); 34 switches"));
  }
}

TEST_F(StatusTest, OfMemoryEachPlaceIsShown) {
  api_client::Snapshot snapshot = busy();
  api_client::Gpu& gpu = snapshot.gpus[0];
  gpu.memory.tenants = 70ull << 30;
  gpu.memory.foreign = 3ull << 30;
  gpu.memory.reserve = 1ull << 30;
  api_client::SeatMemory& memory = gpu.seats[2].memory.emplace();
  memory.allocated = 60ull << 30;
  memory.quota = 64ull << 30;
  memory.resident = 40ull << 30;
  memory.evicted = 15ull << 30;
  memory.unpageable = 5ull << 30;
  memory.unpageable_by_reason = {{"graph", std::to_string(1ull << 30)}, {"pool", std::to_string(4ull << 30)}};
  memory.host_used = 16ull << 30;
  memory.moved_out = 21ull << 30;
  memory.moved_in = 22ull << 30;
  memory.saved_clean = 2ull << 30;
  memory.saved_constant = 9ull << 30;
  const auto lines = status_lines(snapshot, Output{}, StatusTable::kMemory);
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_EQ(lines[3],
            "  memory: 70.0 GiB of programs under gpumux, 3.0 GiB of other programs and contexts, 1.0 GiB kept free");
  for (const char* said : {"train.py", "holding", "60.0 GiB", "64.0 GiB", "40.0 GiB", "15.0 GiB", "5.0 GiB", "16.0 GiB",
                           "21.0 GiB", "22.0 GiB", "11.0 GiB", "graph 1.0 GiB, pool 4.0 GiB"})
    EXPECT_NE(lines[6].find(said), std::string::npos) << said << " in " << lines[6];
  EXPECT_NE(lines[7].find("left to the driver"), std::string::npos) << lines[7];
  for (std::size_t columns = 20; columns <= 200; ++columns) {
    for (const std::string& line : status_lines(snapshot, terminal(columns), StatusTable::kMemory))
      EXPECT_LE(display_width(line), columns);
  }
}

TEST_F(StatusTest, MemoryIsShownWhereItIsKnown) {
  api_client::Snapshot snapshot = busy();
  api_client::Gpu& gpu = snapshot.gpus[0];
  gpu.mode = "auto";
  gpu.mode_now = "serial";
  gpu.mode_why = "their memory does not fit together: they take turns";
  gpu.remark = "tenant 1 and another do not fit together";
  gpu.memory.moved_out = 40ull << 30;
  gpu.memory.saved_clean = 10ull << 30;
  api_client::SeatMemory& memory = gpu.seats[2].memory.emplace();
  memory.allocated = 60ull << 30;
  memory.resident = 50ull << 30;
  memory.wanted = 70ull << 30;
  snapshot.host_memory = {.budget = 100ull << 30, .lent = 10ull << 30};
  snapshot.host_memory.why_no_mover = "gpumux-mover ends before it serves";
  std::string all;
  for (const std::string& line : status_lines(snapshot, Output{})) all += line + "\n";
  SCOPED_TRACE(all);
  for (const char* said :
       {"auto (now serial), fair", "auto: their memory does not fit together: they take turns", "60.0 GiB", "50.0 GiB",
        "moved so far: 40.0 GiB out", "10.0 GiB unchanged", "train.py (4711) and another do not fit",
        "waits for room: 70.0 GiB", "10.0 GiB lent of 100 GiB", "leaves its GPU: gpumux-mover ends before it serves"}) {
    EXPECT_NE(all.find(said), std::string::npos) << said;
  }
  for (std::size_t columns = 20; columns <= 200; ++columns) {
    for (const std::string& line : status_lines(snapshot, terminal(columns))) EXPECT_LE(display_width(line), columns);
  }
}

TEST_F(StatusTest, ARefusedAllocationIsShownWithItsReason) {
  api_client::Snapshot snapshot = busy();
  api_client::RefusedAllocation refused{.pid = 9,
                                        .program = "large",
                                        .age = 12s,
                                        .reason = "quota",
                                        .had = 1ull << 30,
                                        .wanted = 3ull << 30,
                                        .limit = 5ull << 29,
                                        .others = 0,
                                        .holders = {}};
  const auto shown = [&] {
    snapshot.gpus[0].refused_allocations = {refused};
    return status_lines(snapshot, Output{}).at(3);
  };
  const std::string begin = "  large (9) was refused 2.0 GiB 12.0s ago, in addition to 1.0 GiB: ";
  EXPECT_EQ(shown(), begin + "its limit is 2.5 GiB");
  refused.holders = {{.pid = 1, .program = "a", .bytes = 1ull << 30}, {.pid = 2, .program = "b", .bytes = 1ull << 29}};
  refused.reason = "host_memory";
  EXPECT_EQ(shown(), begin + "GPUs and host memory are used up (a (1) has 1.0 GiB, b (2) has 512 MiB)");
  refused.reason = "nothing_moves";
  EXPECT_EQ(shown(), begin + "it would fit, but no memory moved for too long (a (1) has 1.0 GiB, b (2) has 512 MiB)");
  refused.reason = "gpu_memory";
  refused.others = 1ull << 29;
  EXPECT_EQ(shown(), begin +
                         "the GPU has 2.5 GiB, of which 512 MiB are kept free or belong to contexts and other "
                         "programs. Memory that cannot leave: a (1) has 1.0 GiB, b (2) has 512 MiB");
  refused.age = 2h;
  EXPECT_EQ(shown(), "  not under gpumux: Xorg (77, 120 MiB)") << "it is no news";
}

TEST_F(StatusTest, HostileNamesAreHarmlessEverywhere) {
  api_client::Snapshot snapshot = busy();
  const std::string evil = "\x1b[2J\n\x9b";
  snapshot.gpus[0].name = snapshot.gpus[0].quantum = snapshot.gpus[0].foreign[0].name = evil;
  snapshot.gpus[0].refused_allocations = {
      {.pid = 1, .program = evil, .age = 1s, .reason = evil, .holders = {{.pid = 1, .program = evil, .bytes = 1}}}};
  for (api_client::Seat& seat : snapshot.gpus[0].seats) {
    seat.program = seat.user = seat.gang = seat.note = seat.waits_for = seat.phase = seat.lease = evil;
  }
  for (const std::string& line : status_lines(snapshot, terminal(120))) {
    EXPECT_EQ(line.find_first_of("\x1b\n\x9b"), std::string::npos) << line;
  }
}

TEST_F(StatusTest, RefusedAndEmptyGpusSaySo) {
  api_client::Snapshot snapshot;
  EXPECT_NE(status_lines(snapshot, Output{}).at(0).find("doctor"), std::string::npos);
  snapshot.gpus.resize(2);
  snapshot.gpus[0].refused = "the daemon of bob (pid 5) serves it";
  const auto lines = status_lines(snapshot, Output{});
  EXPECT_EQ(lines.at(1), "  not served: the daemon of bob (pid 5) serves it");
  snapshot.gpus[0].sick = "it needs a reset";
  EXPECT_EQ(status_lines(snapshot, Output{}).at(1), "  sick: it needs a reset");
  EXPECT_EQ(lines.back(), "  no program under gpumux uses it");
}

TEST_F(StatusTest, DurationsAreShort) {
  EXPECT_EQ(short_duration(0ns), "-");
  EXPECT_EQ(short_duration(950us), "950us");
  EXPECT_EQ(short_duration(1250ms), "1.25s");
  EXPECT_EQ(short_duration(9999us), "10.0ms");
  EXPECT_EQ(short_duration(99s), "99.0s");
  EXPECT_EQ(short_duration(100s), "1m40s");
  EXPECT_EQ(short_duration(3h + 5min), "3h05m");
  EXPECT_EQ(short_duration(50h), "2d02h");
  EXPECT_EQ(short_duration(base::Duration::max()), "unlimited");
}

TEST_F(StatusTest, APlaceInALineOfAnotherGpuIsNamedToo) {
  api_client::Snapshot snapshot = busy();
  snapshot.gpus.push_back(snapshot.gpus[0]);
  snapshot.gpus[1].index = 1;
  snapshot.gpus[1].seats = {make_seat(9, 90, "eva", "gang.py", "waiting")};
  snapshot.gpus[1].seats[0].waits_for = "gang needs GPU 0: quantum of tenant 1";
  EXPECT_NE(status_lines(snapshot, Output{}).back().find("gang needs GPU 0: quantum of train.py (4711)"),
            std::string::npos);
}

TEST_F(StatusTest, ALongSwitchShowsHowFarItIs) {
  api_client::Snapshot snapshot = busy();
  api_client::SeatMemory& comes = snapshot.gpus[0].seats[2].memory.emplace();
  comes.allocated = 20ull << 30;
  comes.resident = 8ull << 30;
  comes.evicted = 14ull << 30;  // 2 GiB are on their way, and counted twice
  comes.room = 20ull << 30;
  api_client::SeatMemory& leaves = snapshot.gpus[0].seats[1].memory.emplace();
  leaves.allocated = 30ull << 30;
  leaves.resident = 5ull << 30;
  leaves.room = 0;
  const auto lines = status_lines(snapshot, Output{});
  EXPECT_NE(lines[5].find("its memory comes: 6.0 GiB of 20.0 GiB are on the GPU"), std::string::npos) << lines[5];
  EXPECT_NE(lines[6].find("; its memory leaves: 5.0 GiB of 30.0 GiB are still on the GPU"), std::string::npos)
      << lines[6];
  comes.resident = 20ull << 30;
  comes.evicted = 0;
  leaves.resident = 0;
  for (const std::string& line : status_lines(snapshot, Output{}))
    EXPECT_EQ(line.find("its memory"), std::string::npos);
}

TEST_F(StatusTest, AProgramThatComesIsToldWhereItWaits) {
  api_client::Snapshot snapshot = busy();
  EXPECT_EQ(turns_line(snapshot),
            "GPU 0: train.py (4711) has its turn, 1 waits. `gpumux status` says why a program waits");
  snapshot.gpus[0].seats[2].lease = "shared";
  snapshot.gpus[0].seats[1].phase = "holding";
  EXPECT_EQ(turns_line(snapshot), "") << "they run at once";
}

TEST_F(TraceTest, AGrantAndItsEnd) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  TraceView view(Output{}, 1h, false);
  api_client::TraceEvent event;
  event.time = base::TimePoint(1s + 123456us);
  event.gpu = 0;
  event.event = "grant";
  event.tenant = 7;
  event.pid = 4711;
  event.program = "train.py";
  event.epoch = 3;
  event.lease = "exclusive";
  EXPECT_EQ(view.line(event), "01:00:01.123456  GPU 0  grant        train.py (4711)           exclusive");
  event.event = "drained";
  event.lease = "";
  event.time += 50ms;
  event.before = "idle";
  event.lasted = 2ms;
  event.detail = "x=\x1b";
  EXPECT_EQ(view.line(event),
            "01:00:01.173456  GPU 0  drained      train.py (4711)           after 50.0ms, idle for 2.00ms, x=?");
  // The lease is over: a second end has no beginning.
  EXPECT_EQ(view.line(event).find("after"), std::string::npos);
  event.job = 17;
  EXPECT_NE(view.line(event).find("x=?, job 17"), std::string::npos);
  api_client::TraceEvent job;
  job.event = "job";
  job.job = 17;
  job.name = "train";
  job.before = "queued";
  job.lasted = 2s;
  job.detail = "starting";
  EXPECT_EQ(view.line(job),
            "01:00:00.000000         job          train (job 17)            queued for 2.00s, starting");
  api_client::TraceEvent settings;
  settings.event = "settings";
  EXPECT_EQ(view.line(settings), "01:00:00.000000         settings");
  settings.gpu = 1;
  settings.changes = {{"idle_hold", "auto", "5ms"}, {"mode_now", "serial", "\x1b"}};
  EXPECT_EQ(view.line(settings).substr(24),
            "settings                               idle hold auto -> 5ms, mode now serial -> ?");
  event.epoch = 3;
  EXPECT_EQ(view.line(event).find("epoch"), std::string::npos) << "14 digits that say little";
  TraceView with_epochs(Output{}, 1h, true);
  EXPECT_NE(with_epochs.line(event).find("  epoch 3, "), std::string::npos);
}

TEST(NearestTest, GuessesLikelyMistakesOnly) {
  const std::vector<std::string_view> names{"run", "status", "set", "trace", "doctor", "version"};
  EXPECT_EQ(nearest("statsu", names), "status");
  EXPECT_EQ(nearest("stat", names), "status");
  EXPECT_EQ(nearest("docter", names), "doctor");
  EXPECT_EQ(nearest("rnu", names), "run");
  EXPECT_EQ(nearest("submit", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest(std::string(1000, 's'), names), "");
}

}  // namespace
}  // namespace gpumux::cli

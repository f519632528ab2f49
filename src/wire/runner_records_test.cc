// SPDX-License-Identifier: Apache-2.0
// Goal: the runner reads the daemon's records exactly. A senseless record is refused with a reason. No bytes do harm.
// Other versions are understood or said to be unknown. Method: round trips, cutting to every length, changed copies
// from a printed seed, and records made wrong on purpose. GPUMUX_WRITE_CORPUS names a folder in which the last test
// writes the fuzzer's inputs.
#include "wire/runner_records.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "wire/attach_messages.h"

namespace gpumux::wire {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

RunnerSpec full_spec() {
  RunnerSpec spec;
  spec.job = 42;
  spec.attempt = 3;
  spec.interactive = true;
  spec.window = {24, 80};
  spec.uid = 60001;
  spec.gid = 60002;
  spec.no_new_privs = true;
  spec.groups = {4, 24, 27};
  spec.directory = "/srv/data with spaces";
  spec.arguments = {"python", "", "a b\n\"'$(x)", "\xff\x01"};
  spec.environment = {"PATH=/bin", "EMPTY=", "no equals sign", "BASH_FUNC_x%%=() { :; }"};
  spec.setup_command = "source venv/bin/activate\nexport A='b c'";
  spec.late_environment = {{SetHow::kSet, "CUDA_VISIBLE_DEVICES=1,0"},
                           {SetHow::kIfUnset, "PYTHONUNBUFFERED=1"},
                           {SetHow::kPreload, "LD_PRELOAD=/usr/lib/libgpumux.so"}};
  spec.log_path = "/var/log/42.log";
  spec.log_opening = LogOpening::kUsersAppend;
  spec.error_path = "/var/log/42.err";
  spec.error_opening = LogOpening::kUsersAppend;
  spec.attach_path = "/run/gpumux/attach/42";
  spec.limits = {{7, 0, 1024, 4096}, {4, 0, 0, ~0ull}};
  spec.umask = 0077;
  spec.nice = 5;
  spec.oom_score_adj = 100;
  spec.leftover_grace_ms = 1234;
  spec.cgroup_parent = "/sys/fs/cgroup/jobs";
  return spec;
}

RunnerEnd full_end() {
  RunnerEnd end;
  end.job = 42;
  end.attempt = 3;
  end.how = EndHow::kSignaled;
  end.code = 9;
  end.reason = EndReason::kTimeLimit;
  end.peak_rss_kib = 1000;
  set_text(end.text, "it was killed");
  return end;
}

TEST(RunnerRecords, ComeBackAsTheyWereWritten) {
  const RunnerSpec spec = full_spec();
  const auto read = decode_spec(bytes_of(encode_spec(spec)));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->job, 42u);
  EXPECT_EQ(read->attempt, 3u);
  EXPECT_TRUE(read->interactive);
  EXPECT_EQ(read->window.rows, 24);
  EXPECT_EQ(read->window.columns, 80);
  EXPECT_EQ(read->uid, 60001u);
  EXPECT_EQ(read->gid, 60002u);
  EXPECT_TRUE(read->no_new_privs);
  EXPECT_EQ(read->groups, spec.groups);
  EXPECT_EQ(read->directory, spec.directory);
  EXPECT_EQ(read->arguments, spec.arguments);
  EXPECT_EQ(read->environment, spec.environment);
  EXPECT_EQ(read->setup_command, spec.setup_command);
  EXPECT_EQ(read->error_path, spec.error_path);
  EXPECT_EQ(read->error_opening, LogOpening::kUsersAppend);
  ASSERT_EQ(read->late_environment.size(), 3u);
  EXPECT_EQ(read->late_environment[2].how, SetHow::kPreload);
  EXPECT_EQ(read->late_environment[2].entry, spec.late_environment[2].entry);
  EXPECT_EQ(read->log_path, spec.log_path);
  EXPECT_EQ(read->log_opening, LogOpening::kUsersAppend);
  EXPECT_EQ(read->attach_path, spec.attach_path);
  ASSERT_EQ(read->limits.size(), 2u);
  EXPECT_EQ(read->limits[1].hard, ~0ull);
  EXPECT_EQ(read->umask, 0077u);
  EXPECT_EQ(read->nice, 5);
  EXPECT_EQ(read->oom_score_adj, 100);
  EXPECT_EQ(read->leftover_grace_ms, 1234u);
  EXPECT_EQ(read->cgroup_parent, spec.cgroup_parent);

  const RunnerClaim claim{false, 7, 99, "some-boot", "/sys/fs/cgroup/jobs/42"};
  const auto claim_read = decode_claim(bytes_of(encode_claim(claim)));
  ASSERT_TRUE(claim_read);
  EXPECT_FALSE(claim_read->abandoned);
  EXPECT_EQ(claim_read->runner_pid, 7u);
  EXPECT_EQ(claim_read->runner_start_ticks, 99u);
  EXPECT_EQ(claim_read->boot_id, "some-boot");
  EXPECT_EQ(claim_read->cgroup, claim.cgroup);
  RunnerClaim abandoned;
  abandoned.abandoned = true;
  EXPECT_TRUE(decode_claim(bytes_of(encode_claim(abandoned)))->abandoned);

  const RunnerEnd end = full_end();
  const auto end_read = decode_end(bytes_of(encode_end(end)));
  ASSERT_TRUE(end_read);
  EXPECT_EQ(std::memcmp(&*end_read, &end, sizeof end), 0);
}

TEST(RunnerRecords, AreRefusedWhenTheyMakeNoSense) {
  const auto refused = [](void (*spoil)(RunnerSpec&), const char* expected) {
    RunnerSpec spec = full_spec();
    spoil(spec);
    const auto read = decode_spec(bytes_of(encode_spec(spec)));
    ASSERT_FALSE(read) << expected;
    EXPECT_NE(read.error().message().find(expected), std::string::npos) << read.error().message();
  };
  refused([](RunnerSpec& s) { s.arguments.clear(); }, "no command");
  refused([](RunnerSpec& s) { s.arguments[0].clear(); }, "no command");
  refused([](RunnerSpec& s) { s.arguments[1].push_back('\0'); }, "NUL");
  refused([](RunnerSpec& s) { s.directory = "relative"; }, "absolute");
  refused([](RunnerSpec& s) { s.log_path = ""; }, "absolute");
  refused([](RunnerSpec& s) { s.attach_path = "x"; }, "absolute");
  refused([](RunnerSpec& s) { s.cgroup_parent = "somewhere"; }, "absolute");
  refused([](RunnerSpec& s) { s.uid = ~0u; }, "no id");
  refused([](RunnerSpec& s) { s.gid = ~0u; }, "no id");
  refused([](RunnerSpec& s) { s.groups.push_back(~0u); }, "no group id");
  refused([](RunnerSpec& s) { s.environment.push_back(""); }, "empty entry");
  refused([](RunnerSpec& s) { s.late_environment[0].entry = "=x"; }, "NAME=value");
  refused([](RunnerSpec& s) { s.late_environment[0].how = static_cast<SetHow>(9); }, "does not know");
  refused([](RunnerSpec& s) { s.log_opening = static_cast<LogOpening>(9); }, "does not know");
  refused([](RunnerSpec& s) { s.limits[0].soft = s.limits[0].hard + 1; }, "ceiling");
  refused([](RunnerSpec& s) { s.limits.resize(kMaxResourceLimits + 1); }, "too many");
  refused([](RunnerSpec& s) { s.umask = 01000; }, "umask");
  refused([](RunnerSpec& s) { s.nice = 20; }, "nice");
  refused([](RunnerSpec& s) { s.oom_score_adj = -1001; }, "oom_score_adj");
  refused([](RunnerSpec& s) { s.leftover_grace_ms = ~0ull; }, "grace");
}

TEST(RunnerRecords, CutAnywhereAreRefused) {
  const std::string whole = encode_spec(full_spec());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    std::string cut = whole.substr(0, length);
    EXPECT_FALSE(decode_spec(bytes_of(cut))) << length;
    // Also with a length field that agrees: a field, or half of one, is missing.
    if (length < 24) continue;
    const std::uint64_t size = length;
    std::memcpy(cut.data() + 16, &size, sizeof size);
    const auto read = decode_spec(bytes_of(cut));
    if (read) {
      EXPECT_EQ(length % 8, 0u) << "only whole fields may be missing";
    }
  }
}

TEST(RunnerRecords, OfANewerVersionAreSaidToBeNewer) {
  std::string text = encode_spec(full_spec());
  text[8] = 2;
  auto read = decode_spec(bytes_of(text));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, base::Code::kUnsupported);

  text = encode_claim({});
  const char field[16] = {99};  // a field with tag 99 and nothing in it
  text.append(field, sizeof field);
  const std::uint64_t size = text.size();
  std::memcpy(text.data() + 16, &size, sizeof size);
  const auto claim = decode_claim(bytes_of(text));
  ASSERT_FALSE(claim);
  EXPECT_EQ(claim.error().code, base::Code::kUnsupported);
}

TEST(RunnerRecords, ChangedAtRandomDoNoHarm) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string whole = encode_spec(full_spec());
  for (int round = 0; round < 20'000; ++round) {
    std::string text = whole;
    for (int changes = 0; changes < 3; ++changes) text[random() % text.size()] = static_cast<char>(random());
    const auto read = decode_spec(bytes_of(text));
    if (read) {
      EXPECT_TRUE(decode_spec(bytes_of(encode_spec(*read))));
    }
  }
}

TEST(RunnerRecords, HoldTenMebibytesOfArguments) {
  RunnerSpec spec = full_spec();
  spec.arguments.assign(80, std::string(131072, 'x'));
  const auto read = decode_spec(bytes_of(encode_spec(spec)));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->arguments, spec.arguments);
}

TEST(RunnerMessages, ComeBackAndAreChecked) {
  Begin begin{.protocol = 1};
  set_text(begin.directory, "/var/lib/gpumux/jobs/1.1");
  const auto read = decode_to_runner(encode(begin).bytes());
  ASSERT_TRUE(read && std::holds_alternative<Begin>(*read));
  EXPECT_EQ(text_of(std::get<Begin>(*read).directory), "/var/lib/gpumux/jobs/1.1");
  set_text(begin.directory, "relative");
  EXPECT_FALSE(decode_to_runner(encode(begin).bytes()));
  EXPECT_FALSE(decode_to_runner(encode(Terminate{.reason = EndReason::kNone}).bytes()));
  EXPECT_TRUE(decode_to_runner(encode(Terminate{.grace_ms = 5}).bytes()));
  EXPECT_TRUE(decode_to_runner(encode(Noted{}).bytes()));
  EXPECT_TRUE(decode_to_runner(encode(Signal{.number = 10}).bytes()));
  for (const std::uint32_t number : {0u, kMaxSignal + 1})
    EXPECT_FALSE(decode_to_runner(encode(Signal{.number = number}).bytes()));
  EXPECT_FALSE(decode_from_runner(encode(Suspend{}).bytes()));
  EXPECT_FALSE(decode_from_runner(encode(RunnerState{.phase = static_cast<RunnerPhase>(0)}).bytes()));
  EXPECT_TRUE(decode_from_runner(encode(full_end()).bytes()));
}

TEST(AttachMessages, CarryBytesUpToTheirLimit) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kMaxAttachInputBytes, kMaxAttachInputBytes + 1}) {
    const Header header = attach_header(AttachType::kInput, size);
    std::string text(reinterpret_cast<const char*>(&header), sizeof header);
    text.append(size, 'y');
    const auto read = decode_from_attached(bytes_of(text));
    EXPECT_EQ(read.has_value(), size <= kMaxAttachInputBytes) << size;
    if (read) {
      EXPECT_EQ(std::get<AttachInput>(*read).bytes, std::string(size, 'y'));
    }
    EXPECT_FALSE(decode_to_attached(bytes_of(text)));
  }
  EXPECT_TRUE(decode_from_attached(encode(AttachHello{.window = {5, 6}}).bytes()));
  EXPECT_TRUE(decode_to_attached(encode(AttachEnded{.how = 1}).bytes()));
}

// The fuzzer's inputs are made here, from the same examples, where they can be made again.
TEST(RunnerRecords, MakeTheCorpus) {
  const char* folder = std::getenv("GPUMUX_WRITE_CORPUS");
  if (folder == nullptr) GTEST_SKIP() << "GPUMUX_WRITE_CORPUS names no folder";
  const auto write = [&](const char* name, std::span<const std::byte> bytes) {
    std::ofstream file(std::string(folder) + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good()) << name;
  };
  write("spec", bytes_of(encode_spec(full_spec())));
  RunnerSpec small;
  small.directory = small.log_path = "/";
  small.arguments = {"true"};
  write("spec_small", bytes_of(encode_spec(small)));
  write("claim", bytes_of(encode_claim({false, 7, 99, "some-boot", "/sys/fs/cgroup/jobs/42"})));
  write("end", bytes_of(encode_end(full_end())));
  Begin begin{.protocol = 1};
  set_text(begin.directory, "/jobs/1.1");
  write("begin", encode(begin).bytes());
  write("terminate", encode(Terminate{.grace_ms = 5}).bytes());
  write("suspend", encode(Suspend{.sequence = 1}).bytes());
  write("resume", encode(Resume{.sequence = 2}).bytes());
  write("noted", encode(Noted{}).bytes());
  write("signal", encode(Signal{.number = 10}).bytes());
  write("state", encode(RunnerState{}).bytes());
  write("ended", encode(full_end()).bytes());
  write("refused", encode(RunnerRefused{}).bytes());
  write("attach_hello", encode(AttachHello{.window = {5, 6}}).bytes());
  write("attach_resize", encode(AttachResize{.window = {5, 6}}).bytes());
  write("attach_welcome", encode(AttachWelcome{}).bytes());
  write("attach_lagging", encode(AttachLagging{}).bytes());
  write("attach_ended", encode(AttachEnded{}).bytes());
  for (const auto type : {AttachType::kInput, AttachType::kOutput}) {
    const Header header = attach_header(type, 3);
    const std::string text = std::string(reinterpret_cast<const char*>(&header), sizeof header) + "ls\r";
    write(type == AttachType::kInput ? "attach_input" : "attach_output", bytes_of(text));
  }
}

}  // namespace
}  // namespace gpumux::wire

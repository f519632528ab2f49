// SPDX-License-Identifier: Apache-2.0
// Goal: the daemon reads of a container what the hook has written, or an error; never a part of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "containers/record.h"
#include "os/durable_file.h"

namespace gpumux::containers {
namespace {

class RecordTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gpumux-records-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    path_ = path;
    folder_ = os::FileDescriptor(::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  void TearDown() override {
    for (const std::string& id : ids()) EXPECT_TRUE(remove_record(folder_.get(), id));
    EXPECT_EQ(::rmdir(path_.c_str()), 0);
  }
  int folder() const { return folder_.get(); }
  std::vector<std::string> ids() const { return record_ids(folder()).value(); }
  void put(const std::string& name, const std::string& text) {
    const os::FileDescriptor file(::openat(folder(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  static Record a_record() {
    return {.id = "abc123",
            .control_group = "/kubepods/abc123",
            .pod_namespace = "team-a",
            .pod = "train-0",
            .name = "main",
            .claims = {{"5b1f3d3e-0c5a",
                        {{"GPU-1", std::uint64_t{20} << 30}, {"GPU-2", UINT64_MAX}},
                        {{"GPU-1", 50}, {"GPU-4", 100}},
                        -7},
                       {"c-2", {{"GPU-3", 1}}, {{"GPU-3", 25}}}}};
  }

  std::string path_;
  os::FileDescriptor folder_;
};

TEST_F(RecordTest, IsReadAsItWasWritten) {
  ASSERT_TRUE(write_record(folder(), a_record()));
  EXPECT_EQ(*read_record(folder(), "abc123"), a_record());
  EXPECT_EQ(ids(), std::vector<std::string>{"abc123"});
  struct stat status {};
  ASSERT_EQ(::fstatat(folder(), "abc123", &status, 0), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0600u);
}

Record a_job() {
  return {.id = "slurm-42",
          .control_group = "/slurm/uid_1/job_42",
          .claims = {{.uid = "slurm-42", .on_each = Part{20, 200, 0}}}};
}

TEST_F(RecordTest, AJobsPartIsReadAsItWasWritten) {
  Record job = a_job();
  ASSERT_TRUE(write_record(folder(), job));
  EXPECT_EQ(*read_record(folder(), "slurm-42"), job);
  const std::string good = *os::read_file_at(folder(), "slurm-42", 1u << 20);
  for (const auto& [from, to] : {std::pair{"200", "1001"}, std::pair{"200", "0"}, std::pair{"200", "-1"},
                                 std::pair{"\"cores\": 20", "\"cores\": 0"}, std::pair{"\"bytes\"", "\"Bytes\""}}) {
    std::string text = good;
    text.replace(text.find(from), std::string_view(from).size(), to);
    put("slurm-42", text);
    EXPECT_FALSE(read_record(folder(), "slurm-42")) << to;
  }
}

TEST_F(RecordTest, APartOfEachGpuIsTheOnlyWordOnGpus) {
  Record job = a_job();
  job.claims.push_back({"another"});
  EXPECT_FALSE(write_record(folder(), job));
  job = a_job();
  job.claims[0].quotas.push_back({"GPU-1", 1});
  EXPECT_FALSE(write_record(folder(), job));
  job.claims[0] = a_job().claims[0];
  job.claims[0].uid.clear();
  EXPECT_FALSE(write_record(folder(), job));
}

TEST(ClaimsTest, APartHoldsOnEveryGpu) {
  Claim claim{.uid = "a", .on_each = Part{20, 250, 0}};
  EXPECT_EQ(cores_on(claim, "GPU-1"), 20u);
  EXPECT_EQ(bytes_on(claim, "GPU-1", 80'000), 20'000u);
  EXPECT_EQ(bytes_on(claim, "GPU-2", 8'000), 2'000u);
  claim.on_each->bytes = 5'000;
  EXPECT_EQ(bytes_on(claim, "GPU-1", 80'000), 5'000u);
  EXPECT_EQ(bytes_on(claim, "GPU-2", 8'000), 2'000u);
  EXPECT_EQ(bytes_on({.uid = "a", .on_each = Part{100, 1000, 0}}, "GPU-1", UINT64_MAX / 1000 * 1000),
            UINT64_MAX / 1000 * 1000);
}

TEST(ClaimsTest, AmountsOfAGpuHoldThereOnly) {
  const Claim claim{"a", {{"GPU-1", 7}}, {{"GPU-2", 50}}};
  EXPECT_EQ(bytes_on(claim, "GPU-1", 100), 7u);
  EXPECT_EQ(bytes_on(claim, "GPU-2", 100), std::nullopt);
  EXPECT_EQ(cores_on(claim, "GPU-2"), 50u);
  EXPECT_EQ(cores_on(claim, "GPU-1"), std::nullopt);
}

TEST_F(RecordTest, IsReplacedAndRemovedAnyNumberOfTimes) {
  Record record = a_record();
  ASSERT_TRUE(write_record(folder(), record));
  record.pod = "train-1";
  record.claims.clear();
  ASSERT_TRUE(write_record(folder(), record));
  EXPECT_EQ(*read_record(folder(), "abc123"), record);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(remove_record(folder(), "abc123"));
  const auto gone = read_record(folder(), "abc123");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, base::Code::kNotFound);
}

TEST_F(RecordTest, NamesNeedNoEncoding) {
  Record record = a_record();
  record.pod = "a\"b\\\n\xff";
  ASSERT_TRUE(write_record(folder(), record));
  EXPECT_EQ(read_record(folder(), "abc123")->pod, "a\"b\\\n\xEF\xBF\xBD");
}

TEST_F(RecordTest, WhatCannotBeMeantIsNotWritten) {
  const auto refuses = [&](auto change) {
    Record record = a_record();
    change(record);
    const auto written = write_record(folder(), record);
    return !written && written.error().code == base::Code::kInvalid;
  };
  EXPECT_TRUE(refuses([](Record& r) { r.id = ""; }));
  EXPECT_TRUE(refuses([](Record& r) { r.id = "../abc"; }));
  EXPECT_TRUE(refuses([](Record& r) { r.id = std::string(129, 'a'); }));
  EXPECT_TRUE(refuses([](Record& r) { r.control_group = ""; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].uid = ""; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[1].uid = r.claims[0].uid; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].quotas[1].gpu = "GPU-1"; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[1].quotas[0].gpu = "GPU-1"; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].quotas[1].bytes = 0; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].shares.push_back({"GPU-1", 1}); }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[1].shares[0].gpu = "GPU-2"; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].shares[0].gpu = "0"; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].shares[0].cores = 0; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].shares[0].cores = kMostCores + 1; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].priority = 1001; }));
  EXPECT_TRUE(refuses([](Record& r) { r.claims[0].priority = -1001; }));
  EXPECT_TRUE(refuses([](Record& r) { r.pod = std::string(70'000, 'a'); }));
  EXPECT_TRUE(ids().empty());
}

TEST(ClaimsTest, OneClaimCountsOnAGpu) {
  std::vector<Claim> claims;
  EXPECT_TRUE(add_claim(claims, {"a", {{"GPU-1", 1}, {"GPU-2", 2}}}).empty());
  EXPECT_EQ(add_claim(claims, {"b", {{"GPU-2", 5}, {"GPU-3", 3}}}), std::vector<std::string>{"GPU-2"});
  const std::vector<Claim> both{{"a", {{"GPU-1", 1}, {"GPU-2", 2}}}, {"b", {{"GPU-3", 3}}}};
  EXPECT_EQ(claims, both);
  // Hooks may run again.
  EXPECT_TRUE(add_claim(claims, both[0]).empty());
  EXPECT_EQ(claims, both);
  EXPECT_TRUE(add_claim(claims, {"a", {{"GPU-1", 7}}}).empty());
  EXPECT_EQ(claims, (std::vector<Claim>{{"a", {{"GPU-1", 7}}}, both[1]}));
}

TEST(ClaimsTest, TheClaimThatCountsOnAGpuGivesQuotaAndShare) {
  std::vector<Claim> claims{{"a", {{"GPU-1", 1}}, {{"GPU-2", 50}}}};
  EXPECT_EQ(add_claim(claims, {"b", {{"GPU-2", 5}, {"GPU-3", 3}}, {{"GPU-1", 25}, {"GPU-2", 25}, {"GPU-3", 25}}}),
            (std::vector<std::string>{"GPU-1", "GPU-2"}));
  EXPECT_EQ(claims,
            (std::vector<Claim>{{"a", {{"GPU-1", 1}}, {{"GPU-2", 50}}}, {"b", {{"GPU-3", 3}}, {{"GPU-3", 25}}}}));
}

TEST(ClaimsTest, TheLowestPriorityCounts) {
  const auto with = [](std::int32_t priority) { return Claim{std::to_string(priority), {}, {}, priority}; };
  EXPECT_EQ(most_priority({}), std::nullopt);
  EXPECT_EQ(most_priority({with(0)}), 0);
  EXPECT_EQ(most_priority({with(7), with(5)}), 5);
  EXPECT_EQ(most_priority({with(-7), with(0), with(5)}), -7);
}

TEST_F(RecordTest, ARecordWithoutAPriorityHasZero) {
  Record record = a_record();
  ASSERT_TRUE(write_record(folder(), record));
  std::string text = *os::read_file_at(folder(), "abc123", 1u << 20);
  for (const std::string line : {"\"priority\": -7", "\"priority\": 0"}) {
    const std::size_t at = text.find(line);
    ASSERT_NE(at, std::string::npos) << text;
    text.replace(at, line.size(), "\"since_a_later_version\": 1");
  }
  put("abc123", text);
  record.claims[0].priority = 0;
  EXPECT_EQ(*read_record(folder(), "abc123"), record);
}

TEST_F(RecordTest, WhatIsNoRecordOfTheContainerIsAnError) {
  ASSERT_TRUE(write_record(folder(), a_record()));
  const std::string good = *os::read_file_at(folder(), "abc123", 1u << 20);
  const auto code_of = [&](const std::string& text) {
    put("abc123", text);
    const auto record = read_record(folder(), "abc123");
    return record ? std::optional<base::Code>() : record.error().code;
  };
  EXPECT_EQ(code_of(good), std::nullopt);
  for (std::size_t length = 0; length + 2 < good.size(); ++length)
    EXPECT_EQ(code_of(good.substr(0, length)), base::Code::kInvalid) << length;
  for (const char* text : {"[]", "null", "{}", "{\"version\":1}", "{\"version\":2}"})
    EXPECT_EQ(code_of(text), base::Code::kInvalid) << text;
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return code_of(text);
  };
  EXPECT_EQ(changed("\"abc123\"", "\"abc124\""), base::Code::kInvalid);  // another container's
  EXPECT_EQ(changed("18446744073709551615", "-1"), base::Code::kInvalid);
  EXPECT_EQ(changed("18446744073709551615", "\"20G\""), base::Code::kInvalid);
  EXPECT_EQ(changed("18446744073709551615", "0"), base::Code::kInvalid);
  EXPECT_EQ(changed("\"cores\": 50", "\"cores\": \"50\""), base::Code::kInvalid);
  EXPECT_EQ(changed("\"shares\"", "\"Shares\""), base::Code::kInvalid);
  EXPECT_EQ(changed("\"priority\": -7", "\"priority\": \"-7\""), base::Code::kInvalid);
  EXPECT_EQ(changed("\"priority\": -7", "\"priority\": -7.5"), base::Code::kInvalid);
  EXPECT_EQ(changed("\"priority\": -7", "\"priority\": 1001"), base::Code::kInvalid);
  EXPECT_EQ(changed("\"priority\": -7", "\"priority\": 4294967296"), base::Code::kInvalid);
  EXPECT_EQ(changed("\"version\": 1", "\"version\": 2"), base::Code::kInvalid);
}

}  // namespace
}  // namespace gpumux::containers

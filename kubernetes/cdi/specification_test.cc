// SPDX-License-Identifier: Apache-2.0
// Specification files say what runtimes, the loader and the CDI specification accept, and are whole or absent.
#include "kubernetes/cdi/specification.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kHook[] = "/usr/libexec/gpumux/gpumux-cdi-hook";
const Owner kClaim{Owner::Kind::kClaim, "6f9d7a1e-0b51-4c43-9d7e-5f2f1a2b3c4d"};

Node real_node() { return {"/usr/lib/gpumux/containers", "0.1.0", "/run/gpumux", std::nullopt}; }

Injection injection_of(const Node& node, std::vector<Variable> variables = {}) {
  auto injection = make_injection(node, std::move(variables));
  EXPECT_TRUE(injection) << (injection ? "" : injection.error().message());
  return injection.value_or(Injection{});
}

json parsed(const Owner& owner, const Injection& injection) {
  const auto text = specification(owner, injection, kHook);
  EXPECT_TRUE(text) << (text ? "" : text.error().message());
  return json::parse(text.value_or("{}"));
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SpecificationTest, IsWhatRuntimesExpect) {
  const json expected = json::parse(R"({
    "cdiVersion": "0.3.0",
    "kind": "gpumux.io/claim",
    "devices": [{
      "name": "id-6f9d7a1e-0b51-4c43-9d7e-5f2f1a2b3c4d",
      "containerEdits": {
        "env": ["CUDA_VISIBLE_DEVICES=0=1", "GPUMUX_RUNTIME_DIR=/run/gpumux"],
        "mounts": [
          {"hostPath": "/usr/lib/gpumux/containers", "containerPath": "/usr/lib/gpumux/containers",
           "options": ["ro", "nosuid", "nodev", "bind", "rprivate"]},
          {"hostPath": "/run/gpumux/tenants", "containerPath": "/run/gpumux/tenants",
           "options": ["ro", "nosuid", "nodev", "bind", "rprivate", "noexec"]}],
        "hooks": [
          {"hookName": "createRuntime", "path": "/usr/libexec/gpumux/gpumux-cdi-hook",
           "args": ["gpumux-cdi-hook", "--record", "/run/gpumux/root/containers"]},
          {"hookName": "createContainer", "path": "/usr/libexec/gpumux/gpumux-cdi-hook",
           "args": ["gpumux-cdi-hook", "--library", "/usr/lib/gpumux/containers/0.1.0/libgpumux.so"]},
          {"hookName": "poststop", "path": "/usr/libexec/gpumux/gpumux-cdi-hook",
           "args": ["gpumux-cdi-hook", "--forget", "/run/gpumux/root/containers"]}]
      }
    }]
  })");
  EXPECT_EQ(parsed(kClaim, injection_of(real_node(), {{"CUDA_VISIBLE_DEVICES", "0=1"}})), expected);
  EXPECT_EQ(device_name(kClaim), "gpumux.io/claim=id-6f9d7a1e-0b51-4c43-9d7e-5f2f1a2b3c4d");
}

TEST(SpecificationTest, TellsTheHookOfTheClaim) {
  const auto injection = make_injection(
      real_node(), {}, {"c-1", {{"GPU-1", std::uint64_t{20} << 30}, {"MIG-2", UINT64_MAX}}, {{"GPU-1", 25}}, -5});
  ASSERT_TRUE(injection) << injection.error().message();
  EXPECT_EQ(
      parsed(kClaim, *injection)["devices"][0]["containerEdits"]["hooks"][0]["args"],
      json({"gpumux-cdi-hook", "--record", "/run/gpumux/root/containers", "--claim", "c-1", "--quota",
            "GPU-1=21474836480", "--quota", "MIG-2=18446744073709551615", "--share", "GPU-1=25", "--priority", "-5"}));
}

// The folder of records neither: a container could read whose the others are.
TEST(SpecificationTest, NeverHasTheApisSocket) {
  for (const Mount& mount : injection_of(real_node()).mounts) {
    for (const char* hidden : {"/run/gpumux/api.sock", "/run/gpumux/root/containers"})
      EXPECT_FALSE(std::string(hidden).starts_with(mount.host_path + "/")) << mount.host_path;
  }
}

TEST(SpecificationTest, HasTheSimulatedDriver) {
  Node node = real_node();
  node.simulated = SimulatedDriver{"/build/sim", "/dev/shm/machine"};
  const json edits = parsed({Owner::Kind::kContainer, "c1"}, injection_of(node))["devices"][0]["containerEdits"];
  EXPECT_EQ(edits["env"], json({"GPUMUX_RUNTIME_DIR=/run/gpumux", "LD_LIBRARY_PATH=/usr/lib/gpumux/sim",
                                "GPUMUX_SIM_DIR=/run/gpumux-sim"}));
  ASSERT_EQ(edits["mounts"].size(), 4u);
  EXPECT_EQ(edits["mounts"][3]["hostPath"], "/dev/shm/machine");
  EXPECT_EQ(edits["mounts"][3]["options"][0], "rw");
}

TEST(SpecificationTest, RefusesWhatWouldMeanSomethingElse) {
  for (const char* id : {"", ".", "..", "a/b", "-a", "a-", "a b", "a:b", "a\n", "\xc3\xa4"}) {
    EXPECT_FALSE(specification({Owner::Kind::kClaim, id}, injection_of(real_node()), kHook)) << id;
  }
  EXPECT_FALSE(specification({Owner::Kind::kClaim, std::string(kMaxIdBytes + 1, 'a')}, {}, kHook));
  EXPECT_FALSE(specification(kClaim, injection_of(real_node()), "gpumux-cdi-hook"));

  for (const auto& spoil : std::vector<void (*)(Injection&)>{
           [](Injection& i) { i.library = "libgpumux.so"; },
           [](Injection& i) { i.library = "/a b/libgpumux.so"; },
           [](Injection& i) { i.library = "/a:b/libgpumux.so"; },
           [](Injection& i) { i.library = "/a#/libgpumux.so"; },
           [](Injection& i) { i.library = "/$LIB/libgpumux.so"; },
           [](Injection& i) { i.library = "/a\n/libgpumux.so"; },
           [](Injection& i) { i.mounts[0].host_path = "usr"; },
           [](Injection& i) { i.mounts[0].container_path = "/usr/../etc"; },
           [](Injection& i) { i.mounts[0].container_path = "/usr/.."; },
           [](Injection& i) { i.mounts[0].container_path = i.mounts[1].container_path; },
           [](Injection& i) { i.mounts[0].host_path = "/\xff"; },
           [](Injection& i) { i.records = "records"; },
           [](Injection& i) {
             i.claim = {"c\n", {}};
           },
           [](Injection& i) {
             i.claim = {"", {{"GPU-1", 1}}};
           },
           [](Injection& i) {
             i.claim = {"c", {{"GPU-1", 0}}};
           },
           [](Injection& i) {
             i.claim = {"c", {{"0", 1}}};
           },
           [](Injection& i) {
             i.claim = {"c", {{"GPU-1", 1}, {"GPU-1", 2}}};
           },
           [](Injection& i) {
             i.claim = {"c", {{"GPU-\xff", 1}}};
           },
           [](Injection& i) {
             i.variables.push_back({"", "x"});
           },
           [](Injection& i) {
             i.variables.push_back({"A=B", "x"});
           },
           [](Injection& i) {
             i.variables.push_back({"GPUMUX_RUNTIME_DIR", "twice"});
           },
           [](Injection& i) {
             i.variables.push_back({"A", std::string("x\0y", 3)});
           },
       }) {
    Injection injection = injection_of(real_node());
    spoil(injection);
    const auto text = specification(kClaim, injection, kHook);
    ASSERT_FALSE(text) << *text;
    EXPECT_EQ(text.error().code, base::Code::kInvalid);
  }
  for (const char* version : {"", ".", "..", "1/2"}) {
    Node node = real_node();
    node.version = version;
    EXPECT_FALSE(make_injection(node)) << version;
  }
}

TEST(EnvironmentOnlyTest, PreloadsByAVariable) {
  const auto plain = environment_only(injection_of(real_node()));
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->mounts.size(), 2u);
  ASSERT_EQ(plain->variables.size(), 2u);
  EXPECT_EQ(plain->variables[1].name, "LD_PRELOAD");
  EXPECT_EQ(plain->variables[1].value, "/usr/lib/gpumux/containers/0.1.0/libgpumux.so");
  EXPECT_FALSE(environment_only(injection_of(real_node(), {{"LD_PRELOAD", "/x.so"}})));
}

class FolderTest : public ::testing::Test {
 protected:
  SpecificationFolder open() {
    auto folder = SpecificationFolder::open(path_);
    if (!folder) ADD_FAILURE() << folder.error().message();
    return std::move(*folder);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryDirectory temporary_;
  std::string path_ = temporary_.file("cdi");
  const std::string file_ = "gpumux.io-claim_" + kClaim.id + ".json";
};

TEST_F(FolderTest, FilesComeAndGoWithTheirOwners) {
  auto folder = open();
  const Owner other{Owner::Kind::kContainer, kClaim.id};
  EXPECT_EQ(folder.write(kClaim, injection_of(real_node()), kHook).value_or(""), device_name(kClaim));
  ASSERT_TRUE(folder.write(other, injection_of(real_node()), kHook));
  EXPECT_EQ(content(path_ + "/" + file_), specification(kClaim, injection_of(real_node()), kHook).value_or(""));
  EXPECT_EQ(files(), (std::vector<std::string>{file_, "gpumux.io-container_" + kClaim.id + ".json"}));

  auto again = open();  // by a plugin that has started again
  EXPECT_EQ(again.owners().value_or(std::vector<Owner>{}), (std::vector<Owner>{kClaim, other}));
  ASSERT_TRUE(again.remove(other));
  ASSERT_TRUE(again.remove(other));
  EXPECT_EQ(again.owners().value_or(std::vector<Owner>{}), std::vector<Owner>{kClaim});
  EXPECT_FALSE(again.remove({Owner::Kind::kClaim, "../" + kClaim.id}));
}

TEST_F(FolderTest, ASecondWriteReplacesTheFirst) {
  auto folder = open();
  Node node = real_node();
  node.simulated = SimulatedDriver{"/build/sim", "/dev/shm/machine"};
  ASSERT_TRUE(folder.write(kClaim, injection_of(node), kHook));
  ASSERT_TRUE(folder.write(kClaim, injection_of(real_node()), kHook));
  EXPECT_EQ(content(path_ + "/" + file_), specification(kClaim, injection_of(real_node()), kHook).value_or(""));
  EXPECT_FALSE(folder.write(kClaim, injection_of(real_node()), "no path"));
  EXPECT_EQ(files(), std::vector<std::string>{file_});
}

TEST_F(FolderTest, OthersFilesAreNobodysBusiness) {
  open();
  const std::vector<std::string> others{"gpumux.io-claim_.json",      "gpumux.io-claim_a.json.bad",
                                        "gpumux.io-claim_a.json.bak", "gpumux.io-claim_a.yaml",
                                        "nvidia.com-gpu.json",        "nvidia.com-gpu.json.17"};
  for (const std::string& name : others) std::ofstream(path_ + "/" + name) << "{}";
  std::ofstream(path_ + "/" + file_ + ".0123456789abcdef") << "{";
  EXPECT_TRUE(open().owners().value_or(std::vector<Owner>{kClaim}).empty());
  EXPECT_EQ(files(), others) << "what a killed writer of ours left is gone, and nothing else";
}

// A runtime of another user reads all files of the folder.
TEST_F(FolderTest, EveryUserMayReadTheFiles) {
  const mode_t before = ::umask(0077);
  EXPECT_TRUE(open().write(kClaim, injection_of(real_node()), kHook));
  ::umask(before);
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0755));
  EXPECT_EQ(fs::status(path_ + "/" + file_).permissions(), fs::perms(0644));
}

TEST_F(FolderTest, AWriteThatFailsLeavesNothing) {
  auto folder = open();
  ASSERT_TRUE(folder.write(kClaim, injection_of(real_node()), kHook));
  const std::string text = content(path_ + "/" + file_);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const bool wrote = folder.write(kClaim, injection_of(real_node(), {{"A", "1"}}), kHook).has_value();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(wrote);
  EXPECT_EQ(files(), std::vector<std::string>{file_});
  EXPECT_EQ(content(path_ + "/" + file_), text);
}

// Two plugins in pods have the same process id, as two threads have. Each looks for what others have left when it opens
// the folder.
TEST_F(FolderTest, WritersDoNotDisturbEachOther) {
  open();
  const Injection injections[] = {injection_of(real_node()),
                                  injection_of(real_node(), {{"A", std::string(5000, 'a')}})};
  std::vector<std::string> texts;
  for (const Injection& injection : injections) texts.push_back(specification(kClaim, injection, kHook).value_or(""));
  std::vector<std::thread> writers;
  for (const Injection& injection : injections) {
    writers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const auto wrote = open().write(kClaim, injection, kHook);
        EXPECT_TRUE(wrote) << wrote.error().message();
        const std::string text = content(path_ + "/" + file_);
        EXPECT_TRUE(text == texts[0] || text == texts[1]) << text.size() << " bytes";
        if (HasFailure()) break;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(files(), std::vector<std::string>{file_});
}

TEST_F(FolderTest, AReaderSeesWholeFilesWheneverTheWriterIsKilled) {
  open();
  Node longer = real_node();
  longer.simulated = SimulatedDriver{"/build/sim", "/" + std::string(60000, 'm')};
  const std::string texts[] = {specification(kClaim, injection_of(real_node()), kHook).value_or(""),
                               specification(kClaim, injection_of(longer), kHook).value_or("")};
  for (int round = 0; round < 10; ++round) {
    const pid_t writer = ::fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      auto folder = SpecificationFolder::open(path_);
      while (folder) {
        if (!folder->write(kClaim, injection_of(longer), kHook)) ::_exit(1);
        if (!folder->write(kClaim, injection_of(real_node()), kHook)) ::_exit(1);
      }
      ::_exit(1);
    }
    for (int seen = 0; seen < 20;) {
      std::ifstream file(path_ + "/" + file_, std::ios::binary);
      if (!file) continue;  // the first write is under way
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      ++seen;
      EXPECT_TRUE(text == texts[0] || text == texts[1]) << text.size() << " bytes";
    }
    ::kill(writer, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the writer failed";
    const std::string text = content(path_ + "/" + file_);
    EXPECT_TRUE(text == texts[0] || text == texts[1]) << text.size() << " bytes";
  }
  open();
  EXPECT_EQ(files(), std::vector<std::string>{file_});
}

}  // namespace
}  // namespace gpumux::kubernetes

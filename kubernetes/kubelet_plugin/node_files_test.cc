// SPDX-License-Identifier: Apache-2.0
// What a pod puts on its host comes whole, leaves other versions alone, and goes only when no container has it.
#include "kubernetes/kubelet_plugin/node_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/version.h"
#include "os/file_descriptor.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

namespace fs = std::filesystem;

class NodeFiles : public ::testing::Test {
 protected:
  NodeFiles() {
    write("image/bin/gpumux-kubelet-plugin", "plugin");
    write("image/libexec/gpumux/gpumux-cdi-hook", "hook");
    write("image/lib/libgpumux.so", "library");
    settings_.libraries = path("host/containers");
    settings_.hook = path("host/gpumux-cdi-hook");
    settings_.sim_libraries = path("host/sim");
    settings_.cdi_folder = path("cdi");
    settings_.kubelet = path("kubelet");
  }

  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name)) << content;
  }
  std::string content(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  ino_t inode(const std::string& name) const {
    struct stat status {};
    EXPECT_EQ(::stat(path(name).c_str(), &status), 0) << name;
    EXPECT_EQ(status.st_mode & 07777, 0755u) << name;
    return status.st_ino;
  }
  bool exists(const std::string& name) const { return fs::exists(path(name)); }
  void install() const {
    const auto done = install_node_files(settings_, path("image/bin"));
    ASSERT_TRUE(done) << done.error().message();
  }
  base::Status remove() const { return remove_node_files(settings_, {path("run"), path("run-locks")}); }

  const TemporaryDirectory dir_;
  settings::KubeletSettings settings_;
  const std::string library_ = std::string("host/containers/") + base::version() + "/libgpumux.so";
};

TEST_F(NodeFiles, AreWhereContainersAndRuntimesLook) {
  install();
  EXPECT_EQ(content(library_), "library");
  EXPECT_EQ(content("host/gpumux-cdi-hook"), "hook");
  EXPECT_FALSE(exists("host/sim"));
  const ino_t before = inode(library_);
  install();
  EXPECT_EQ(inode(library_), before) << "a file that is as it is to be was written again";
}

TEST_F(NodeFiles, OfTheNextVersionLeaveTheOldOneThere) {
  write("host/containers/0.0.1/libgpumux.so", "old");
  install();
  const ino_t hook = inode("host/gpumux-cdi-hook");
  write("image/libexec/gpumux/gpumux-cdi-hook", "next");
  install();
  EXPECT_EQ(content("host/containers/0.0.1/libgpumux.so"), "old");
  EXPECT_NE(inode("host/gpumux-cdi-hook"), hook) << "a running hook was written to";
  EXPECT_EQ(content("host/gpumux-cdi-hook"), "next");
}

TEST_F(NodeFiles, HaveTheSimulatedDriverIfTheImageHas) {
  write("image/lib/gpumux/sim/libcuda.so.1", "cuda");
  write("image/lib/gpumux/sim/libnvidia-ml.so.1", "nvml");
  install();
  EXPECT_EQ(content("host/sim/libcuda.so.1"), "cuda");
  EXPECT_EQ(content("host/sim/libnvidia-ml.so.1"), "nvml");
  ASSERT_TRUE(remove());
  EXPECT_FALSE(exists("host"));
}

TEST_F(NodeFiles, AnImageWithoutThemIsRefused) {
  fs::remove(path("image/libexec/gpumux/gpumux-cdi-hook"));
  const auto refused = install_node_files(settings_, path("image/bin"));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("gpumux-cdi-hook"), std::string::npos) << refused.error().message();
  EXPECT_FALSE(exists("host"));
}

TEST_F(NodeFiles, GoWithTheSpecificationsAndWithoutOthersFiles) {
  install();
  write("host/containers/0.0.1/libgpumux.so", "old");
  write("host/containers/0.0.1/others", "");
  write("cdi/gpumux.io-container_node.json", "{}");
  write("cdi/nvidia.json", "{}");
  const auto removed = remove();
  ASSERT_TRUE(removed) << removed.error().message();
  EXPECT_FALSE(exists("cdi/gpumux.io-container_node.json"));
  EXPECT_TRUE(exists("cdi/nvidia.json"));
  EXPECT_FALSE(exists("host/gpumux-cdi-hook"));
  EXPECT_FALSE(exists(fs::path(library_).parent_path()));
  EXPECT_FALSE(exists("host/containers/0.0.1/libgpumux.so"));
  EXPECT_TRUE(exists("host/containers/0.0.1/others"));
  EXPECT_TRUE(remove()) << "nothing is left to remove";
}

TEST_F(NodeFiles, StayWhileAContainerHasThem) {
  install();
  write("cdi/gpumux.io-container_node.json", "{}");
  write("run/root/containers/" + std::string(64, 'a'), "{}");
  const auto refused = remove();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("1 containers"), std::string::npos) << refused.error().message();
  EXPECT_TRUE(exists("cdi/gpumux.io-container_node.json"));
  EXPECT_TRUE(exists("host/gpumux-cdi-hook"));
}

TEST_F(NodeFiles, StayWhileAClaimIsPrepared) {
  install();
  write("cdi/gpumux.io-claim_1234.json", "{}");
  write("kubelet/plugins/gpumux.io/claims/1234.json", "{}");
  const auto is_refused = [&] {
    const auto removed = remove();
    EXPECT_TRUE(exists(library_));
    return !removed && removed.error().message().find("1 claims") != std::string::npos;
  };
  EXPECT_TRUE(is_refused());
  // The machine has started again.
  fs::remove(path("cdi/gpumux.io-claim_1234.json"));
  EXPECT_TRUE(is_refused());
  fs::remove(path("kubelet/plugins/gpumux.io/claims/1234.json"));
  EXPECT_TRUE(remove());
  EXPECT_FALSE(exists(library_));
}

TEST_F(NodeFiles, GoWithThePluginsFolder) {
  fs::create_directories(path("kubelet/plugins/another"));
  fs::create_directories(path("kubelet/plugins_registry"));
  write("kubelet/plugins/gpumux.io/dra.sock", "");
  write("kubelet/plugins/gpumux.io/claims/1.json.unreadable", "");
  write("kubelet/plugins/gpumux.io/claims/1.json.0123456789abcdef", "");
  ASSERT_TRUE(remove());
  EXPECT_FALSE(exists("kubelet/plugins/gpumux.io"));
  EXPECT_TRUE(exists("kubelet/plugins/another"));
  EXPECT_TRUE(exists("kubelet/plugins_registry"));
  write("kubelet/plugins/gpumux.io/claims/others", "");
  ASSERT_TRUE(remove());
  EXPECT_TRUE(exists("kubelet/plugins/gpumux.io/claims/others"));
}

class DaemonsFolders : public NodeFiles {
 protected:
  DaemonsFolders() {
    for (const char* name : {"lock", "api.sock", "known_tenants", "tenants/tenants.sock", "root/api.sock"})
      write(std::string("run/") + name, "");
    fs::create_directories(path("run/root/containers"));
    fs::create_directories(path("run-locks"));
  }
};

TEST_F(DaemonsFolders, GoOnceTheDaemonHasEnded) {
  {
    const os::FileDescriptor daemon(::open(path("run/lock").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(daemon.get(), LOCK_EX), 0);
    ASSERT_TRUE(remove());
    for (const char* name : {"run/api.sock", "run/tenants/tenants.sock", "run/root/containers", "run-locks"})
      EXPECT_TRUE(exists(name)) << name;
  }
  // Of a hook that was killed while it wrote.
  write("run/root/containers/" + std::string(64, 'a') + ".0123456789abcdef", "");
  ASSERT_TRUE(remove());
  EXPECT_FALSE(exists("run"));
  EXPECT_FALSE(exists("run-locks"));
}

TEST_F(DaemonsFolders, StayAsFarAsTheyHaveOthersFiles) {
  for (const char* name : {"run/tenants/others", "run-locks/others"}) write(name, "");
  ASSERT_TRUE(remove());
  EXPECT_TRUE(exists("run/tenants/others"));
  EXPECT_TRUE(exists("run-locks/others"));
  EXPECT_FALSE(exists("run/root"));
  EXPECT_FALSE(exists("run/lock"));
}

TEST_F(DaemonsFolders, ThatAreNotThereAreNoError) {
  fs::remove_all(path("run"));
  fs::remove_all(path("run-locks"));
  EXPECT_TRUE(remove());
}

}  // namespace
}  // namespace gpumux::kubernetes

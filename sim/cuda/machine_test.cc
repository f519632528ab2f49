// SPDX-License-Identifier: Apache-2.0
// Goal: a machine is made once, as its settings say, and is the same for every process. Method: machines in directories
// of their own.
#include "sim/cuda/machine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "sim/cuda/machine_layout.h"
#include "sim/cuda/settings.h"

namespace gpumux::sim {
namespace {

class MachineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = "/dev/shm/gpumux-sim-machine-test-" + std::to_string(::getpid());
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(MachineTest, SettingsComeFromTheFile) {
  Settings settings;
  ASSERT_TRUE(apply_lines("# a machine\n gpus = 3 # three\n\nmemory=2G\nslice = 5ms\nname = My GPU\n"
                          "interrupts = refused\nfreeze_cost = 2ms\n",
                          settings)
                  .has_value());
  EXPECT_EQ(settings.gpus, 3u);
  EXPECT_EQ(settings.memory_bytes, std::uint64_t{2} << 30);
  EXPECT_EQ(settings.slice_nanoseconds, 5'000'000u);
  EXPECT_STREQ(settings.name, "My GPU");
  EXPECT_EQ(settings.interrupts, Interrupts::kRefused);
  EXPECT_EQ(settings.freeze_nanoseconds, 2'000'000u);
  for (const char* bad : {"interrupts = no", "channels = 3", "gpus", "gpus = many", "gpus = 17", "memory = 1",
                          "nothing = 1", "name = ", "slice = 1ns"}) {
    const auto result = apply_lines(std::string("gpus = 1\n") + bad, settings);
    ASSERT_FALSE(result.has_value()) << bad;
    EXPECT_NE(result.error().what.find("line 2"), std::string::npos) << result.error().what;
  }
}

TEST_F(MachineTest, TheFirstOneMakesItAndItStaysTheSame) {
  std::filesystem::create_directory(directory_);
  std::ofstream(directory_ + "/machine.conf") << "gpus = 4\nmemory = 1G\nseed = 7\n";
  const auto first = Machine::open(directory_);
  ASSERT_TRUE(first.has_value()) << first.error().message();
  EXPECT_EQ((*first)->settings().gpus, 4u);
  std::ofstream(directory_ + "/machine.conf") << "gpus = 1\n";
  const auto second = Machine::open(directory_);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ((*second)->settings().gpus, 4u);
  EXPECT_EQ((*first)->uuid(2), (*second)->uuid(2));
  EXPECT_NE((*first)->uuid(2), (*first)->uuid(3));
  // The same seed, the same UUIDs; another machine all the same.
  std::filesystem::remove_all(directory_);
  std::filesystem::create_directory(directory_);
  std::ofstream(directory_ + "/machine.conf") << "seed = 7\n";
  const auto third = Machine::open(directory_);
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ((*first)->uuid(2), (*third)->uuid(2));
  EXPECT_NE((*first)->id(), (*third)->id());
}

TEST_F(MachineTest, ManyOpenAtOnceAndFindOneMachine) {
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> ids[8] = {};
  for (auto& id : ids) {
    threads.emplace_back([&] {
      const auto machine = Machine::open(directory_);
      if (machine) id.store((*machine)->id());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& id : ids) EXPECT_EQ(id.load(), ids[0].load());
  EXPECT_NE(ids[0].load(), 0u);
}

TEST_F(MachineTest, BadMachinesAreRefusedWithAReason) {
  std::filesystem::create_directory(directory_);
  std::ofstream(directory_ + "/machine.conf") << "gpus = -1\n";
  auto machine = Machine::open(directory_);
  ASSERT_FALSE(machine.has_value());
  EXPECT_EQ(machine.error().code, base::Code::kInvalid);
  machine = Machine::open("/dev/null");
  EXPECT_FALSE(machine.has_value());
}

TEST_F(MachineTest, AMachineOfAnotherVersionIsMadeAnewWhenNobodyUsesIt) {
  std::filesystem::create_directory(directory_);
  const std::string path = directory_ + "/machine.state";
  // Of another layout, or of another version with a layout of the same size.
  for (const std::size_t bytes : {std::size_t{100}, sizeof(MachineState)}) {
    std::filesystem::remove(path);
    std::ofstream(path) << "something else";
    std::filesystem::resize_file(path, bytes);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* const used = ::mmap(nullptr, 100, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(used, MAP_FAILED);
    ::close(fd);
    const auto refused = Machine::open(directory_);
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().what.find("remove"), std::string::npos) << refused.error().what;
    ::munmap(used, 100);
    const auto machine = Machine::open(directory_);
    ASSERT_TRUE(machine.has_value()) << machine.error().message();
    const auto same = Machine::open(directory_);
    ASSERT_TRUE(same.has_value());
    EXPECT_EQ((*same)->id(), (*machine)->id());
  }
}

}  // namespace
}  // namespace gpumux::sim

// SPDX-License-Identifier: Apache-2.0
// Goal: the clients of one MPS server share a GPU as the streams of one process do, and alternate with other processes
// as one. None of them can harm the others by dying or being stopped at any instruction. Method: this process is a
// client. Helper processes (test_process.cc) are clients or not, and the machine's state says which process has the
// GPU.
#include <memory>
#include <random>

#include "sim/cuda/mps.h"
#include "sim/cuda/process.h"
#include "sim/cuda/test_helper.h"
#include "sim/cuda/test_machine.h"
#include "sim/cuda/test_mps.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

constexpr char kNoMps[] = "CUDA_MPS_PIPE_DIRECTORY=/nowhere";
constexpr char kForEver[] = "spin 3600000000000";
constexpr std::uint64_t kMega = std::uint64_t{1} << 20;

class MpsClientTest : public SimTest {
 protected:
  static void SetUpTestSuite() {
    // Kernels that last long enough to be seen: 250 ms for 16 MiB.
    ::setenv("GPUMUX_SIM_KERNEL_BANDWIDTH", "64M", 1);
    mps_ = new MpsControl;
    mps_->start();
  }
  static void TearDownTestSuite() { delete mps_; }
  void SetUp() override {
    SimTest::SetUp();
    machine_ = &Process::get()->machine();
    ASSERT_NE(machine_->own().server.load(), 0u);
  }

  static std::unique_ptr<Helper> start(std::vector<std::string> variables = {}) {
    auto helper = std::make_unique<Helper>(std::move(variables));
    EXPECT_EQ(helper->initialised(), "0");
    helper->get("context 0");
    return helper;
  }
  Slot& slot_of(const Helper& helper) {
    std::uint32_t slot = 0;
    while (machine_->state().slots[slot].pid.load() != helper.pid() || !machine_->alive(slot)) ++slot;
    return machine_->state().slots[slot];
  }
  // The tenure in which it has the GPU; 0: it has not.
  std::uint64_t tenure_of(const Helper& helper) {
    const std::uint64_t tenure = slot_of(helper).gpu[0].running.load();
    return tenure == (arbiter().owner.load() & 0xffff'ffff'ffff) ? tenure : 0;
  }
  bool runs_with_us(const Helper& helper) {
    const std::uint64_t tenure = tenure_of(helper);
    return tenure != 0 && own().running.load() == tenure;
  }
  SlotGpu& own() { return machine_->own().gpu[0]; }
  Arbiter& arbiter() { return machine_->state().arbiters[0]; }

  static MpsControl* mps_;
  Machine* machine_ = nullptr;
};
MpsControl* MpsClientTest::mps_ = nullptr;

TEST_F(MpsClientTest, ClientsHaveTheGpuTogether) {
  const auto client = start();
  const auto other = start({kNoMps});
  ASSERT_EQ(slot_of(*other).server.load(), 0u);
  client->get(kForEver);
  // A kernel of ours that runs until it is told to end.
  const CUdeviceptr flags = allocate(8);
  EXPECT_CUDA(cuMemsetD32_v2(flags, 0, 2));
  EXPECT_CUDA(launch("gpumux_rendezvous", make_stream(), flags, flags + 4, std::uint32_t{1}));
  EXPECT_TRUE(eventually([&] { return runs_with_us(*client); }));
  // Both go on in one tenure: a slice has no end while no other party waits.
  const std::uint64_t tenure = tenure_of(*client);
  sleep_until(now() + base::Duration(10'000'000));
  EXPECT_EQ(tenure_of(*client), tenure);
  // With another process they alternate: it has the GPU alone, then they have it together.
  other->get(kForEver);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(eventually([&] { return tenure_of(*other) != 0; }));
    EXPECT_TRUE(eventually([&] { return runs_with_us(*client); }));
  }
  other->kill_and_wait();
  client->kill_and_wait();
  const std::uint32_t end = 1;
  EXPECT_CUDA(cuMemcpyHtoD_v2(flags + 4, &end, sizeof end));
}

TEST_F(MpsClientTest, KernelsOfAllClientsShareTheSpeed) {
  const auto client = start();
  const std::uint64_t theirs = client->number("alloc " + std::to_string(16 * kMega));
  const CUdeviceptr ours = allocate(16 * kMega);
  ComputeTurn& turn = Process::get()->device(0)->turn;
  for (int i = 0; i < 4; ++i) client->get("increment " + std::to_string(theirs) + " " + std::to_string(4 * kMega));
  for (int i = 0; i < 4; ++i) EXPECT_CUDA(increment(nullptr, ours, 4 * kMega));
  EXPECT_TRUE(eventually([&] { return turn.sharing() == 2; }));
  // A kernel that works on alone does so at full speed.
  client->kill_and_wait();
  EXPECT_EQ(turn.sharing(), 1u);
  EXPECT_CUDA(cuCtxSynchronize());
}

TEST_F(MpsClientTest, AClientsPartOfTheSpeedIsLimited) {
  // 16 MiB take 250 ms alone.
  const auto quarter = start({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"});
  const std::string increment =
      "increment " + quarter->get("alloc " + std::to_string(2 * kMega)) + " " + std::to_string(kMega / 2);
  const base::TimePoint start = now();
  quarter->get(increment);
  quarter->get("sync");
  EXPECT_GE((now() - start).count(), 4 * 31'000'000) << "also without company";
  for (const auto& [text, limit] :
       {std::pair{"50", 0.5}, {"12.5", 0.125}, {"100", 1.0}, {"", 1.0}, {"0", 1.0}, {"101", 1.0}, {"half", 1.0}}) {
    ::setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", text, 1);
    EXPECT_EQ(mps_speed_limit(), limit) << text;
    // The kernels of this process share its part.
    ComputeTurn turn(*machine_, 0);
    EXPECT_EQ(turn.slowdown(), 1 / limit) << text;
    turn.begin_sharing();
    turn.begin_sharing();
    EXPECT_EQ(turn.slowdown(), 2 / limit) << text;
    turn.end_sharing();
    turn.end_sharing();
  }
  ::unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
}

TEST_F(MpsClientTest, AKilledClientHoldsUpNobody) {
  const auto other = start({kNoMps});
  for (int round = 0; round < 5; ++round) {
    const auto client = start();
    client->get(kForEver);
    EXPECT_TRUE(eventually([&] { return tenure_of(*client) != 0; }));
    client->kill_and_wait();
    other->get("spin 1000000");
    other->get("sync");
    EXPECT_CUDA(spin(nullptr, 1'000'000));
    EXPECT_CUDA(cuCtxSynchronize());
  }
}

TEST_F(MpsClientTest, AStoppedClientHoldsUpNobody) {
  const auto other = start({kNoMps});
  const auto client = start();
  client->get(kForEver);
  EXPECT_TRUE(eventually([&] { return tenure_of(*client) != 0; }));
  client->signal(SIGSTOP);
  for (int round = 0; round < 5; ++round) {
    other->get("spin 5000000");
    EXPECT_CUDA(spin(nullptr, 5'000'000));
    other->get("sync");
    EXPECT_CUDA(cuCtxSynchronize());
  }
  client->signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return tenure_of(*client) != 0; }));
}

TEST_F(MpsClientTest, RandomKillsAndStopsNeverWedge) {
  const auto seed = static_cast<unsigned>(std::random_device()());
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<Helper>> helpers;
  // Two clients and two others, about.
  const auto make = [&] {
    return std::make_unique<Helper>(random() % 2 == 0 ? std::vector<std::string>() : std::vector<std::string>{kNoMps});
  };
  const auto work = [this, stream = make_stream()](std::uint64_t nanoseconds) {
    EXPECT_CUDA(spin(stream, nanoseconds));
    EXPECT_CUDA(cuStreamSynchronize(stream));
  };
  ASSERT_NO_FATAL_FAILURE(kill_at_random(random, 100, 4, helpers, make, work));
}

}  // namespace
}  // namespace gpumux::sim

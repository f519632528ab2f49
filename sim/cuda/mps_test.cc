// SPDX-License-Identifier: Apache-2.0
// Goal: the control daemon of MPS begins, answers and ends as NVIDIA's does, and programs find it. Method: the program
// itself, and helper processes (test_process.cc) as clients.
#include "sim/cuda/mps.h"

#include <memory>

#include "cuda/nvml_prototypes.h"
#include "sim/cuda/test_helper.h"
#include "sim/cuda/test_machine.h"
#include "sim/cuda/test_mps.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

constexpr char kNobody[] = "Cannot find MPS control daemon process\n";

using List = nvmlReturn_t (*)(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*);

// The processes that an NVML list has for a GPU, in order.
std::vector<std::string> listed(List list, unsigned gpu) {
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(gpu, &device), NVML_SUCCESS);
  nvmlProcessInfo_t infos[16];
  unsigned count = 16;
  EXPECT_EQ(list(device, &count, infos), NVML_SUCCESS);
  std::vector<std::string> pids;
  for (unsigned i = 0; i < count; ++i) pids.push_back(std::to_string(infos[i].pid));
  std::sort(pids.begin(), pids.end());
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  return pids;
}

std::vector<std::string> sorted(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  return texts;
}

TEST(MpsControlTest, CommandsNeedADaemon) {
  MpsControl mps;
  const auto answer = mps.run(nullptr, "get_server_list\n");
  EXPECT_EQ(answer.code, 1);
  EXPECT_EQ(answer.text, kNobody);
  EXPECT_NE(mps.run("-x").code, 0);
}

TEST(MpsControlTest, OneDaemonServesADirectory) {
  MpsControl mps;
  mps.start();
  const pid_t first = mps.pid();
  const auto second = mps.run("-d");
  EXPECT_EQ(second.code, 1);
  EXPECT_EQ(second.text, "An instance of this daemon is already running\n");
  EXPECT_EQ(mps.pid(), first);
  EXPECT_NE(mps.log().find("Starting control daemon using socket " + mps.pipe_directory() + "/control"),
            std::string::npos);
  EXPECT_EQ(mps.server(), "") << "a server comes with the first client";
  EXPECT_EQ(mps.ask("get_server_status 1"), "Server 1 not found");
  EXPECT_EQ(mps.ask("fly"), "Unknown command");
  EXPECT_EQ(mps.ask("quit"), "");
  EXPECT_TRUE(eventually([&] { return has_ended(first); }));
  EXPECT_EQ(mps.pid(), 0);
  EXPECT_EQ(mps.run(nullptr, "quit\n").text, kNobody);
  mps.start();
}

TEST(MpsControlTest, DirectoriesThatCannotBeUsedAreNamed) {
  MpsControl mps;
  ::setenv("CUDA_MPS_LOG_DIRECTORY", "/dev/null/log", 1);
  const auto answer = mps.run("-d");
  EXPECT_EQ(answer.code, 1);
  EXPECT_NE(answer.text.find("/dev/null/log"), std::string::npos) << answer.text;
  EXPECT_EQ(mps.pid(), 0);
}

TEST(MpsControlTest, AKilledDaemonIsNoDaemon) {
  MpsControl mps;
  mps.start();
  const pid_t first = mps.pid();
  ::kill(first, SIGKILL);
  ASSERT_TRUE(eventually([&] { return has_ended(first); }));
  EXPECT_EQ(mps.run(nullptr, "quit\n").text, kNobody);
  Helper alone;
  EXPECT_EQ(alone.initialised(), "0");
  alone.get("context 0");
  mps.start();
  EXPECT_NE(mps.pid(), first);
}

TEST(MpsClientTest, AProcessThatFindsADaemonIsAClient) {
  Helper before;
  before.get("context 0");
  MpsControl mps;
  mps.start();
  Helper first;
  Helper second;
  ASSERT_EQ(first.initialised(), "0");
  ASSERT_EQ(second.initialised(), "0");
  const std::string server = mps.server();
  ASSERT_NE(server, "");
  EXPECT_NE(server, std::to_string(mps.pid()));
  EXPECT_EQ(mps.ask("get_server_status " + server), "ACTIVE");
  const std::string both = mps.ask("get_client_list " + server);
  EXPECT_NE(both.find(std::to_string(first.pid())), std::string::npos) << both;
  EXPECT_NE(both.find(std::to_string(second.pid())), std::string::npos) << both;
  EXPECT_EQ(both.find(std::to_string(before.pid())), std::string::npos) << both;
  // NVML shows a server where it has clients, in addition to them.
  EXPECT_EQ(listed(nvmlDeviceGetComputeRunningProcesses_v3, 0), std::vector<std::string>{std::to_string(before.pid())});
  first.get("context 0");
  EXPECT_EQ(listed(nvmlDeviceGetComputeRunningProcesses_v3, 0),
            sorted({std::to_string(before.pid()), std::to_string(first.pid()), server}));
  EXPECT_EQ(listed(nvmlDeviceGetMPSComputeRunningProcesses_v3, 0),
            std::vector<std::string>{std::to_string(first.pid())});
  EXPECT_EQ(listed(nvmlDeviceGetComputeRunningProcesses_v3, 1), std::vector<std::string>{});
  // A killed client is gone; the other goes on.
  first.kill_and_wait();
  EXPECT_EQ(mps.ask("get_client_list " + server), std::to_string(second.pid()));
  second.get("context 0");
  second.get("spin 1000");
  second.get("sync");
}

TEST(MpsClientTest, QuitWaitsForClientsUntilItsTime) {
  MpsControl mps;
  mps.start();
  const pid_t daemon = mps.pid();
  Helper client;
  ASSERT_EQ(client.initialised(), "0");
  ::kill(daemon, SIGTERM);
  ASSERT_TRUE(eventually([&] { return mps.log().find("Quit") != std::string::npos; }));
  // It serves the client that it has, and no other.
  EXPECT_EQ(mps.ask("get_client_list " + mps.server()), std::to_string(client.pid()));
  client.get("context 0");
  Helper late;
  EXPECT_EQ(late.initialised(), "805");
  client.end_and_wait();
  EXPECT_TRUE(eventually([&] { return has_ended(daemon); }));

  mps.start();
  Helper other;
  ASSERT_EQ(other.initialised(), "0");
  EXPECT_EQ(mps.ask("quit -t 0"), "") << "it ends although it has a client";
  EXPECT_EQ(mps.pid(), 0);
}

TEST(MpsClientTest, AServerThatDiesIsReplaced) {
  MpsControl mps;
  mps.start();
  Helper client;
  const std::string first = mps.server();
  ::kill(static_cast<pid_t>(std::stol(first)), SIGKILL);
  EXPECT_TRUE(eventually([&] { return mps.server().empty(); }));
  Helper next;
  ASSERT_EQ(next.initialised(), "0");
  const std::string second = mps.server();
  EXPECT_NE(second, "");
  EXPECT_EQ(mps.ask("get_client_list " + second), std::to_string(next.pid())) << "clients stay with their server";
}

// A kernel that touches what is not mapped. Its context is broken from then on.
void break_context(Helper& helper) {
  helper.get("fill 4096 1 1");
  EXPECT_EQ(helper.ask("sync"), "700");
}

TEST(MpsFaultTest, AFaultReachesEveryClientOnTheGpu) {
  MpsControl mps;
  mps.start();
  Helper faulty;
  Helper idle;
  Helper busy;
  Helper elsewhere;
  for (Helper* client : {&faulty, &idle, &busy}) client->get("context 0");
  elsewhere.get("context 1");
  const std::string server = mps.server();
  busy.get("spin 3600000000000");
  busy.tell("sync");
  break_context(faulty);
  EXPECT_EQ(busy.answer(), "700") << "a kernel that runs ends";
  EXPECT_EQ(idle.ask("alloc 4096"), "700 0");
  EXPECT_EQ(mps.ask("get_server_status " + server), "FAULT");
  elsewhere.get("spin 1000");
  elsewhere.get("sync");
  // The server takes no client until those that the fault has reached have exited.
  {
    Helper late;
    EXPECT_EQ(late.initialised(), "807");
  }
  EXPECT_EQ(idle.ask("context 1"), "807");
  faulty.end_and_wait();
  idle.kill_and_wait();
  EXPECT_EQ(mps.ask("get_server_status " + server), "FAULT");
  busy.end_and_wait();
  EXPECT_EQ(mps.ask("get_server_status " + server), "ACTIVE");
  EXPECT_EQ(mps.server(), server);
  Helper next;
  ASSERT_EQ(next.initialised(), "0");
  next.get("context 0");
  next.get("spin 1000");
  next.get("sync");
  elsewhere.get("sync");
}

TEST(MpsFaultTest, AFaultReachesTheOtherGpusOfTheClientsThatItReaches) {
  MpsControl mps;
  mps.start();
  Helper faulty;
  Helper both;
  Helper elsewhere;
  faulty.get("context 0");
  both.get("context 0");
  both.get("context 1");
  elsewhere.get("context 1");
  break_context(faulty);
  EXPECT_EQ(both.ask("sync"), "700");
  EXPECT_EQ(elsewhere.ask("sync"), "700");
}

TEST(MpsFaultTest, AFaultHasReachedAllWhenItsClientSeesIt) {
  MpsControl mps;
  mps.start();
  Helper faulty;
  Helper both;
  faulty.get("context 0");
  both.get("context 0");
  both.get("context 1");
  EXPECT_EQ(faulty.ask("break"), "700 700 700");
}

TEST(MpsFaultTest, FaultsOfOtherProcessesAreTheirOwn) {
  Helper alone;
  alone.get("context 0");
  MpsControl mps;
  mps.start();
  Helper client;
  client.get("context 0");
  break_context(alone);
  client.get("sync");
  Helper other;
  other.get("context 0");
  other.kill_and_wait();
  client.get("sync");
  EXPECT_EQ(mps.ask("get_server_status " + mps.server()), "ACTIVE");
}

TEST(MpsFaultTest, ClientsOfADeadServerFail) {
  MpsControl mps;
  mps.start();
  Helper idle;
  Helper busy;
  idle.get("context 0");
  busy.get("context 0");
  busy.get("spin 3600000000000");
  busy.tell("sync");
  // The server dies with its control daemon.
  ::kill(mps.pid(), SIGKILL);
  EXPECT_EQ(busy.answer(), "806");
  EXPECT_EQ(idle.ask("alloc 4096"), "806 0");
  EXPECT_EQ(idle.ask("context 1"), "806");
  Helper alone;
  EXPECT_EQ(alone.initialised(), "0");
  alone.get("context 0");
}

TEST(MpsFaultTest, AContextOfAClientTakesLess) {
  Helper alone;
  alone.get("context 1");
  EXPECT_TRUE(eventually([&] { return alone.number("info") == kGpuBytes - kContextBytes; }));
  MpsControl mps;
  mps.start();
  Helper client;
  client.get("context 1");
  EXPECT_EQ(alone.number("info"), kGpuBytes - kContextBytes - kContextBytes / 4);
}

}  // namespace
}  // namespace gpumux::sim

// SPDX-License-Identifier: Apache-2.0
// The hook takes paths, names and a number from a runtime's words, and from well-formed states only.
#include "kubernetes/hook/runtime_state.h"

#include <gtest/gtest.h>

namespace gpumux::kubernetes {
namespace {

TEST(StateTest, NamesTheContainerAndItsBundle) {
  const auto state = parse_state(R"({"ociVersion":"1.0.2","id":"c","status":"creating","pid":1,"bundle":"/run/b",
                                     "annotations":{"bundle":"/other","id":"d"}})");
  ASSERT_TRUE(state) << state.error().message();
  EXPECT_EQ(state->bundle, "/run/b");
  EXPECT_EQ(state->id, "c");
}

TEST(StateTest, TheIdMayBeMissing) {
  for (const char* text : {R"({"bundle":"/run/b"})", R"({"bundle":"/run/b","id":7})"}) {
    EXPECT_EQ(parse_state(text).value_or(State{"x", ""}).id, "") << text;
  }
}

TEST(StateTest, HasTheProcessOfTheContainer) {
  const auto pid_of = [](const std::string& pid) {
    return parse_state(R"({"bundle":"/b","pid":)" + pid + "}").value_or(State{"", "", -1}).pid;
  };
  EXPECT_EQ(pid_of("4711"), 4711);
  for (const char* pid : {"0", "-1", "\"1\"", "1.5", "null", "4294967297", "18446744073709551616"})
    EXPECT_EQ(pid_of(pid), 0) << pid;
}

TEST(StateTest, HasTheNamesThatOneRuntimeAnnotates) {
  const std::string crio = R"("io.kubernetes.pod.namespace":"n1","io.kubernetes.pod.name":"p1",
                              "io.kubernetes.container.name":"c1")";
  const std::string containerd = R"("io.kubernetes.cri.sandbox-namespace":"n2","io.kubernetes.cri.sandbox-name":"p2",
                                    "io.kubernetes.cri.container-name":"c2")";
  const auto names_in = [](const std::string& annotations) {
    const auto state = parse_state(R"({"bundle":"/b","annotations":{)" + annotations + "}}").value_or(State{});
    return state.pod_namespace + "/" + state.pod + "/" + state.name;
  };
  EXPECT_EQ(names_in(crio), "n1/p1/c1");
  EXPECT_EQ(names_in(containerd), "n2/p2/c2");
  EXPECT_EQ(names_in(containerd + "," + crio), "n1/p1/c1") << "a pod of CRI-O's that says that it is containerd's";
  EXPECT_EQ(names_in(R"("io.kubernetes.pod.name":7,)" + containerd), "n2/p2/c2");
  EXPECT_EQ(names_in(R"("io.kubernetes.pod.name":"p1","io.kubernetes.cri.container-name":"c2")"), "/p1/");
  EXPECT_EQ(names_in(R"("io.podman.annotations.pid":"5")"), "//");
  EXPECT_EQ(parse_state(R"({"bundle":"/b","annotations":["io.kubernetes.pod.name"]})")
                .value_or(State{"", "", 0, "", "x"})
                .pod,
            "");
}

TEST(StateTest, AnythingElseIsRefused) {
  const std::string deep(1 << 20, '[');  // deeper than a stack of calls
  for (const std::string& state : {std::string(), std::string("null"), std::string("[]"), std::string("\"/run/b\""),
                                   std::string("{}"), std::string(R"({"bundle":1})"), std::string(R"({"bundle":""})"),
                                   std::string(R"({"bundle":"relative"})"), std::string(R"({"bundle":"/a\u0000b"})"),
                                   std::string(R"({"bundle":"/run/b")"), std::string("{\"bundle\":\"/\xff\"}"), deep}) {
    EXPECT_FALSE(parse_state(state)) << state.substr(0, 40);
  }
}

TEST(RootTest, IsAbsoluteOrInTheBundle) {
  EXPECT_EQ(root_of(R"({"root":{"path":"rootfs","readonly":true}})", "/run/b").value_or(Root{}).path, "/run/b/rootfs");
  EXPECT_EQ(root_of(R"({"root":{"path":"/images/r"}})", "/run/b").value_or(Root{}).path, "/images/r");
  for (const char* config : {"", "{}", R"({"root":"rootfs"})", R"({"root":{}})", R"({"root":{"path":""}})"}) {
    EXPECT_FALSE(root_of(config, "/run/b")) << config;
  }
}

TEST(RootTest, IsReadOnlyIfThatIsSaid) {
  EXPECT_TRUE(root_of(R"({"root":{"path":"r","readonly":true}})", "/b").value_or(Root{}).is_read_only);
  for (const char* config : {R"({"root":{"path":"r","readonly":false}})", R"({"root":{"path":"r"}})",
                             R"({"root":{"path":"r","readonly":1}})", R"({"readonly":true,"root":{"path":"r"}})"}) {
    EXPECT_FALSE(root_of(config, "/b").value_or(Root{"", true}).is_read_only) << config;
  }
}

}  // namespace
}  // namespace gpumux::kubernetes

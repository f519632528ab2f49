// SPDX-License-Identifier: Apache-2.0
// Calls reach the right server with the right token, or fail with words, in time.
#include "kubernetes/api_server/client.h"

#include <gtest/gtest.h>

#include "kubernetes/api_server/test_api_server.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

using nlohmann::json;

constexpr char kSlices[] = "/apis/resource.k8s.io/v1/resourceslices";

class ApiServerTest : public ::testing::Test {
 protected:
  template <class T>
  static base::Code code_of(const base::Result<T>& result) {
    EXPECT_FALSE(result);
    return result ? base::Code::kInternal : result.error().code;
  }

  TemporaryDirectory temporary_;
  TestApiServer server_{temporary_.path()};
};

TEST_F(ApiServerTest, MakesReadsChangesAndRemoves) {
  ApiServer client(server_.settings());
  const std::string path = std::string(kSlices) + "/a";
  ASSERT_TRUE(client.create(kSlices, R"({"metadata": {"name": "a"}})"));
  EXPECT_EQ(code_of(client.create(kSlices, R"({"metadata": {"name": "a"}})")), base::Code::kExists);
  const auto got = client.get(path);
  ASSERT_TRUE(got) << got.error().message();
  json object = json::parse(*got);
  object["spec"]["x"] = 1;
  const auto changed = client.replace(path, object.dump());
  ASSERT_TRUE(changed) << changed.error().message();
  EXPECT_EQ(code_of(client.replace(path, object.dump())), base::Code::kExists) << "it has been changed since";
  EXPECT_EQ(server_.object(path)["spec"]["x"], 1);
  ASSERT_TRUE(client.remove(path));
  EXPECT_EQ(code_of(client.remove(path)), base::Code::kNotFound);
  EXPECT_EQ(server_.connections(), 1u) << "one connection has served all";
}

TEST_F(ApiServerTest, AConnectionThatTheServerClosesIsMadeAgain) {
  ApiServer client(server_.settings());
  for (int time = 0; time < 3; ++time) {
    const auto list = client.get(kSlices);
    ASSERT_TRUE(list) << list.error().message();
    server_.close_connections();
  }
}

TEST_F(ApiServerTest, ReadsTheTokenAgain) {
  ApiServer client(server_.settings());
  ASSERT_TRUE(client.get(kSlices));
  server_.accept_token("another");
  const auto refused = client.get(kSlices);
  EXPECT_EQ(code_of(refused), base::Code::kDenied);
  EXPECT_NE(refused.error().message().find("Unauthorized"), std::string::npos) << refused.error().message();
  server_.set_token("another");
  EXPECT_TRUE(client.get(kSlices));
}

TEST_F(ApiServerTest, TrustsNoOtherServer) {
  ApiServerSettings settings = server_.settings();
  settings.authorities_file = temporary_.file("other.crt");
  make_certificate(settings.authorities_file, temporary_.file("other.key"));
  ApiServer client(settings);
  const auto refused = client.get(kSlices);
  EXPECT_EQ(code_of(refused), base::Code::kUnavailable);
  EXPECT_TRUE(server_.calls().empty());
}

TEST_F(ApiServerTest, TrustsTheServersAddressOnly) {
  TemporaryDirectory temporary;
  TestApiServer other(temporary.path(), "IP:127.0.0.2,DNS:kubernetes.default");
  ApiServer client(other.settings());
  EXPECT_EQ(code_of(client.get(kSlices)), base::Code::kUnavailable);
  EXPECT_TRUE(other.calls().empty());
}

TEST_F(ApiServerTest, ASilentServerIsGivenUpInTime) {
  ApiServerSettings settings = server_.settings();
  settings.limit = std::chrono::milliseconds(300);
  server_.fall_silent(true);
  ApiServer client(settings);
  EXPECT_EQ(code_of(client.get(kSlices)), base::Code::kTimeout);
  server_.fall_silent(false);
  ApiServer patient(server_.settings());
  EXPECT_TRUE(patient.get(kSlices));
}

TEST_F(ApiServerTest, SaysWhatIsMissing) {
  ApiServerSettings settings = server_.settings();
  settings.token_file = temporary_.file("none");
  const auto no_token = ApiServer(settings).get(kSlices);
  ASSERT_FALSE(no_token);
  EXPECT_NE(no_token.error().message().find(settings.token_file), std::string::npos);
  settings = server_.settings();
  settings.authorities_file = temporary_.file("none");
  const auto no_authorities = ApiServer(settings).get(kSlices);
  ASSERT_FALSE(no_authorities);
  EXPECT_NE(no_authorities.error().message().find(settings.authorities_file), std::string::npos);
  settings = server_.settings();
  settings.address = "kubernetes.default";
  EXPECT_FALSE(ApiServer(settings).get(kSlices));
  settings = server_.settings();
  settings.port = "1";
  const auto no_server = ApiServer(settings).get(kSlices);
  ASSERT_FALSE(no_server);
  EXPECT_EQ(no_server.error().message(), "no answer from the API server at 127.0.0.1 port 1: Connection refused");
  server_.refuse(true);
  EXPECT_EQ(code_of(ApiServer(server_.settings()).get(kSlices)), base::Code::kUnavailable);
}

}  // namespace
}  // namespace gpumux::kubernetes

// SPDX-License-Identifier: Apache-2.0
// Goal: the table of addresses is what the daemon answers by, what the description says and what docs/api.md explains.
// Method: requests over the real socket to a daemon in this process; the description's own text.
#include "daemon/api/openapi.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "daemon/test_support.h"
#include "server/api/routes.h"

namespace gpumux::daemon {
namespace {

using namespace testing;
using Json = nlohmann::json;

// Parts have what the whole has.
TEST(Api, ShowsPartsOfTheStatus) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()), fake_inventory(2));
  TestTenant both(dir.path(), "both.py");
  TestTenant other(dir.path(), "other.py");
  ASSERT_TRUE(both.join() && both.open_seat(0, test_uuid(0)) && both.open_seat(1, test_uuid(1)));
  ASSERT_TRUE(other.join() && other.open_seat(0, test_uuid(1)));
  const Json whole = json_of(http(dir.path(), "GET", "/v1/status"));
  const Json gpus = json_of(http(dir.path(), "GET", "/v1/gpus"));
  ASSERT_EQ(gpus["gpus"].size(), 2u);
  EXPECT_EQ(gpus["gpus"][1]["seats"].size(), 2u);
  for (const std::string& name : {std::string("1"), test_uuid(1).to_string()}) {
    const Json gpu = json_of(http(dir.path(), "GET", "/v1/gpus/" + name));
    EXPECT_EQ(gpu["index"], 1) << gpu;
    EXPECT_EQ(gpu["settings"], whole["gpus"][1]["settings"]);
  }
  const Json tenants = json_of(http(dir.path(), "GET", "/v1/tenants"));
  ASSERT_EQ(tenants["tenants"].size(), 2u) << tenants;
  EXPECT_EQ(tenants["more"], false);
  const Json& first = tenants["tenants"][0];
  EXPECT_EQ(first["program"], "both.py");
  ASSERT_EQ(first["seats"].size(), 2u);
  EXPECT_EQ(first["seats"][1]["gpu"], 1);
  EXPECT_EQ(first["seats"][1]["phase"], "idle");
  EXPECT_FALSE(first["seats"][1].contains("pid"));
  Json page = json_of(http(dir.path(), "GET", "/v1/tenants?limit=1"));
  EXPECT_EQ(page["tenants"].size(), 1u);
  EXPECT_EQ(page["more"], true);
  const std::string number = page["tenants"][0]["tenant"].dump();
  page = json_of(http(dir.path(), "GET", "/v1/tenants?limit=1&beyond=" + number));
  EXPECT_EQ(page["tenants"][0]["program"], "other.py");
  EXPECT_EQ(page["more"], false);
  EXPECT_EQ(json_of(http(dir.path(), "GET", "/v1/tenants/" + number))["program"], "both.py");
}

TEST(Api, TheTraceBeginsWithTheNewest) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  for (int i = 1; i <= 5; ++i)
    http(dir.path(), "PATCH", "/v1/gpus/0", R"({"quantum": ")" + std::to_string(i) + R"(h"})");
  const auto sequences = [&](const std::string& query) {
    std::vector<std::uint64_t> found;
    std::istringstream lines(http(dir.path(), "GET", "/v1/trace" + query).body);
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line, nullptr, false);
      if (json.is_object()) found.push_back(json["sequence"]);
    }
    return found;
  };
  const auto all = sequences("");
  ASSERT_GE(all.size(), 5u);
  const std::uint64_t last = all.back();
  EXPECT_EQ(sequences("?limit=2"), (std::vector{last - 1, last}));
  EXPECT_EQ(sequences("?limit=0"), std::vector<std::uint64_t>());
  EXPECT_EQ(sequences("?limit=99999"), all);
  EXPECT_EQ(sequences("?limit=3&since=" + std::to_string(last)), std::vector{last});
}

TEST(Api, SaysWhichMethodsAnAddressTakes) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  const HttpAnswer wrong = http(dir.path(), "POST", "/v1/queue");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_NE(wrong.head.find("Allow: GET, HEAD, PATCH\r\n"), std::string::npos) << wrong.head;
  EXPECT_EQ(json_of(wrong)["error"]["code"], "unsupported");
  EXPECT_EQ(json_of(http(dir.path(), "GET", "/nowhere"))["error"]["code"], "not_found");
}

// A name with a NUL would be looked up as what is before it.
TEST(Api, RefusesNulsInAddresses) {
  for (const server::Route& route : server::routes()) {
    for (const server::Parameter& parameter : route.parameters) {
      const auto checked = server::check_query(route, std::string(parameter.name) + "=root%00x");
      ASSERT_FALSE(checked) << route.path << " " << parameter.name;
      EXPECT_EQ(checked.error().code, base::Code::kInvalid);
    }
    std::string path(route.path);
    const std::size_t variable = path.find('{');
    if (variable == std::string::npos) continue;
    path.replace(variable, path.find('}') + 1 - variable, "root%00x");
    const auto found = server::find_route(route.method, path);
    ASSERT_TRUE(std::holds_alternative<server::ApiResponse>(found)) << path;
    EXPECT_EQ(std::get<server::ApiResponse>(found).status, 404U);
  }
}

TEST(Api, AnswersHeadAsGetWithoutTheBody) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  for (const char* target :
       {"/v1", "/v1/openapi.json", "/v1/daemon", "/v1/status", "/v1/queue", "/v1/trace", "/v1/x"}) {
    const HttpAnswer get = http(dir.path(), "GET", target);
    const HttpAnswer head = http(dir.path(), "HEAD", target);
    EXPECT_EQ(head.status, get.status) << target;
    EXPECT_EQ(head.body, "") << target;
  }
  const std::string length = "Content-Length: " + std::to_string(openapi_text().size()) + "\r\n";
  EXPECT_NE(http(dir.path(), "HEAD", "/v1/openapi.json").head.find(length), std::string::npos);
}

TEST(OpenApi, TheCommittedDescriptionIsTheDaemons) {
  std::ifstream file(GPUMUX_SOURCE_DIR "/docs/openapi.gen.json");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_TRUE(text == openapi_text()) << "write it anew: build/dev/bin/gpumuxd --print-api >docs/openapi.gen.json";
}

// A seat of a tenant is one of the status, but for what the tenant's object says of all its seats.
TEST(OpenApi, SeatsOfATenantHaveWhatSeatsOfAGpuHave) {
  const Json types = Json::parse(openapi_text())["components"]["schemas"];
  for (const auto& [field, type] : types["Seat"]["properties"].items()) {
    EXPECT_TRUE(types["Tenant"]["properties"].contains(field) || types["TenantSeat"]["properties"].contains(field))
        << field;
  }
}

TEST(OpenApi, EveryReferenceIsThere) {
  const Json document = Json::parse(openapi_text());
  std::set<std::string> schemas;
  for (const auto& [name, schema] : document["components"]["schemas"].items()) schemas.insert(name);
  std::set<std::string> used;
  const std::function<void(const Json&)> look = [&](const Json& json) {
    if (json.is_object() && json.contains("$ref"))
      used.insert(json["$ref"].get<std::string>().substr(std::string_view("#/components/schemas/").size()));
    for (const Json& part : json) {
      if (part.is_structured()) look(part);
    }
  };
  look(document);
  EXPECT_EQ(used, schemas);
}

// docs/api.md explains every address and every code.
TEST(OpenApi, TheDocumentNamesEveryAddressAndCode) {
  std::ifstream file(GPUMUX_SOURCE_DIR "/docs/api.md");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  for (const server::Route& route : server::routes()) {
    const std::string row = "| `" + std::string(route.path) + "` | " + server::methods_of(route.path) + " |";
    EXPECT_NE(text.find(row), std::string::npos) << row;
    for (const server::Parameter& parameter : route.parameters)
      EXPECT_NE(text.find(std::string(parameter.name)), std::string::npos) << parameter.name;
  }
  for (const ErrorCode& code : error_codes()) {
    const std::string row = "| `" + std::string(code.name) + "` | " + std::string(code.meaning) + " |";
    EXPECT_NE(text.find(row), std::string::npos) << row;
  }
  // And the table has every code that an error can have.
  for (int code = 0; code <= static_cast<int>(base::Code::kInternal); ++code) {
    const std::string name = server::api_code(static_cast<base::Code>(code));
    EXPECT_TRUE(std::any_of(error_codes().begin(), error_codes().end(), [&](const ErrorCode& known) {
      return known.name == name;
    })) << name;
  }
}

}  // namespace
}  // namespace gpumux::daemon

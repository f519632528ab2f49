// SPDX-License-Identifier: Apache-2.0
// Every address of the API, with its methods, its parameters and the types of its requests and answers. The daemon
// answers by this table, and the API's description (openapi.h) is made from it.
//
// Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api/api_types.h"

namespace gpumux::server {

enum class Address {
  kApi,
  kDescription,
  kDaemon,
  kStatus,
  kGpus,
  kGpu,
  kChangeGpu,
  kTenants,
  kTenant,
  kChangeTenant,
  kTrace,
  kReport,
  kMetrics,
  kHold,
  kJobs,
  kSubmit,
  kJob,
  kWaitForJob,
  kChangeJobs,
  kQueue,
  kChangeQueue,
  kChangeQueueGpu,
  kChangeQueueUser,
};

// A parameter after the question mark.
struct Parameter {
  enum class Type { kNumber, kText, kWord };
  std::string_view name;
  std::string_view meaning;
  Type type = Type::kNumber;
  std::vector<std::string_view> words = {};  // of kWord
};

struct Route {
  Address address;
  std::string_view method;
  std::string_view path;  // "/v1/jobs/{job}/wait": one part may be a variable
  std::string_view summary;
  std::string_view answer;  // the name of its schema (schemas.h); empty: text
  std::string_view body = {};
  std::vector<Parameter> parameters = {};
};

// Sorted by path, then as they are explained.
std::span<const Route> routes();

// The route of a request, and the value of its variable, decoded.
struct RouteMatch {
  const Route* route;
  std::string variable;
};
// Or the error: nothing is there (404), or not with this method (405). HEAD is answered as GET.
std::variant<RouteMatch, ApiResponse> find_route(std::string_view method, std::string_view path);

// The methods of a path of the table, HEAD with GET: "GET, HEAD, PATCH".
std::string methods_of(std::string_view path);

// kInvalid names the first parameter of the query that the route does not take, that comes twice, that has a NUL, or
// that is none of its words.
base::Status check_query(const Route& route, std::string_view query);

}  // namespace gpumux::server

// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/openapi.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/split.h"
#include "base/version.h"
#include "server/api/routes.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

using Json = nlohmann::ordered_json;

// Of the description: it stands for /v1 of each address. GET /v1 has the version of the daemon.
constexpr char kDescriptionVersion[] = "1";

Json reference(std::string_view name) { return {{"$ref", "#/components/schemas/" + std::string(name)}}; }

Json type_json(const char* type) { return {{"type", type}}; }

// Words to which later versions may add: a client must not refuse the others.
Json words_json(std::string_view words) {
  Json list = Json::array();
  for (const std::string_view word : base::split(words, '|')) list.push_back(word);
  return {{"type", "string"}, {"x-extensible-enum", std::move(list)}};
}

Json schema_of_type(std::string_view type) {
  if (type.starts_with("map ")) return {{"type", "object"}, {"additionalProperties", schema_of_type(type.substr(4))}};
  if (type.ends_with("[]")) return {{"type", "array"}, {"items", schema_of_type(type.substr(0, type.size() - 2))}};
  if (type.find('|') != std::string_view::npos) return words_json(type);
  if (type == "int") return type_json("integer");
  if (type == "number") return type_json("number");
  if (type == "text") return type_json("string");
  if (type == "bool") return type_json("boolean");
  if (type == "int_or_null") return {{"type", {"integer", "null"}}};
  if (type == "int_or_default" || type == "text_or_number") return {{"type", {"integer", "string"}}};
  return reference(type);
}

// "a: int, b?: text"; or words, for a type of its own.
Json schema_of(std::string_view fields) {
  if (fields.find(':') == std::string_view::npos && !fields.empty()) return words_json(fields);
  Json properties = Json::object();
  Json required = Json::array();
  while (!fields.empty()) {
    const std::size_t end = std::min(fields.find(", "), fields.size());
    const std::string_view field = fields.substr(0, end);
    fields.remove_prefix(std::min(end + 2, fields.size()));
    const std::size_t colon = field.find(": ");
    std::string name(field.substr(0, colon));
    const bool is_optional = name.ends_with('?');
    if (is_optional) name.pop_back();
    properties[name] = schema_of_type(field.substr(colon + 2));
    if (!is_optional) required.push_back(name);
  }
  Json schema{{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

// Of the table of settings; a PATCH has any of them.
Json settings_schema() {
  Json properties = Json::object();
  for (const settings::Setting& setting : settings::kGpuSettings)
    properties[std::string(setting.name)] = type_json(setting.is_boolean() ? "boolean" : "string");
  properties["save"] = type_json("boolean");
  return {{"type", "object"}, {"properties", std::move(properties)}};
}

Json schemas_json() {
  Json all = Json::object();
  for (const Schema& schema : schemas()) all[std::string(schema.name)] = schema_of(schema.fields);
  all["GpuSettings"] = settings_schema();
  all["bytes_or_text"] = {{"oneOf", {type_json("string"), schema_of("base64: text")}}};
  all["OpenApi"] = type_json("object");
  std::string codes;
  for (const ErrorCode& code : error_codes()) codes += (codes.empty() ? "" : "|") + std::string(code.name);
  all["ErrorCode"] = words_json(codes);
  return all;
}

Json content(std::string_view type, const Json& schema) { return {{std::string(type), {{"schema", schema}}}}; }

Json answer_content(const server::Route& route) {
  if (route.answer.empty()) return content("text/plain", type_json("string"));
  return content(route.address == server::Address::kTrace ? "application/x-ndjson" : "application/json",
                 reference(route.answer));
}

Json parameters_json(const server::Route& route) {
  Json list = Json::array();
  if (const std::size_t open = route.path.find('{'); open != std::string_view::npos) {
    const std::string_view name = route.path.substr(open + 1, route.path.find('}') - open - 1);
    list.push_back({{"name", name}, {"in", "path"}, {"required", true}, {"schema", type_json("string")}});
  }
  for (const server::Parameter& parameter : route.parameters) {
    Json schema = type_json(parameter.type == server::Parameter::Type::kNumber ? "integer" : "string");
    if (parameter.type == server::Parameter::Type::kWord) schema["enum"] = parameter.words;
    list.push_back(
        {{"name", parameter.name}, {"in", "query"}, {"description", parameter.meaning}, {"schema", std::move(schema)}});
  }
  return list;
}

Json operation_json(const server::Route& route) {
  Json operation{{"summary", route.summary}};
  if (Json parameters = parameters_json(route); !parameters.empty()) operation["parameters"] = std::move(parameters);
  if (!route.body.empty())
    operation["requestBody"] = {{"required", true}, {"content", content("application/json", reference(route.body))}};
  Json& responses = operation["responses"];
  if (route.address == server::Address::kSubmit) {
    responses["201"] = {{"description", "The job is stored."}, {"content", answer_content(route)}};
    responses["200"] = {{"description", "The token was known: the job that it has become."},
                        {"content", answer_content(route)}};
  } else {
    responses["200"] = {{"description", "Done."}, {"content", answer_content(route)}};
  }
  responses["default"] = {{"description", "It failed, and `error` says why."},
                          {"content", content("application/json", reference("Error"))}};
  return operation;
}

std::string make_openapi_text() {
  Json paths = Json::object();
  for (const server::Route& route : server::routes()) {
    std::string method(route.method);
    std::transform(method.begin(), method.end(), method.begin(),
                   [](char c) { return static_cast<char>(c - 'A' + 'a'); });
    paths[std::string(route.path)][method] = operation_json(route);
  }
  const Json document{
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "gpumux"},
        {"version", kDescriptionVersion},
        {"summary",
         "The API of gpumuxd, on the unix socket api.sock of its runtime directory. docs/api.md explains it."},
        {"license", {{"name", "Apache-2.0"}, {"identifier", "Apache-2.0"}}}}},
      {"servers", {{{"url", "http://gpumux"}, {"description", "Any host: the socket says which daemon it is."}}}},
      {"paths", std::move(paths)},
      {"components", {{"schemas", schemas_json()}}}};
  return document.dump(1) + "\n";
}

}  // namespace

const std::string& openapi_text() {
  static const std::string kText = make_openapi_text();
  return kText;
}

std::string api_text() {
  Json addresses = Json::array();
  for (const server::Route& route : server::routes()) {
    if (!addresses.empty() && addresses.back()["path"] == route.path) {
      addresses.back()["methods"].push_back(route.method);
      continue;
    }
    addresses.push_back({{"path", route.path}, {"methods", {route.method}}, {"summary", route.summary}});
  }
  return Json{{"version", base::version()}, {"description", "/v1/openapi.json"}, {"addresses", std::move(addresses)}}
             .dump() +
         "\n";
}

}  // namespace gpumux::daemon

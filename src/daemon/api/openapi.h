// SPDX-License-Identifier: Apache-2.0
// The API's description for programs, in OpenAPI 3.1: made of the table of addresses and of the schemas.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::daemon {

// One type of the API's JSON: "name: type" for each field, with commas between them. Types:
//   int, number, text, bool   JSON's
//   bytes_or_text             a string, or {"base64": "..."} of one that is not UTF-8
//   a|b|c                     one of these words; more may be added
//   Name                      another schema
//   TYPE[]                    a list
//   map TYPE                  an object with any names
// "name?: type": the field may be absent. An empty text: a text of one or more lines is all.
struct Schema {
  std::string_view name;
  std::string_view fields;
};
std::span<const Schema> schemas();  // schemas.cc

// A value of an error's "code".
struct ErrorCode {
  std::string_view name;
  std::string_view meaning;
};
std::span<const ErrorCode> error_codes();

// The document. The same at each call.
const std::string& openapi_text();
// {"version", "description", "addresses"}
std::string api_text();

}  // namespace gpumux::daemon

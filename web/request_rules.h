// SPDX-License-Identifier: Apache-2.0
// Which requests of a browser are answered. Pure: a request comes in as its parts.
//
//   Host      must name this machine's loopback and our port. A page that has its own name point here (DNS rebinding)
//             sends its own name.
//   Origin    must be this very page where something changes or a stream begins. Everywhere else it may be absent.
//   Target    must be in the list of the API's addresses that the page needs, with parameters that are listed, too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux::web {

bool is_own_host(std::string_view host, std::uint16_t port);

// `host`: the same request's, which is_own_host().
bool is_own_origin(std::string_view origin, std::string_view host);

// Sec-Fetch-Site of a request for data: absent in old browsers and in programs.
bool is_own_site(std::string_view fetch_site);

// All values of the cookie `name` in a Cookie header.
std::vector<std::string_view> cookies_named(std::string_view header, std::string_view name);

// The largest trace that a page may ask for at once, in events.
inline constexpr std::uint64_t kMostTraceEvents = 10'000;

// Whether the daemon may be asked to GET this. kNotFound: the page has no use for it.
base::Status check_read(std::string_view target);

// The job of a target such as /v1/jobs/17 or /log/17_3; kNotFound: it is none.
base::Result<std::string> job_of(std::string_view target, std::string_view folder);

// The body of a change of a job as the daemon is to get it: one of cancel, held, suspended and priority. Made anew from
// the values that were read, so that the daemon reads nothing else. kInvalid: it is another change, or none.
base::Result<std::string> job_change(std::string_view body);

}  // namespace gpumux::web

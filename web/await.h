// SPDX-License-Identifier: Apache-2.0
// How coroutines here wait: an error is a value that they look at, never an exception.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace gpumux::web {

inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace gpumux::web

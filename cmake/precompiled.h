// SPDX-License-Identifier: Apache-2.0
// Headers of other projects that most sources include, for the compiler to read once (cmake/gpumux.cmake). Each source
// still includes what it uses: tools/check_includes.py compiles it without this file.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tl/expected.hpp>
#include <utility>
#include <variant>
#include <vector>

// SPDX-License-Identifier: Apache-2.0
// What cmake/precompiled.h is for, in tests.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "cmake/precompiled.h"

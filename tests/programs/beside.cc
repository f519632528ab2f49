// SPDX-License-Identifier: Apache-2.0
// Says whose `marker` it uses. See callers.cc.
extern "C" {
[[gnu::visibility("default")]] const char* marker() { return "own"; }
[[gnu::visibility("default")]] const char* seen_marker() { return marker(); }
}

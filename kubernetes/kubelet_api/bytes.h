// SPDX-License-Identifier: Apache-2.0
// Messages by hand, for tests: what is on the wire, byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace gpumux::kubernetes {

// A field of text or of a message, shorter than 128 bytes.
inline std::string field(int number, const std::string& content) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())} + content;
}

// A field of a small number.
inline std::string field(int number, char value) { return {static_cast<char>(number << 3), value}; }

// The message that the bytes are, which makes the same bytes again.
template <class Message>
Message expect_same_bytes(const std::string& bytes) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.SerializeAsString(), bytes);
  return message;
}

}  // namespace gpumux::kubernetes

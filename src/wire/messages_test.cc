// SPDX-License-Identifier: Apache-2.0
// Goal: each side reads the other's messages, across versions, and no bytes do harm. Method: round trips, truncation to
// every length, growth, and seeded random mutations (the fuzzer goes further).
#include "wire/messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <variant>
#include <vector>

namespace gpumux::wire {
namespace {

std::vector<std::byte> to_vector(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

void set_length(std::vector<std::byte>& bytes) {
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data() + 4, &length, sizeof length);
}

TEST(Messages, ComeBackAsTheyWereSent) {
  Hello hello{.protocol = 1, .oldest_protocol = 1, .gang_world = 2, .pid_here = 7};
  set_text(hello.program, "train.py");
  const auto decoded = decode_from_tenant(encode(hello).bytes());
  ASSERT_TRUE(decoded);
  ASSERT_TRUE(std::holds_alternative<Hello>(*decoded));
  EXPECT_EQ(std::memcmp(&std::get<Hello>(*decoded), &hello, sizeof hello), 0);

  const auto revoke = decode_from_daemon(encode(Revoke{.slot = 3, .epoch = 99}).bytes());
  ASSERT_TRUE(revoke);
  EXPECT_EQ(std::get<Revoke>(*revoke).epoch, 99u);
}

TEST(Messages, OfTheOtherDirectionAreRefused) {
  EXPECT_FALSE(decode_from_daemon(encode(Request{.slot = 1}).bytes()));
  EXPECT_FALSE(decode_from_tenant(encode(Revoke{.slot = 1}).bytes()));
}

TEST(Messages, ShorterThanTheirFirstVersionAreRefused) {
  const auto whole = to_vector(encode(SeatOpen{.slot = 1}).bytes());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    if (cut.size() >= sizeof(Header)) set_length(cut);
    EXPECT_FALSE(decode_from_tenant(cut)) << length;
  }
}

template <class... Messages>
std::map<std::uint32_t, std::size_t> first_lengths(const std::variant<Messages...>&) {
  return {{static_cast<std::uint32_t>(Messages::kType), Messages::kMinimumBytes}...};
}

// A library that was released sends these lengths, and takes them. A new message is a new line; no line ever changes.
TEST(Messages, KeepTheTypesAndLengthsThatWereReleased) {
  EXPECT_EQ(first_lengths(TenantMessage{}),
            (std::map<std::uint32_t, std::size_t>{{1, 248}, {2, 40},  {3, 8},    {4, 8},    {5, 16},  {6, 16},
                                                  {7, 16},  {8, 16},  {9, 64},   {10, 520}, {11, 16}, {12, 200},
                                                  {13, 32}, {14, 16}, {15, 16},  {16, 8},   {17, 16}, {18, 24},
                                                  {19, 16}, {20, 16}, {21, 528}, {22, 8}}));
  EXPECT_EQ(first_lengths(DaemonMessage{}), (std::map<std::uint32_t, std::size_t>{{64, 32},
                                                                                  {65, 136},
                                                                                  {66, 8},
                                                                                  {67, 136},
                                                                                  {68, 16},
                                                                                  {69, 16},
                                                                                  {70, 16},
                                                                                  {71, 16},
                                                                                  {72, 56},
                                                                                  {73, 24},
                                                                                  {74, 16},
                                                                                  {75, 24},
                                                                                  {76, 264},
                                                                                  {77, 8},
                                                                                  {78, 24},
                                                                                  {79, 248},
                                                                                  {80, 8}}));
}

TEST(Messages, FromANewerPeerAreReadAsFarAsTheyAreKnown) {
  auto longer = to_vector(encode(Request{.slot = 5}).bytes());
  longer.resize(longer.size() + 24, std::byte{0xff});
  set_length(longer);
  const auto decoded = decode_from_tenant(longer);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(std::get<Request>(*decoded).slot, 5u);
}

TEST(Messages, WithAFalseLengthAreRefused) {
  auto bytes = to_vector(encode(Request{.slot = 5}).bytes());
  bytes[4] = std::byte{0xff};
  EXPECT_FALSE(decode_from_tenant(bytes));
}

TEST(Messages, LongerThanTheLimitAreRefused) {
  std::vector<std::byte> bytes(base::kMaxMessageBytes + 1);
  const auto encoded = encode(Request{.slot = 5});
  std::memcpy(bytes.data(), &encoded, sizeof encoded);
  set_length(bytes);
  EXPECT_FALSE(decode_from_tenant(bytes));
  bytes.resize(base::kMaxMessageBytes);
  set_length(bytes);
  EXPECT_TRUE(decode_from_tenant(bytes));
}

TEST(Messages, TextAlwaysEnds) {
  Note note{};
  std::memset(note.text, 'x', sizeof note.text);
  const auto decoded = decode_from_tenant(encode(note).bytes());
  ASSERT_TRUE(decoded);
  EXPECT_EQ(text_of(std::get<Note>(*decoded).text).size(), sizeof note.text - 1);
}

TEST(Messages, UnknownEnumerationsAreRefused) {
  SeatOpen open{.slot = 1};
  const std::uint32_t nonsense = 77;
  std::memcpy(&open.state, &nonsense, sizeof nonsense);
  EXPECT_FALSE(decode_from_tenant(encode(open).bytes()));
}

TEST(Messages, RandomBytesDoNoHarm) {
  std::mt19937 random(20261121);
  std::vector<std::byte> bytes;
  int accepted = 0;
  for (int round = 0; round < 200000; ++round) {
    bytes.resize(random() % 700);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    if (bytes.size() >= sizeof(Header) && round % 2 == 0) {
      const auto type = static_cast<std::uint32_t>(random() % 80);
      std::memcpy(bytes.data(), &type, sizeof type);
      set_length(bytes);
    }
    if (decode_from_tenant(bytes)) ++accepted;
    if (decode_from_daemon(bytes)) ++accepted;
  }
  // Otherwise the rounds above would have tested only the length check.
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace gpumux::wire

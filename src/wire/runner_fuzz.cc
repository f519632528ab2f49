// SPDX-License-Identifier: Apache-2.0
// Goal: any bytes at all are safe to decode as a message between daemon, runner and attached terminal, or as a job's
// file. A decoded value says the same when it is written again. Method: decode the input as each of them; encode what
// came out, decode that, and compare. A broken promise traps.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "wire/attach_messages.h"
#include "wire/runner_messages.h"
#include "wire/runner_records.h"

namespace {

using namespace gpumux;

void promise(bool kept) {
  if (!kept) __builtin_trap();
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Static messages: encoded again they are the same, byte for byte.
template <class Variant>
void look_at_message(std::span<const std::byte> bytes, base::Result<Variant> (*decode)(std::span<const std::byte>)) {
  const base::Result<Variant> first = decode(bytes);
  if (!first) {
    promise(first.error().code == base::Code::kProtocol && !first.error().message().empty());
    return;
  }
  std::visit(
      [decode](const auto& message) {
        if constexpr (requires { message.bytes; }) {
          promise(message.bytes.size() <= wire::kMaxAttachMessageBytes);
          const std::string copy(message.bytes);  // every byte can be read
          promise(copy == message.bytes);
        } else {
          const auto encoded = wire::encode(message);
          const base::Result<Variant> second = decode(encoded.bytes());
          promise(second.has_value());
          const auto* again = std::get_if<std::remove_cvref_t<decltype(message)>>(&*second);
          promise(again != nullptr && std::memcmp(again, &message, sizeof message) == 0);
          if constexpr (requires { message.text; }) promise(wire::text_of(message.text).size() < sizeof message.text);
        }
      },
      *first);
}

// Records: the re-encoded bytes decode to a value that encodes the same.
template <class Record>
void look_at_record(std::span<const std::byte> bytes, base::Result<Record> (*decode)(std::span<const std::byte>),
                    std::string (*encode)(const Record&)) {
  const base::Result<Record> first = decode(bytes);
  if (!first) {
    promise(first.error().code == base::Code::kInvalid || first.error().code == base::Code::kUnsupported);
    promise(!first.error().message().empty());
    return;
  }
  const std::string written = encode(*first);
  const base::Result<Record> second = decode(bytes_of(written));
  promise(second.has_value());
  promise(encode(*second) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  look_at_message(bytes, wire::decode_to_runner);
  look_at_message(bytes, wire::decode_from_runner);
  look_at_message(bytes, wire::decode_from_attached);
  look_at_message(bytes, wire::decode_to_attached);
  look_at_record(bytes, wire::decode_spec, wire::encode_spec);
  look_at_record(bytes, wire::decode_claim, wire::encode_claim);
  look_at_record(bytes, wire::decode_end, wire::encode_end);
  return 0;
}

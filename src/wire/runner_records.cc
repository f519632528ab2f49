// SPDX-License-Identifier: Apache-2.0
#include "wire/runner_records.h"

#include <cstring>
#include <type_traits>

namespace gpumux::wire {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr std::uint32_t kRecordVersion = 1;
constexpr std::size_t kMagicBytes = 8;
constexpr char kSpecMagic[kMagicBytes + 1] = "GMXspec\n";
constexpr char kClaimMagic[kMagicBytes + 1] = "GMXclaim";
constexpr char kEndMagic[kMagicBytes + 1] = "GMXend\n\n";
constexpr std::size_t kAlignment = 8;

struct RecordHeader {
  char magic[kMagicBytes];
  std::uint32_t version;
  std::uint32_t reserved;
  std::uint64_t bytes;
};
static_assert(sizeof(RecordHeader) == 24);

struct FieldHeader {
  std::uint32_t tag;
  std::uint32_t reserved;
  std::uint64_t bytes;
};
static_assert(sizeof(FieldHeader) == 16);

// ---- fields -----------------------------------------------------------------------------------------------

class Writer {
 public:
  explicit Writer(const char* magic) {
    RecordHeader header{};
    std::memcpy(header.magic, magic, kMagicBytes);
    header.version = kRecordVersion;
    text_.append(reinterpret_cast<const char*>(&header), sizeof header);
  }

  void bytes(std::uint32_t tag, std::string_view value) {
    const FieldHeader header{tag, 0, value.size()};
    text_.append(reinterpret_cast<const char*>(&header), sizeof header);
    text_.append(value);
    text_.append((kAlignment - value.size() % kAlignment) % kAlignment, '\0');
  }
  // For fields that are empty by default: an empty one is left out.
  void optional_bytes(std::uint32_t tag, std::string_view value) {
    if (!value.empty()) bytes(tag, value);
  }
  // A number, and a text behind it.
  void numbered(std::uint32_t tag, std::uint32_t number, std::string_view text) {
    std::string value(reinterpret_cast<const char*>(&number), sizeof number);
    bytes(tag, value.append(text));
  }
  template <class Struct>
  void numbers(std::uint32_t tag, const Struct& value) {
    static_assert(std::has_unique_object_representations_v<Struct>, "no padding that would be written");
    bytes(tag, std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
  }

  std::string finish() {
    const std::uint64_t size = text_.size();
    std::memcpy(text_.data() + offsetof(RecordHeader, bytes), &size, sizeof size);
    return std::move(text_);
  }

 private:
  std::string text_;
};

struct Field {
  std::uint32_t tag = 0;
  std::string_view value;
};

// Goes through the fields of one record. After next() has returned false, status() says whether that was the end.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const char* magic, std::size_t most) : bytes_(bytes) {
    RecordHeader header;
    if (bytes.size() < sizeof header || bytes.size() > most) {
      status_ = base::fail(Code::kInvalid, "a record of " + std::to_string(bytes.size()) + " bytes");
      return;
    }
    std::memcpy(&header, bytes.data(), sizeof header);
    if (std::memcmp(header.magic, magic, kMagicBytes) != 0) {
      status_ = base::fail(Code::kInvalid, "not a record of this kind: it begins with other bytes");
    } else if (header.version == 0 || header.version > kRecordVersion) {
      status_ = base::fail(Code::kUnsupported, "a record of version " + std::to_string(header.version) +
                                                   ", and this program reads up to " + std::to_string(kRecordVersion) +
                                                   ": it was written by a newer one");
    } else if (header.bytes != bytes.size()) {
      status_ = base::fail(Code::kInvalid, "a record that says it has " + std::to_string(header.bytes) +
                                               " bytes and has " + std::to_string(bytes.size()));
    }
    at_ = sizeof header;
  }

  bool next(Field& field) {
    if (!status_ || at_ == bytes_.size()) return false;
    FieldHeader header;
    if (bytes_.size() - at_ < sizeof header) return cut();
    std::memcpy(&header, bytes_.data() + at_, sizeof header);
    at_ += sizeof header;
    const std::size_t left = bytes_.size() - at_;
    if (header.bytes > left) return cut();
    const std::size_t padding = (kAlignment - header.bytes % kAlignment) % kAlignment;
    if (padding > left - header.bytes) return cut();
    field = Field{header.tag, std::string_view(reinterpret_cast<const char*>(bytes_.data()) + at_, header.bytes)};
    at_ += header.bytes + padding;
    return true;
  }

  const Status& status() const { return status_; }

 private:
  bool cut() {
    status_ = base::fail(Code::kInvalid, "a record that ends in the middle of a field");
    return false;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  Status status_;
};

Status unknown_field(std::uint32_t tag) {
  return base::fail(Code::kUnsupported, "a record has field " + std::to_string(tag) +
                                            ", which this program does not know: it was written by a newer one");
}

// Structs grow at their end. A shorter one is an older one's, whose new parts are zero. A longer one says something
// that cannot be followed unless it is zero.
template <class Struct>
Status read_numbers(const Field& field, std::size_t minimum, Struct& value) {
  if (field.value.size() < minimum) return base::fail(Code::kInvalid, "a record whose numbers are too short");
  value = Struct{};
  std::memcpy(&value, field.value.data(), std::min(field.value.size(), sizeof value));
  for (std::size_t at = sizeof value; at < field.value.size(); ++at) {
    if (field.value[at] != '\0') return unknown_field(field.tag);
  }
  return {};
}

Status read_string(const Field& field, std::string& value) {
  if (field.value.find('\0') != std::string_view::npos)
    return base::fail(Code::kInvalid, "a record has a NUL byte within a string");
  value.assign(field.value);
  return {};
}

// Reads a field of Writer::numbered(). Its number is one of an enumeration's, from 0 to `last`.
template <class Enum>
Status read_numbered(const Field& field, Enum last, Enum& number, std::string& text) {
  std::uint32_t read = 0;
  if (field.value.size() < sizeof read) return base::fail(Code::kInvalid, "a record has a field that is too short");
  std::memcpy(&read, field.value.data(), sizeof read);
  if (read > static_cast<std::uint32_t>(last)) {
    return base::fail(Code::kUnsupported, "field " + std::to_string(field.tag) +
                                              " of a record has a value that this program does not know");
  }
  number = static_cast<Enum>(read);
  return read_string(Field{field.tag, field.value.substr(sizeof read)}, text);
}

// A path that means the same for every reader.
Status check_path(const std::string& path, const char* what) {
  if (path.empty() || path[0] != '/')
    return base::fail(Code::kInvalid, std::string(what) + " is not an absolute path: '" + path + "'");
  return {};
}

// ---- spec -------------------------------------------------------------------------------------------------

enum SpecTag : std::uint32_t {
  kNumbers = 1,
  kGroups = 2,
  kDirectory = 4,
  kArgument = 5,
  kEnvironment = 6,
  kSetup = 7,
  kLate = 8,
  kLogPath = 9,
  kAttachPath = 10,
  kLimit = 11,
  kCgroupParent = 12,
  kErrors = 13,  // how it is opened, u32, and the path
};

struct SpecNumbers {
  static constexpr std::size_t kMinimumBytes = 64;
  std::uint64_t job = 0;
  std::uint32_t attempt = 0;
  std::uint32_t interactive = 0;
  std::uint16_t rows = 0;
  std::uint16_t columns = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t no_new_privs = 0;
  std::uint32_t log_opening = 0;
  std::uint32_t umask = 0;
  std::int32_t nice = 0;
  std::int32_t oom_score_adj = 0;
  std::uint64_t leftover_grace_ms = 0;
  std::uint64_t reserved = 0;
};
static_assert(sizeof(SpecNumbers) == SpecNumbers::kMinimumBytes);
static_assert(sizeof(ResourceLimit) == 24);

// The largest grace that makes sense; more would overflow nothing, but is a mistake.
constexpr std::uint64_t kMostGraceMs = 7ull * 24 * 3600 * 1000;
constexpr std::uint32_t kNobody = ~0u;  // setresuid takes it for "leave as it is"

Status take_numbers(const SpecNumbers& numbers, RunnerSpec& spec) {
  if (numbers.uid == kNobody || numbers.gid == kNobody)
    return base::fail(Code::kInvalid, "the job's user or group id is no id");
  if (numbers.interactive > 1 || numbers.no_new_privs > 1 ||
      numbers.log_opening > static_cast<std::uint32_t>(LogOpening::kOurs)) {
    return base::fail(Code::kUnsupported, "the job's spec has a value that this program does not know");
  }
  if (numbers.umask > 0777) return base::fail(Code::kInvalid, "the job's umask is above 0777");
  if (numbers.nice < -20 || numbers.nice > 19) return base::fail(Code::kInvalid, "the job's nice value is not -20..19");
  if (numbers.oom_score_adj < -1000 || numbers.oom_score_adj > 1000)
    return base::fail(Code::kInvalid, "the job's oom_score_adj is not -1000..1000");
  if (numbers.leftover_grace_ms > kMostGraceMs) return base::fail(Code::kInvalid, "the job's grace is above a week");
  spec.job = numbers.job;
  spec.attempt = numbers.attempt;
  spec.interactive = numbers.interactive != 0;
  spec.window = WindowSize{numbers.rows, numbers.columns};
  spec.uid = numbers.uid;
  spec.gid = numbers.gid;
  spec.no_new_privs = numbers.no_new_privs != 0;
  spec.log_opening = static_cast<LogOpening>(numbers.log_opening);
  spec.umask = numbers.umask;
  spec.nice = numbers.nice;
  spec.oom_score_adj = numbers.oom_score_adj;
  spec.leftover_grace_ms = numbers.leftover_grace_ms;
  return {};
}

Status read_groups(const Field& field, std::vector<std::uint32_t>& groups) {
  const std::size_t count = field.value.size() / sizeof(std::uint32_t);
  if (field.value.size() % sizeof(std::uint32_t) != 0 || count > kMaxGroups)
    return base::fail(Code::kInvalid, "the job's list of groups is not one");
  groups.resize(count);
  if (count != 0) std::memcpy(groups.data(), field.value.data(), field.value.size());
  for (const std::uint32_t group : groups) {
    if (group == kNobody) return base::fail(Code::kInvalid, "one of the job's groups is no group id");
  }
  return {};
}

bool is_assignment(std::string_view entry) {
  const std::size_t equals = entry.find('=');
  return equals != std::string_view::npos && equals > 0;
}

Status read_late(const Field& field, LateVariable& late) {
  GPUMUX_TRY(read_numbered(field, SetHow::kPreload, late.how, late.entry));
  if (!is_assignment(late.entry)) return base::fail(Code::kInvalid, "'" + late.entry + "' is not NAME=value");
  return {};
}

Status read_limit(const Field& field, ResourceLimit& limit) {
  GPUMUX_TRY(read_numbers(field, sizeof limit, limit));
  if (limit.resource >= kMaxResourceLimits || limit.soft > limit.hard)
    return base::fail(Code::kInvalid, "a resource limit that is none, or is above its own ceiling");
  return {};
}

Status check_spec(const RunnerSpec& spec) {
  if (spec.arguments.empty() || spec.arguments[0].empty()) return base::fail(Code::kInvalid, "the job has no command");
  GPUMUX_TRY(check_path(spec.directory, "the job's directory"));
  GPUMUX_TRY(check_path(spec.log_path, "the job's log"));
  if (!spec.error_path.empty()) GPUMUX_TRY(check_path(spec.error_path, "the job's file for errors"));
  if (!spec.attach_path.empty()) GPUMUX_TRY(check_path(spec.attach_path, "the job's attach socket"));
  if (spec.cgroup_parent != "auto" && spec.cgroup_parent != "none")
    GPUMUX_TRY(check_path(spec.cgroup_parent, "the job's cgroup"));
  for (const std::string& entry : spec.environment) {
    if (entry.empty()) return base::fail(Code::kInvalid, "the job's environment has an empty entry");
  }
  return {};
}

// One field into the spec. `strings` counts those of lists, so that a list of empty ones cannot become a large one.
Status take_field(const Field& field, RunnerSpec& spec, std::size_t& strings) {
  const auto append = [&](std::vector<std::string>& list) -> Status {
    if (++strings > kMaxSpecStrings) return base::fail(Code::kInvalid, "the job has too many arguments and variables");
    return read_string(field, list.emplace_back());
  };
  switch (field.tag) {
    case kNumbers: {
      SpecNumbers numbers;
      GPUMUX_TRY(read_numbers(field, SpecNumbers::kMinimumBytes, numbers));
      return take_numbers(numbers, spec);
    }
    case kGroups: return read_groups(field, spec.groups);
    case kDirectory: return read_string(field, spec.directory);
    case kArgument: return append(spec.arguments);
    case kEnvironment: return append(spec.environment);
    case kSetup: return read_string(field, spec.setup_command);
    case kLate:
      if (++strings > kMaxSpecStrings) return base::fail(Code::kInvalid, "the job has too many variables");
      return read_late(field, spec.late_environment.emplace_back());
    case kLogPath: return read_string(field, spec.log_path);
    case kAttachPath: return read_string(field, spec.attach_path);
    case kLimit:
      if (spec.limits.size() == kMaxResourceLimits) return base::fail(Code::kInvalid, "too many resource limits");
      return read_limit(field, spec.limits.emplace_back());
    case kCgroupParent: return read_string(field, spec.cgroup_parent);
    case kErrors: return read_numbered(field, LogOpening::kUsersAppend, spec.error_opening, spec.error_path);
    default: return unknown_field(field.tag);
  }
}

bool is_list(std::uint32_t tag) { return tag == kArgument || tag == kEnvironment || tag == kLate || tag == kLimit; }

// ---- claim ------------------------------------------------------------------------------------------------

enum ClaimTag : std::uint32_t { kClaimNumbers = 1, kBootId = 2, kCgroup = 3 };

struct ClaimNumbers {
  std::uint32_t abandoned = 0;
  std::uint32_t runner_pid = 0;
  std::uint64_t runner_start_ticks = 0;
};
static_assert(sizeof(ClaimNumbers) == 16);

enum EndTag : std::uint32_t { kEndNumbers = 1 };

}  // namespace

std::string encode_spec(const RunnerSpec& spec) {
  Writer writer(kSpecMagic);
  SpecNumbers numbers;
  numbers.job = spec.job;
  numbers.attempt = spec.attempt;
  numbers.interactive = spec.interactive ? 1 : 0;
  numbers.rows = spec.window.rows;
  numbers.columns = spec.window.columns;
  numbers.uid = spec.uid;
  numbers.gid = spec.gid;
  numbers.no_new_privs = spec.no_new_privs ? 1 : 0;
  numbers.log_opening = static_cast<std::uint32_t>(spec.log_opening);
  numbers.umask = spec.umask;
  numbers.nice = spec.nice;
  numbers.oom_score_adj = spec.oom_score_adj;
  numbers.leftover_grace_ms = spec.leftover_grace_ms;
  writer.numbers(kNumbers, numbers);
  writer.optional_bytes(kGroups, std::string_view(reinterpret_cast<const char*>(spec.groups.data()),
                                                  spec.groups.size() * sizeof(std::uint32_t)));
  writer.bytes(kDirectory, spec.directory);
  for (const std::string& argument : spec.arguments) writer.bytes(kArgument, argument);
  for (const std::string& entry : spec.environment) writer.bytes(kEnvironment, entry);
  writer.optional_bytes(kSetup, spec.setup_command);
  for (const LateVariable& late : spec.late_environment)
    writer.numbered(kLate, static_cast<std::uint32_t>(late.how), late.entry);
  writer.bytes(kLogPath, spec.log_path);
  writer.optional_bytes(kAttachPath, spec.attach_path);
  for (const ResourceLimit& limit : spec.limits) writer.numbers(kLimit, limit);
  writer.bytes(kCgroupParent, spec.cgroup_parent);
  if (!spec.error_path.empty())
    writer.numbered(kErrors, static_cast<std::uint32_t>(spec.error_opening), spec.error_path);
  return writer.finish();
}

Result<RunnerSpec> decode_spec(std::span<const std::byte> bytes) {
  RunnerSpec spec;
  spec.cgroup_parent.clear();
  std::size_t strings = 0;
  std::uint32_t seen = 0;  // one bit a tag; there are fewer than 32
  Reader reader(bytes, kSpecMagic, kMaxSpecBytes);
  for (Field field; reader.next(field);) {
    if (field.tag < 32 && !is_list(field.tag)) {
      if ((seen >> field.tag & 1) != 0)
        return base::fail(Code::kInvalid, "a record has field " + std::to_string(field.tag) + " twice");
      seen |= 1u << field.tag;
    }
    GPUMUX_TRY(take_field(field, spec, strings));
  }
  GPUMUX_TRY(reader.status());
  if ((seen >> kNumbers & 1) == 0) return base::fail(Code::kInvalid, "a record without its numbers");
  GPUMUX_TRY(check_spec(spec));
  return spec;
}

std::string encode_claim(const RunnerClaim& claim) {
  Writer writer(kClaimMagic);
  writer.numbers(kClaimNumbers, ClaimNumbers{claim.abandoned ? 1u : 0u, claim.runner_pid, claim.runner_start_ticks});
  writer.optional_bytes(kBootId, claim.boot_id);
  writer.optional_bytes(kCgroup, claim.cgroup);
  return writer.finish();
}

Result<RunnerClaim> decode_claim(std::span<const std::byte> bytes) {
  RunnerClaim claim;
  bool has_numbers = false;
  Reader reader(bytes, kClaimMagic, kMaxSmallRecordBytes);
  for (Field field; reader.next(field);) {
    switch (field.tag) {
      case kClaimNumbers: {
        ClaimNumbers numbers;
        GPUMUX_TRY(read_numbers(field, sizeof numbers, numbers));
        claim.abandoned = numbers.abandoned != 0;
        claim.runner_pid = numbers.runner_pid;
        claim.runner_start_ticks = numbers.runner_start_ticks;
        has_numbers = true;
        break;
      }
      case kBootId: GPUMUX_TRY(read_string(field, claim.boot_id)); break;
      case kCgroup: GPUMUX_TRY(read_string(field, claim.cgroup)); break;
      default: return tl::unexpected(unknown_field(field.tag).error());
    }
  }
  GPUMUX_TRY(reader.status());
  if (!has_numbers) return base::fail(Code::kInvalid, "a record without its numbers");
  if (!claim.cgroup.empty()) GPUMUX_TRY(check_path(claim.cgroup, "the claim's cgroup"));
  return claim;
}

std::string encode_end(const RunnerEnd& end) {
  Writer writer(kEndMagic);
  writer.numbers(kEndNumbers, end);
  return writer.finish();
}

Result<RunnerEnd> decode_end(std::span<const std::byte> bytes) {
  RunnerEnd end;
  bool has_numbers = false;
  Reader reader(bytes, kEndMagic, kMaxSmallRecordBytes);
  for (Field field; reader.next(field);) {
    if (field.tag != kEndNumbers) return tl::unexpected(unknown_field(field.tag).error());
    GPUMUX_TRY(read_numbers(field, RunnerEnd::kMinimumBytes, end));
    has_numbers = true;
  }
  GPUMUX_TRY(reader.status());
  if (!has_numbers) return base::fail(Code::kInvalid, "a record without its numbers");
  // The message's own decoder knows which values there are.
  const auto checked = decode_from_runner(encode(end).bytes());
  if (!checked) return base::fail(Code::kInvalid, "an end record: " + checked.error().message());
  return std::get<RunnerEnd>(*checked);
}

}  // namespace gpumux::wire

// SPDX-License-Identifier: Apache-2.0
// An account is the unit of every limit per user (connections, jobs, bytes, host memory).
//
// A peer cannot get a second account by anything that it may do itself:
//
//   on the host, not contained             its user; a subordinate id (/etc/subuid) counts for the id's owner
//   in a container that root has made      that container
//   in namespaces of an ordinary user's    that user
//   contained in another way, or unseen    one account for all such peers
//
// Not to be mixed up with trust_domain(), which says whose data a process may see, and which namespaces do multiply.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::server {

class Account {
 public:
  Account() = default;  // of all peers that cannot be told apart
  static Account of_user(uid_t uid) { return {Kind::kUser, uid}; }
  // `inode`: of the namespace that makes it a container.
  static Account of_container(ino_t inode) { return {Kind::kContainer, inode}; }

  // None: it is not a user's.
  std::optional<uid_t> user() const {
    return kind_ == Kind::kUser ? std::optional(static_cast<uid_t>(number_)) : std::nullopt;
  }
  // Its own: no two accounts have the same. (Numbers of users and of namespaces have 32 bits.)
  std::uint64_t key() const { return number_ << 2 | static_cast<std::uint64_t>(kind_); }
  // For people: "user 1000", "container 4026532281", "unknown containers".
  std::string text() const;

  auto operator<=>(const Account&) const = default;

 private:
  enum class Kind : std::uint8_t { kUnknown, kUser, kContainer };
  Account(Kind kind, std::uint64_t number) : kind_(kind), number_(number) {}
  Kind kind_ = Kind::kUnknown;
  std::uint64_t number_ = 0;
};

// Which users own which subordinate ids. Read with the configuration, for a name may be looked up in a directory
// service.
class SubordinateIds {
 public:
  static constexpr char kFile[] = "/etc/subuid";

  // A file that is not there says that no user has subordinate ids.
  static SubordinateIds read(const std::string& file = kFile);
  // `find_user`: the uid of a name or number; none: there is no such user.
  static SubordinateIds parse(std::string_view text,
                              const std::function<std::optional<uid_t>(const std::string&)>& find_user);

  // The user for which `uid` counts: itself, unless it is a subordinate id.
  uid_t owner_of(uid_t uid) const;

 private:
  struct Range {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    uid_t owner = 0;
  };
  std::vector<Range> ranges_;
};

// Reads /proc and asks about namespaces, for microseconds. The answer is of `pid` only if that has not ended by then.
Account account_of(pid_t pid, uid_t uid, bool is_contained, const SubordinateIds& subordinates);

}  // namespace gpumux::server

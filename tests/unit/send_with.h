// SPDX-License-Identifier: Apache-2.0
// Sends a message with several descriptors, as no sender of ours does.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace gpumux {

// False: it could not be sent.
inline bool send_with(int socket, std::span<const std::byte> bytes, const std::vector<int>& fds) {
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* item = CMSG_FIRSTHDR(&header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(item), fds.data(), fds.size() * sizeof(int));
  return ::sendmsg(socket, &header, MSG_NOSIGNAL) >= 0;
}

}  // namespace gpumux

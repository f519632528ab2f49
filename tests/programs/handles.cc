// SPDX-License-Identifier: Apache-2.0
// A process without any context creates memory that others use: it exports --children handles of --kib KiB and sends
// all of them to each child, a new program (--child) at the other end of a socket. In --rounds rounds each child, one
// after the other, fills one buffer with a number of its own and checks what the child before it has written.
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/gpu.h"

extern char** environ;

namespace gpumux::programs {
namespace {

// The child's end of its socket.
constexpr int kChildSocket = 3;
constexpr std::uint32_t kUntouched = 0;

struct Turn {
  std::uint32_t write = 0;   // the number of the buffer to fill
  std::uint32_t value = 0;   // with this
  std::uint32_t expect = 0;  // what it holds before
};

void send_bytes(int socket, const void* data, std::size_t bytes, int fd = -1) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) wrong("a message was not sent");
}

// False: the other end is closed.
bool receive_bytes(int socket, void* data, std::size_t bytes, int* fd = nullptr) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t received = 0;
  do {
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received == 0) return false;
  if (received != static_cast<ssize_t>(bytes)) wrong("a message has another size than expected");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (fd != nullptr && header != nullptr) std::memcpy(fd, CMSG_DATA(header), sizeof *fd);
  return true;
}

int be_child(const Api& api, const Options& options) {
  const std::size_t bytes = options.number("kib") * 1024;
  std::vector<int> descriptors(options.number("children"), -1);
  for (int& fd : descriptors) {
    char byte = 0;
    if (!receive_bytes(kChildSocket, &byte, 1, &fd) || fd < 0) wrong("a descriptor did not come");
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  GPUMUX_CALL(api.cuInit(0));
  GPUMUX_CALL(api.cuDeviceGet(&device, 0));
  GPUMUX_CALL(api.cuCtxCreate_v2(&context, 0, device));
  const Kernels kernels = load_kernels(api);
  CUdeviceptr data = 0;
  CUdeviceptr sum = 0;
  GPUMUX_CALL(api.cuMemAlloc_v2(&sum, 8));
  GPUMUX_CALL(api.cuMemAddressReserve(&data, bytes * descriptors.size(), 0, 0, 0));
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    CUmemGenericAllocationHandle handle = 0;
    void* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptors[i]));
    GPUMUX_CALL(api.cuMemImportFromShareableHandle(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    GPUMUX_CALL(api.cuMemMap(data + i * bytes, bytes, 0, handle, 0));
    GPUMUX_CALL(api.cuMemRelease(handle));
    ::close(descriptors[i]);
  }
  const CUmemAccessDesc rights{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  GPUMUX_CALL(api.cuMemSetAccess(data, bytes * descriptors.size(), &rights, 1));
  for (Turn turn; receive_bytes(kChildSocket, &turn, sizeof turn);) {
    const CUdeviceptr buffer = data + turn.write * bytes;
    const std::uint64_t count = bytes / 4;
    std::uint64_t got = 0;
    launch(api, kernels.checksum, nullptr, false, buffer, count, sum);
    GPUMUX_CALL(api.cuMemcpyDtoH_v2(&got, sum, 8));
    if (turn.expect != kUntouched && got != checksum_of(turn.expect, count)) wrong("another child's numbers");
    launch(api, kernels.fill, nullptr, false, buffer, count, turn.value);
    GPUMUX_CALL(api.cuStreamSynchronize(nullptr));
    send_bytes(kChildSocket, &turn.value, sizeof turn.value);
  }
  GPUMUX_CALL(api.cuMemUnmap(data, bytes * descriptors.size()));
  GPUMUX_CALL(api.cuMemAddressFree(data, bytes * descriptors.size()));
  GPUMUX_CALL(api.cuCtxDestroy_v2(context));
  return 0;
}

struct Child {
  pid_t pid = 0;
  int socket = -1;
};

Child start_child(char** argv, const Options& options) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) wrong("no socket pair");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kChildSocket);
  const std::vector<std::string> arguments = {argv[0], "--child",           "--door",     options.text("door"),
                                              "--kib", options.text("kib"), "--children", options.text("children")};
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  Child child{0, ends[0]};
  if (::posix_spawn(&child.pid, argv[0], &actions, nullptr, pointers.data(), environ) != 0) wrong("no child");
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  return child;
}

int be_parent(const Api& api, const Options& options, char** argv) {
  const std::size_t count = options.number("children");
  std::vector<Child> children;
  for (std::size_t i = 0; i < count; ++i) children.push_back(start_child(argv, options));
  GPUMUX_CALL(api.cuInit(0));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::vector<CUmemGenericAllocationHandle> handles(count);
  for (CUmemGenericAllocationHandle& handle : handles) {
    int fd = -1;
    GPUMUX_CALL(api.cuMemCreate(&handle, options.number("kib") * 1024, &properties, 0));
    GPUMUX_CALL(api.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    for (const Child& child : children) send_bytes(child.socket, "", 1, fd);
    ::close(fd);
  }
  say("exported");
  std::vector<std::uint32_t> values(count, kUntouched);
  for (std::uint64_t round = 0; round < options.number("rounds"); ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto buffer = static_cast<std::uint32_t>((i + round) % count);
      const auto value = static_cast<std::uint32_t>(round * count + i + 1);
      const Turn turn{buffer, value, values[buffer]};
      send_bytes(children[i].socket, &turn, sizeof turn);
      if (!receive_bytes(children[i].socket, &values[buffer], sizeof values[buffer])) wrong("a child has ended");
    }
  }
  for (const Child& child : children) {
    ::close(child.socket);
    int status = 0;
    while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) wrong("a child ended with status " + std::to_string(status));
  }
  for (const CUmemGenericAllocationHandle handle : handles) GPUMUX_CALL(api.cuMemRelease(handle));
  say("digest=%016llx", static_cast<unsigned long long>(hash(values.data(), values.size() * 4)));
  return 0;
}

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv, {{"child", "0"}, {"children", "3"}, {"kib", "4096"}, {"rounds", "3"}});
  const Api api = open_driver(options.door());
  return options.flag("child") ? be_child(api, options) : be_parent(api, options, argv);
}

// SPDX-License-Identifier: Apache-2.0
// Whether memory can leave a program that an error has broken, or that is a client of MPS.
//
// A child makes memory, and with `broken` breaks its context by an illegal address. It exports the memory to its
// parent, which is no client of MPS and copies a word of it. Then the child unmaps, releases and makes memory anew. Each
// line is a call of the driver's and its result.
//
//   nvcc -o broken broken.cu -lcuda && ./broken
//   nvidia-cuda-mps-control -d && ./broken mps
#include <cuda.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kBytes = size_t{64} << 20;

#define SHOW(call) std::printf("%-28s %d\n", std::strtok(std::strcpy(name, #call), "("), static_cast<int>(call))
char name[256];

__global__ void write_to(int* address) { *address = 1; }

void send_fd(int socket, int fd) {
  char byte = 0;
  iovec io{&byte, 1};
  char control[CMSG_SPACE(sizeof fd)]{};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  sendmsg(socket, &message, 0);
}

int receive_fd(int socket) {
  char byte = 0;
  iovec io{&byte, 1};
  char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  int fd = -1;
  if (recvmsg(socket, &message, 0) > 0 && CMSG_FIRSTHDR(&message) != nullptr)
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

struct Memory {
  CUmemGenericAllocationHandle handle{};
  CUdeviceptr address = 0;
};

void map(Memory& memory) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (memory.address == 0) SHOW(cuMemAddressReserve(&memory.address, kBytes, 0, 0, 0));
  SHOW(cuMemMap(memory.address, kBytes, 0, memory.handle, 0));
  SHOW(cuMemSetAccess(memory.address, kBytes, &access, 1));
}

void make_context() {
  CUcontext context = nullptr;
  SHOW(cuInit(0));
  SHOW(cuDevicePrimaryCtxRetain(&context, 0));
  SHOW(cuCtxSetCurrent(context));
}

void program(int socket, bool is_broken) {
  make_context();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  Memory memory;
  SHOW(cuMemCreate(&memory.handle, kBytes, &properties, 0));
  map(memory);
  SHOW(cuMemsetD32(memory.address, 7, kBytes / 4));
  if (is_broken) write_to<<<1, 1>>>(reinterpret_cast<int*>(16));
  SHOW(cuCtxSynchronize());
  std::puts("-- from here on the context is as it is");
  int fd = -1;
  SHOW(cuMemExportToShareableHandle(&fd, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  std::fflush(stdout);
  send_fd(socket, fd);
  char byte = 0;
  if (read(socket, &byte, 1) != 1) std::puts("the parent has ended");
  SHOW(cuMemUnmap(memory.address, kBytes));
  SHOW(cuMemRelease(memory.handle));
  SHOW(cuMemCreate(&memory.handle, kBytes, &properties, 0));
  map(memory);
  SHOW(cuMemExportToShareableHandle(&fd, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  std::fflush(stdout);
}

void mover(int socket) {
  const int fd = receive_fd(socket);
  std::puts("-- the mover");
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent", 1);
  make_context();
  Memory memory;
  SHOW(cuMemImportFromShareableHandle(&memory.handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  map(memory);
  int word = 0;
  SHOW(cuMemcpyDtoH(&word, memory.address + 4096, sizeof word));
  std::printf("the word is %s\n-- the program again\n", word == 7 ? "right" : "WRONG");
  std::fflush(stdout);
  SHOW(cuMemUnmap(memory.address, kBytes));
  SHOW(cuMemRelease(memory.handle));
  if (write(socket, "x", 1) != 1) std::puts("the program has ended");
}

}  // namespace

int main(int count, char** arguments) {
  const bool is_broken = count < 2 || std::strcmp(arguments[1], "mps") != 0;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 1;
  if (fork() == 0) {
    close(ends[0]);
    program(ends[1], is_broken);
    _exit(0);
  }
  close(ends[1]);
  mover(ends[0]);
  std::fflush(stdout);
  wait(nullptr);
  return 0;
}

// After a sticky error: which calls of the virtual memory API still work in the process, and may another process copy?
#include <cuda.h>
#include <cstdio>
#include <cstring>
#include <cstdlib>
#include <unistd.h>
#include <sys/socket.h>
#include <sys/wait.h>
static void send_fd(int s,int fd){char b=0;iovec io{&b,1};char c[CMSG_SPACE(sizeof fd)]{};msghdr m{};m.msg_iov=&io;m.msg_iovlen=1;m.msg_control=c;m.msg_controllen=sizeof c;auto*h=CMSG_FIRSTHDR(&m);h->cmsg_level=SOL_SOCKET;h->cmsg_type=SCM_RIGHTS;h->cmsg_len=CMSG_LEN(sizeof fd);memcpy(CMSG_DATA(h),&fd,sizeof fd);sendmsg(s,&m,0);}
static int recv_fd(int s){char b;iovec io{&b,1};char c[CMSG_SPACE(sizeof(int))]{};msghdr m{};m.msg_iov=&io;m.msg_iovlen=1;m.msg_control=c;m.msg_controllen=sizeof c;if(recvmsg(s,&m,0)<=0)return -1;auto*h=CMSG_FIRSTHDR(&m);if(!h)return -1;int fd;memcpy(&fd,CMSG_DATA(h),sizeof fd);return fd;}
__global__ void bad(int*p){*p=1;}
#define R(x) printf("%-60s %d\n",#x,(int)(x))
int main(int argc,char**argv){
  const size_t n=64<<20;
  int s[2]; socketpair(AF_UNIX,SOCK_SEQPACKET,0,s);
  if(fork()==0){
    cuInit(0);CUdevice d;cuDeviceGet(&d,0);CUcontext c;cuDevicePrimaryCtxRetain(&c,d);cuCtxSetCurrent(c);
    CUmemAllocationProp p{};p.type=CU_MEM_ALLOCATION_TYPE_PINNED;p.location={CU_MEM_LOCATION_TYPE_DEVICE,d};p.requestedHandleTypes=CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle h;CUdeviceptr a;CUmemAccessDesc acc{{CU_MEM_LOCATION_TYPE_DEVICE,d},CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    R(cuMemCreate(&h,n,&p,0));R(cuMemAddressReserve(&a,n,0,0,0));R(cuMemMap(a,n,0,h,0));R(cuMemSetAccess(a,n,&acc,1));R(cuMemsetD32(a,7,n/4));
    bad<<<1,1>>>((int*)16);
    R(cuCtxSynchronize());
    R(cuMemsetD32(a,7,n/4));
    int fd=-1;R(cuMemExportToShareableHandle(&fd,h,CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,0));
    fflush(stdout);
    if(fd>=0)send_fd(s[1],fd);else close(s[1]);
    char b;if(fd>=0)read(s[1],&b,1);
    R(cuMemUnmap(a,n));R(cuMemRelease(h));
    size_t f,t;R(cuMemGetInfo(&f,&t));
    R(cuMemCreate(&h,n,&p,0));R(cuMemMap(a,n,0,h,0));R(cuMemSetAccess(a,n,&acc,1));
    fd=-1;R(cuMemExportToShareableHandle(&fd,h,CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,0));
    fflush(stdout);_exit(0);
  }
  close(s[1]);
  int fd=recv_fd(s[0]);
  printf("mover: fd %d\n",fd);
  if(fd>=0){
    if(argc>1) unsetenv("CUDA_MPS_PIPE_DIRECTORY"), setenv("CUDA_MPS_PIPE_DIRECTORY","/nonexistent",1);
    cuInit(0);CUdevice d;cuDeviceGet(&d,0);CUcontext c;R(cuDevicePrimaryCtxRetain(&c,d));cuCtxSetCurrent(c);
    CUmemGenericAllocationHandle h;CUdeviceptr a;CUmemAccessDesc acc{{CU_MEM_LOCATION_TYPE_DEVICE,d},CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    R(cuMemImportFromShareableHandle(&h,(void*)(intptr_t)fd,CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    R(cuMemAddressReserve(&a,n,0,0,0));R(cuMemMap(a,n,0,h,0));R(cuMemSetAccess(a,n,&acc,1));
    int w=0;R(cuMemcpyDtoH(&w,a+4096,4));printf("mover: word %d\n",w);
    R(cuMemUnmap(a,n));R(cuMemRelease(h));
    write(s[0],"x",1);
  }
  fflush(stdout);
  wait(nullptr);
}

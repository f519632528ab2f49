/* SPDX-License-Identifier: Apache-2.0
 * What the C library has taken from the environment before main: glibc fills new memory as GLIBC_TUNABLES says
 * (glibc.malloc.perturb). Also what else the kernel has put on the stack, for the hook's start moves it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char** environ;

int main(int argc, char** argv) {
  const unsigned char* memory = malloc(64);
  int variables = 0;
  while (environ[variables] != NULL) ++variables;
  printf("byte=%d variables=%d arguments=%d last=%s page=%d\n", memory[32], variables, argc, argv[argc - 1],
         getauxval(AT_PAGESZ) == (unsigned long)sysconf(_SC_PAGESIZE) && getauxval(AT_RANDOM) != 0);
  return 0;
}

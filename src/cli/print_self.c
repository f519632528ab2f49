// SPDX-License-Identifier: Apache-2.0
// For tests: a program that says exactly what it was given. Each argument on a line as ARG <hex>; then the variables of
// interest, the number of its children, its ignored signals and its libgpumux.so mappings. Ends with the status in
// PRINT_STATUS, or by SIGKILL if "kill".
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) {
    printf("ARG ");
    for (const char* c = argv[i]; *c != '\0'; ++c) printf("%02x", (unsigned)(unsigned char)*c);
    printf("\n");
  }
  static const char* const kNames[] = {"LD_PRELOAD",  "GPUMUX_RUN_ID", "GPUMUX_RUNTIME_DIR",
                                       "GPUMUX_NAME", "GPUMUX_GANG",   "GPUMUX_MEM_LIMIT"};
  for (size_t i = 0; i < sizeof kNames / sizeof kNames[0]; ++i) {
    const char* value = getenv(kNames[i]);
    if (value != NULL) printf("%s=%s\n", kNames[i], value);
  }
  errno = 0;
  printf("children=%s\n", waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD ? "none" : "some");
  printf("pid=%d\n", (int)getpid());
  int descriptors = 0;
  for (int fd = 3; fd < 256; ++fd) descriptors += fcntl(fd, F_GETFD) >= 0;
  printf("descriptors=%d\n", descriptors);
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[4096];
  int mapped = 0;
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) mapped |= strstr(line, "libgpumux.so") != NULL;
  printf("mapped=%d\n", mapped);
  fflush(stdout);
  const char* status = getenv("PRINT_STATUS");
  if (status != NULL && strcmp(status, "kill") == 0) raise(SIGKILL);
  return status == NULL ? 0 : atoi(status);
}

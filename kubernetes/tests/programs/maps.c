/* SPDX-License-Identifier: Apache-2.0
 * The files that this process has mapped, one on a line, and its user. Plain C: it is linked with glibc, with musl, and
 * statically. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
  char line[4096];
  FILE* maps = fopen("/proc/self/maps", "r");
  if (maps == NULL) return 1;
  while (fgets(line, sizeof line, maps) != NULL) {
    const char* path = strchr(line, '/');
    if (path != NULL) printf("%s", path);
  }
  fclose(maps);
  printf("uid=%d euid=%d\n", (int)getuid(), (int)geteuid());
  return 0;
}

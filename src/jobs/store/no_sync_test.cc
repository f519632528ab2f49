// SPDX-License-Identifier: Apache-2.0
// The store's tests never wait for a disk: SQLite, which is linked in, finds these in place of libc's.
//
// No test here could see a difference, for no test cuts the machine's power. PowerCutVfs, above these, sees every sync
// that SQLite asks for, and makes the files as a power cut leaves them.
#include <unistd.h>

extern "C" {
int fsync(int) { return 0; }
int fdatasync(int) { return 0; }
}

# For a build of libgpumux.so, the simulated driver and their tests for arm64 on another machine: Debian's cross
# compiler, and qemu to run the tests. The preset `arm64` uses it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
foreach(language C CXX ASM)
  set(compiler gcc)
  if(language STREQUAL CXX)
    set(compiler g++)
  endif()
  set(CMAKE_${language}_COMPILER aarch64-linux-gnu-${compiler})
endforeach()
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
# -R: qemu keeps a record of each page, and the simulated driver reserves as many as the address space has room for.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -R 16G -L /usr/aarch64-linux-gnu)

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fills a folder with all that the image has: kubernetes/image/assemble.sh DIST FOLDER [SIMULATED]
#
# The programs of DIST, as `tools/build.sh dist` makes it, and the C library of this machine. With SIMULATED=yes the
# simulated driver, too. NVIDIA's management library needs the small libraries that glibc 2.34 has become one with.
set -eu
dist=$1
image=$2
simulated=${3:-no}

put() {
  mkdir -p "$image$(dirname "$2")"
  cp -L "$1" "$image$2"
}

for name in gpumux gpumuxd gpumux-kubelet-plugin; do put "$dist/bin/$name" "/usr/bin/$name"; done
for name in gpumux-cdi-hook gpumux-mover; do put "$dist/libexec/gpumux/$name" "/usr/libexec/gpumux/$name"; done
put "$dist/lib/libgpumux.so" /usr/lib/libgpumux.so
if [ "$simulated" = yes ]; then
  for name in libcuda.so.1 libnvidia-ml.so.1; do put "$dist/sim/$name" "/usr/lib/gpumux/sim/$name"; done
fi
# Programs of a build with symbols are several times as large.
if command -v strip >/dev/null; then find "$image/usr" -type f -exec strip --strip-unneeded {} +; fi

needed=$(ldd "$dist/bin/gpumuxd" | sed -n 's|.*[ 	]\(/[^ ]*\) (0x.*|\1|p')
for library in $needed; do put "$library" "$library"; done
folder=$(dirname "$(echo "$needed" | grep '/libc\.so\.6$')")
for name in libdl.so.2 libpthread.so.0 librt.so.1; do
  if [ -e "$folder/$name" ]; then put "$folder/$name" "$folder/$name"; fi
done

mkdir -p "$image/etc" "$image/run" "$image/tmp" "$image/var"
ln -s ../run "$image/var/run"
chmod 1777 "$image/tmp"
echo 'root:x:0:0:root:/:/sbin/nologin' >"$image/etc/passwd"
echo 'root:x:0:' >"$image/etc/group"

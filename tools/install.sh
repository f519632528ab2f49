#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copies dist/ and its company into the system, or takes it away again: tools/install.sh install|uninstall|list
# DESTDIR (default empty), PREFIX (/usr) and SYSCONFDIR (/etc) say where. One list serves both directions, and packages:
# `list` prints it (packaging/deb).
#
# A user who is not root, and names no DESTDIR, installs for one user: PREFIX is ~/.local by default. Files that only
# root can use stay out: units of systemd, the configuration's folder, and the parts for Kubernetes and Slurm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
action=${1:?install, uninstall or list}
etc=${SYSCONFDIR:-/etc}
root=${DESTDIR:-}
if [ -z "$root" ] && [ "$(id -u)" != 0 ]; then installs_for=user; else installs_for=system; fi
if [ "$installs_for" = user ]; then prefix=$(realpath -ms "${PREFIX:-$HOME/.local}"); else prefix=${PREFIX:-/usr}; fi
# Of what dist/ holds.
version=$(head -n 1 dist/version.txt 2>/dev/null || tools/version.sh | head -n 1)
# Where zsh looks: Debian's has a folder of its own for what packages bring.
zsh_folder=$prefix/share/zsh/site-functions
if [ "$prefix" = /usr ] && [ -e /etc/debian_version ]; then zsh_folder=/usr/share/zsh/vendor-completions; fi

# The commands of an older scheduler.
old_names="mgpu_srun mgpu_queue mgpu_cancel mgpu_scheduler_server"

# The manual pages that were made, or, to be taken away, those that are installed under our names.
pages() {
  local folder=dist/share/man
  if [ "$action" = uninstall ]; then folder=$root$prefix/share/man; fi
  {
    printf '%s\n' man1/gpumux.1 man5/gpumux.toml.5 man8/gpumuxd.8 man8/gpumux-kubelet-plugin.8
    if [ -d "$folder" ]; then (cd "$folder" && find man1 -name 'gpumux-*.1' -o -name 'mgpu_*.1'); fi
  } | LC_ALL=C sort -u
}

# The package that has the page or the completions of a program.
package_of() {
  case $1 in *kubelet-plugin*) echo gpumux-kubernetes ;; *) echo gpumux ;; esac
}

# The rows of a user's installation, or all.
of_user() {
  if [ "$installs_for" = system ]; then cat; else
    awk -F '\t' '$4 !~ /-(kubernetes|slurm)$/ && $2 !~ /\/(systemd|sysusers.d)\//'
  fi
}

# Without the rows of leaf products that the build left out (cmake/dist.cmake). All of them can be taken away.
of_build() {
  local left_out
  left_out=$(cat dist/left_out.txt 2>/dev/null || true)
  if [ "$action" = uninstall ]; then left_out=; fi
  awk -F '\t' -v left_out="$left_out" '
    BEGIN { split(left_out, names, "\n") }
    { for (i in names) if ($4 == "gpumux-" names[i] || index($1, names[i] "/") == 1) next; print }'
}

# from <tab> to <tab> mode <tab> package. Containers have the library by its version: the next version leaves it where
# it is.
files() { every_file | of_build | of_user; }
every_file() {
  printf '%s\t%s\t%s\t%s\n' \
    dist/bin/gpumux "$prefix/bin/gpumux" 755 gpumux \
    dist/bin/gpumuxd "$prefix/bin/gpumuxd" 755 gpumux \
    dist/bin/gpumux-kubelet-plugin "$prefix/bin/gpumux-kubelet-plugin" 755 gpumux-kubernetes \
    dist/libexec/gpumux/gpumux-runner "$prefix/libexec/gpumux/gpumux-runner" 755 gpumux \
    dist/libexec/gpumux/gpumux-mover "$prefix/libexec/gpumux/gpumux-mover" 755 gpumux \
    dist/libexec/gpumux/gpumux-cdi-hook "$prefix/libexec/gpumux/gpumux-cdi-hook" 755 gpumux-kubernetes \
    dist/lib/libgpumux.so "$prefix/lib/libgpumux.so" 644 libgpumux \
    dist/lib/libgpumux.so "$prefix/lib/gpumux/containers/$version/libgpumux.so" 644 gpumux-kubernetes \
    dist/demo/gpumux_demo "$prefix/libexec/gpumux/gpumux_demo" 755 gpumux-sim \
    dist/sim/libcuda.so.1 "$prefix/lib/gpumux/sim/libcuda.so.1" 644 gpumux-sim \
    dist/sim/libnvidia-ml.so.1 "$prefix/lib/gpumux/sim/libnvidia-ml.so.1" 644 gpumux-sim \
    dist/sim/nvidia-cuda-mps-control "$prefix/lib/gpumux/sim/nvidia-cuda-mps-control" 755 gpumux-sim \
    packaging/systemd/gpumuxd.service "$prefix/lib/systemd/system/gpumuxd.service" 644 gpumux \
    packaging/systemd/gpumux-runner.socket "$prefix/lib/systemd/system/gpumux-runner.socket" 644 gpumux \
    packaging/systemd/gpumux-jobs.slice "$prefix/lib/systemd/system/gpumux-jobs.slice" 644 gpumux \
    packaging/systemd/gpumux-runner@.service "$prefix/lib/systemd/system/gpumux-runner@.service" 644 gpumux \
    packaging/systemd/run-gpumux-mps-users.mount "$prefix/lib/systemd/system/run-gpumux-mps-users.mount" 644 gpumux \
    web/gpumux-web.service "$prefix/lib/systemd/system/gpumux-web.service" 644 gpumux \
    packaging/systemd/gpumux.sysusers.conf "$prefix/lib/sysusers.d/gpumux.conf" 644 gpumux \
    packaging/gpumux.toml.example "$prefix/share/doc/gpumux/gpumux.toml.example" 644 gpumux \
    slurm/prolog "$prefix/libexec/gpumux/slurm-prolog" 755 gpumux-slurm \
    slurm/job_submit.lua "$prefix/share/doc/gpumux/job_submit.lua" 644 gpumux-slurm \
    LICENSE "$prefix/share/doc/gpumux/LICENSE" 644 gpumux \
    dist/share/README.md "$prefix/share/doc/gpumux/README.md" 644 gpumux \
    dist/share/CHANGELOG.md "$prefix/share/doc/gpumux/CHANGELOG.md" 644 gpumux
  # Built where Slurm's headers are.
  if [ "$action" = uninstall ] || [ -e dist/lib/gpumux/spank_gpumux.so ]; then
    printf '%s\t%s\t%s\t%s\n' dist/lib/gpumux/spank_gpumux.so "$prefix/lib/gpumux/spank_gpumux.so" 644 gpumux-slurm
  fi
  local page
  for page in $(pages); do
    printf '%s\t%s\t%s\t%s\n' "dist/share/man/$page" "$prefix/share/man/$page" 644 "$(package_of "$page")"
  done
  local name package
  for name in gpumux gpumuxd gpumux-kubelet-plugin $old_names; do
    package=$(package_of "$name")
    printf '%s\t%s\t%s\t%s\n' \
      "dist/share/bash-completion/completions/$name" "$prefix/share/bash-completion/completions/$name" 644 "$package" \
      "dist/share/zsh/site-functions/_$name" "$zsh_folder/_$name" 644 "$package" \
      "dist/share/fish/vendor_completions.d/$name.fish" "$prefix/share/fish/vendor_completions.d/$name.fish" 644 \
      "$package"
  done
  for page in docs/*.md docs/how-to/*.md docs/pictures/*; do
    printf '%s\t%s\t%s\t%s\n' "$page" "$prefix/share/doc/gpumux/${page#docs/}" 644 gpumux
  done
}

# link <tab> what it points to
links() {
  local name
  for name in $old_names; do printf '%s\t%s\n' "$prefix/bin/$name" gpumux; done
}

# place DESTINATION COMMAND...: COMMAND makes the file at the path that it is given last, and a rename puts it in its
# place. A program that is just starting maps the old file or the new one, never a part: a half-written library ends it
# with SIGBUS.
place() {
  local to=$1
  shift
  (umask 022 && mkdir -p "$(dirname "$to")")
  # Of no use to systemd and the loader until it has its name.
  unfinished=$(dirname "$to")/.$(basename "$to").$$.new
  "$@" "$unfinished"
  mv -fT "$unfinished" "$to"
  echo "$to"
}

copy() {
  install -m "$2" "$1" "$3"
  case $3 in
    *.service.*) sed -i "s|/usr/bin/gpumux|$prefix/bin/gpumux|; s|/usr/libexec/|$prefix/libexec/|" "$3" ;;
  esac
}

# Whether the loader puts our library into every program: it takes words between spaces, colons and lines, and #
# comments. It looks in /etc whatever SYSCONFDIR is.
is_preloaded() {
  local list=$root/etc/ld.so.preload
  local -a is_ours=(-E '(^|/)libgpumux\.so$')
  if [ "$installs_for" = user ]; then is_ours=(-xF "$prefix/lib/libgpumux.so"); fi
  [ -e "$list" ] && sed 's/#.*//' "$list" | tr ' \t:' '\n' | grep -q "${is_ours[@]}"
}

# A user's own folders go with their last file.
remove_empty_folders() {
  local to
  while read -r to; do rmdir -p --ignore-fail-on-non-empty "$(dirname "${to#"$prefix"/}")" 2>/dev/null || true; done
  rmdir --ignore-fail-on-non-empty "$prefix"
}

case $action in
  list)
    files
    while IFS=$'\t' read -r link to; do printf '%s\t%s\tlink\tgpumux\n' "$to" "$link"; done < <(links)
    ;;
  install)
    missing=()
    while IFS=$'\t' read -r from _ _; do [ -e "$from" ] || missing+=("$from"); done < <(files)
    if [ ${#missing[@]} -gt 0 ]; then
      echo "install: missing: ${missing[*]}; run make build first (not as root), then make install" >&2
      exit 1
    fi
    unfinished=
    trap 'rm -f "$unfinished"' EXIT
    while IFS=$'\t' read -r from to mode _; do place "$root$to" copy "$from" "$mode"; done < <(files)
    while IFS=$'\t' read -r link to; do place "$root$link" ln -s "$to"; done < <(links)
    if [ "$installs_for" = user ]; then
      echo "installed; see \`$prefix/bin/gpumux doctor\`, or without a GPU \`$prefix/bin/gpumux run --simulated\`"
      exit 0
    fi
    install -d -m 755 "$root$etc/gpumux"
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then
      systemd-sysusers gpumux.conf || true
      systemctl daemon-reload
      echo "installed; start it with: systemctl enable --now gpumuxd"
    fi
    ;;
  uninstall)
    if is_preloaded; then
      echo "uninstall: $root/etc/ld.so.preload names libgpumux.so, so every program on this machine would complain" \
        "without it; take that entry out first" >&2
      exit 1
    fi
    if [ "$installs_for" = user ]; then
      installed=$(files | cut -f 2 && links | cut -f 1)
      xargs -d '\n' rm -f <<<"$installed"
      if cd "$prefix" 2>/dev/null; then remove_empty_folders <<<"$installed"; fi
      exit 0
    fi
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then
      systemctl disable --now gpumuxd gpumux-runner.socket gpumux-web 2>/dev/null || true
    fi
    while IFS=$'\t' read -r _ to _; do rm -f "$root$to"; done < <(files)
    while IFS=$'\t' read -r link _; do rm -f "$root$link"; done < <(links)
    for dir in "$prefix/lib/gpumux/containers/$version" "$prefix/lib/gpumux/containers" "$prefix/lib/gpumux/sim" \
      "$prefix/lib/gpumux" "$prefix/libexec/gpumux" "$prefix/share/doc/gpumux/how-to" \
      "$prefix/share/doc/gpumux/pictures" "$prefix/share/doc/gpumux"; do
      rmdir "$root$dir" 2>/dev/null || true
    done
    if [ -d "$root$prefix/lib/gpumux/containers" ]; then
      echo "uninstall: kept other versions' libraries for containers in $root$prefix/lib/gpumux/containers"
    fi
    rmdir "$root$etc/gpumux" 2>/dev/null || echo "uninstall: kept the configuration in $root$etc/gpumux"
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
    ;;
  *)
    echo "install, uninstall or list, not $action" >&2
    exit 2
    ;;
esac

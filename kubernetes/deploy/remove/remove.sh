#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Removes gpumux from a cluster: kubernetes/deploy/remove/remove.sh OVERLAY [NODE...]
#
# OVERLAY is what `kubectl apply -k` was given. Without nodes, all that have the label gpumux.io/api. In this order:
# pods, plugin, hook and library of each node, daemon, the folders of each node, and then the rest. A node where a
# container still has gpumux stops it: run it again when that pod has ended. Needs kubectl and the rights of an
# administrator.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] && [ -e "$1/kustomization.yaml" ] || {
  sed -n '3,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
overlay=$1
shift
nodes=("$@")
[ $# -gt 0 ] || mapfile -t nodes < <(kubectl get nodes -l gpumux.io/api -o name | sed 's|^node/||')

echo "remove: draining ${nodes[*]:-no node}"
# The plugin must be there while pods with claims end: it takes the claims back.
for node in "${nodes[@]}"; do
  kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data
done

rendered=$(kubectl kustomize "$overlay")
image=$(sed -n 's/^ *\(- \)\{0,1\}image: //p' <<<"$rendered" | sort -u)
settings=$(sed -n 's/^ *name: \(gpumux-kubelet-plugin-[a-z0-9]*\)$/\1/p' <<<"$rendered" | sort -u | head -1)

echo "remove: the plugin"
kubectl -n gpumux delete daemonset gpumux-device-plugin gpumux-dra --ignore-not-found --cascade=foreground --wait

# Removes from each node what nothing uses.
clean() {
  local jobs=() node job ended
  for node in "${nodes[@]}"; do
    echo "remove: $1 of $node"
    jobs+=("$(sed "s|NODE\$|$node|; s|IMAGE\$|$image|; s|SETTINGS|$settings|" "$here/job.yaml" |
      kubectl create -f - -o name)")
  done
  for job in "${jobs[@]}"; do
    for _ in $(seq 120); do
      ended=$(kubectl -n gpumux get "$job" -o jsonpath='{.status.succeeded}/{.status.failed}')
      [ "$ended" = / ] || break
      kubectl -n gpumux wait "$job" --for=condition=complete --timeout=1s >/dev/null 2>&1 || true
    done
    if [ "$ended" != 1/ ]; then
      kubectl -n gpumux logs "$job" >&2 || true
      echo "remove: $job has not succeeded, so all else stays as it is; mend that and run this again" >&2
      exit 1
    fi
  done
}

clean "hook and library"
echo "remove: the daemon"
kubectl -n gpumux delete daemonset gpumuxd --ignore-not-found --cascade=foreground --wait
clean "folders"

echo "remove: the rest"
# Clusters without dynamic resource allocation have no such resource.
kubectl delete resourceslices --field-selector spec.driver=gpumux.io --ignore-not-found 2>/dev/null || true
kubectl delete -k "$overlay" --ignore-not-found
for node in "${nodes[@]}"; do
  kubectl label node "$node" gpumux.io/api-
  kubectl uncordon "$node"
done

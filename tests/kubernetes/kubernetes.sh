#!/usr/bin/env bash
# A real control plane for tests: kube-apiserver, controller-manager and scheduler, built from their Go modules, with
# Debian's etcd; and two nodes whose pods are containers of runc (kubelet/). It needs root, runc and ip.
#
#   kubernetes.sh build                build the programs, once: ten minutes of CPU time
#   kubernetes.sh with IMAGE COMMAND...   run a command beside a cluster whose one image is IMAGE (rootfs/, config.json)
#
# The programs are kept in ~/.cache/bowstring/kubernetes (BOWSTRING_KUBERNETES_CACHE). The cluster and the command run in a
# network of their own, which reaches nothing else: what they need is to be there. The command finds the cluster by
# BOWSTRING_KUBERNETES, its address, and BOWSTRING_KUBERNETES_TOKEN; logs in BOWSTRING_KUBERNETES_DIR.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${BOWSTRING_KUBERNETES_CACHE:-$HOME/.cache/bowstring/kubernetes}
version=$(sed -n 's/^\trequire k8s.io\/kubernetes v//p; s/^\tk8s.io\/kubernetes v//p; s/^require k8s.io\/kubernetes v//p' "$here/go.mod" | head -1)
kube=$cache/kube-$version
kubelet=$cache/kubelet-$(cat "$here"/go.mod "$here"/kubelet/*.go | sha256sum | cut -c1-12)

die() { echo "kubernetes.sh: $*" >&2; exit 1; }

need() {
  command -v "$1" >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "kubernetes.sh: installing $2" >&2
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$2"; } >&2
  fi
  command -v "$1" >/dev/null || die "'$1' is missing: install $2 (Debian, Ubuntu: apt install $2)"
}

build() {
  mkdir -p "$cache"
  [ -x "$kube" ] || (cd "$here" && go build -trimpath -ldflags '-s -w' -o "$kube" ./control)
  [ -x "$kubelet" ] || { rm -f "$cache"/kubelet-*; (cd "$here" && go build -trimpath -o "$kubelet" ./kubelet); }
}

# inside IMAGE COMMAND...: within the network namespace.
inside() {
  local image=$1 dir pids=() status=0 i
  shift
  dir=${BOWSTRING_KUBERNETES_DIR:?}
  mount -t tmpfs none /run/netns 2>/dev/null || { mkdir -p /run/netns && mount -t tmpfs none /run/netns; }
  ip link set lo up
  ip link add br0 type bridge
  ip addr add 10.213.0.1/16 dev br0
  ip link set br0 up
  ip route add default dev br0 # so that servers find an address of their own
  cd "$dir"
  openssl genrsa -out sa.key 2048 2>/dev/null
  local token
  token=$(openssl rand -hex 16)
  echo "$token,admin,admin,system:masters" >tokens.csv
  cat >kubeconfig <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
CONFIG
  end() { # in the order in which they need each other
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null && wait "${pids[i]}" 2>/dev/null || :; done
  }
  trap end EXIT
  etcd --data-dir etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380 >etcd.log 2>&1 &
  pids+=($!)
  "$kube" kube-apiserver --etcd-servers http://127.0.0.1:2379 --secure-port 6443 --bind-address 127.0.0.1 --advertise-address 10.213.0.1 \
    --cert-dir certs --service-account-key-file sa.key --service-account-signing-key-file sa.key \
    --service-account-issuer https://kubernetes.default.svc --token-auth-file tokens.csv --authorization-mode RBAC \
    --service-cluster-ip-range 10.96.0.0/16 >apiserver.log 2>&1 &
  pids+=($!)
  for ((i = 0; i < 600; i++)); do
    curl -fsk https://127.0.0.1:6443/readyz -H "Authorization: Bearer $token" >/dev/null 2>&1 && break
    kill -0 "${pids[1]}" 2>/dev/null || die "kube-apiserver has ended: $(tail -3 apiserver.log)"
    sleep 0.5
  done
  "$kube" kube-controller-manager --kubeconfig kubeconfig --service-account-private-key-file sa.key --leader-elect=false --secure-port 0 >controllers.log 2>&1 &
  pids+=($!)
  "$kube" kube-scheduler --kubeconfig kubeconfig --leader-elect=false --secure-port 0 >scheduler.log 2>&1 &
  pids+=($!)
  "$kubelet" --kubeconfig kubeconfig --image "$image" --dir "$dir/kubelet" >kubelet.log 2>&1 &
  pids+=($!)
  cd "$OLDPWD"
  BOWSTRING_KUBERNETES=https://127.0.0.1:6443 BOWSTRING_KUBERNETES_TOKEN=$token "$@" || status=$?
  exit "$status"
}

with() {
  local dir=${BOWSTRING_KUBERNETES_DIR:-}
  [ "$(id -u)" = 0 ] || die "root is needed, to make networks and containers"
  need etcd etcd-server
  need runc runc
  need ip iproute2
  build
  if [ -z "$dir" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
  else
    rm -rf "$dir" && mkdir -p "$dir"
  fi
  # Whatever fails, nothing outlives the namespace of processes: no container and no server is left behind.
  BOWSTRING_KUBERNETES_DIR=$dir unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc \
    "${BASH_SOURCE[0]}" inside "$@"
}

command=${1:-help}
shift || true
case $command in
  build) build ;;
  with) with "$@" ;;
  inside) inside "$@" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; [ "$command" = help ] ;;
esac

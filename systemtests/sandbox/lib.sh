# Shared by the sandbox's scripts, and by CNI hooks through $RIG/lib.sh: paths, addresses, and starting and ending
# processes by pid file. Several sandboxes can be up side by side, told apart by FLOWKEEP_SANDBOX.
SANDBOX=${FLOWKEEP_SANDBOX:-demo}
CACHE=${FLOWKEEP_CACHE:-/var/cache/flowkeep}
RUN=${FLOWKEEP_RUN:-/var/lib/flowkeep-sandbox/$SANDBOX}
BIN=$CACHE/bin
IMAGES=$CACHE/images
ETCD=/dev/shm/flowkeep-$SANDBOX-etcd
KUBECONFIG=$RUN/admin.kubeconfig
PAUSE_IMAGE=registry.k8s.io/pause:3.10.2
CYCLONUS_IMAGE=mfenwick100/cyclonus-worker:latest # the name that cyclonus asks for
PROBE_IMAGE=flowkeep.local/probe:sandbox
case $SANDBOX in demo) id=1 ;; test) id=2 ;; *) id=$((10 + $(cksum <<<"$SANDBOX" | cut -d' ' -f1) % 240)) ;; esac
NET=172.31.$id              # underlay: .1 the machine itself, .10 the control plane, .11… the nodes
NET6=fd00:172:31:$id:       # the same in IPv6: ::1, ::10, ::11…
SANDBOX_SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LINK=fks$id                 # the machine's own link to the underlay
export PATH=$BIN:$PATH:/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin

log() { printf 'sandbox: %s\n' "$*" >&2; }
die() { log "error: $*"; exit 1; }

# families: "4", "6" or "4 6", of the sandbox that is up or of FAMILY (ipv4, ipv6, dual)
families() {
  case ${FAMILY:-$(cat "$RUN/family" 2>/dev/null)} in ipv4) echo 4 ;; ipv6) echo 6 ;; *) echo 4 6 ;; esac
}
# each FORMAT4 FORMAT6 N: the formats filled in with N, for the sandbox's families, separated by commas
each() {
  local f out=
  for f in $(families); do
    if [ "$f" = 4 ]; then out+=,${1//@/$3}; else out+=,${2//@/$3}; fi
  done
  echo "${out#,}"
}
host_ips() { each "$NET.@" "$NET6:@" "$1"; }
# shape: of the sandbox that is up or of SHAPE; see README.md
shape() { echo "${SHAPE:-$(cat "$RUN/shape" 2>/dev/null)}"; }
# node_ips N: in the shape subnets, nodes with an even number are in the second one
node_ips() {
  if [ "$(shape)" = subnets ] && [ $(($1 % 2)) = 0 ]; then host_ips $((140 + $1)); else host_ips $((10 + $1)); fi
}
# pods4 and services4: the first numbers of pods' and Services' IPv4 addresses
pods4() { case $(shape) in k3s | rke2) echo 10.42 ;; *) echo 10.244 ;; esac; }
services4() { case $(shape) in k3s | rke2) echo 10.43 ;; *) echo 10.96 ;; esac; }
pod_cidrs() { each "$(pods4).@.0/24" fd00:10:244:@::/64 "$1"; }
cluster_cidrs() { each "$(pods4).0.0/16" fd00:10:244::/48 0; }
service_cidrs() { each "$(services4).0.0/16" fd00:10:96::/112 0; }
# cni_dirs: a node's directories of CNI configurations and of plugins
cni_dirs() {
  case $(shape) in
    k3s) echo /var/lib/rancher/k3s/agent/etc/cni/net.d /var/lib/rancher/k3s/data/cni ;;
    *) echo /etc/cni/net.d /opt/cni/bin ;;
  esac
}
# service_ip N: the Nth address of the first Service CIDR
service_ip() { first "$(each "$(services4).0.@" fd00:10:96::@ "$1")"; }
first() { echo "${1%%,*}"; }
# url_host ADDRESS: IPv6 in brackets
url_host() { case $1 in *:*) echo "[$1]" ;; *) echo "$1" ;; esac; }
api_url() { echo "https://$(url_host "$(first "$(host_ips 10)")"):6443"; }

# image NAME BINARY ENTRYPOINT_JSON [FILE LINK…]: a one-file, one-layer image in docker-save form, as FILE.tar, with
# more names for the file
image() {
  local file dir layer config name=$1 bin=$2 entry=$3 link
  file=$IMAGES/$(basename "${4:-$bin}").tar
  dir=$(mktemp -d); mkdir -p "$dir/root/tmp"; chmod 1777 "$dir/root/tmp"; cp "$bin" "$dir/root/"
  for link in "${@:5}"; do ln -s "/$(basename "$bin")" "$dir/root/$link"; done
  tar -C "$dir/root" --owner=0 --group=0 --mtime=@0 --sort=name -cf "$dir/layer.tar" .
  layer=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":%s,"Env":["PATH=/"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(go env GOARCH)" "$entry" "$layer" >"$dir/config.json"
  config=$(sha256sum "$dir/config.json" | cut -d' ' -f1); mv "$dir/config.json" "$dir/$config.json"
  printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$config" "$name" >"$dir/manifest.json"
  tar -C "$dir" -cf "$file.new" manifest.json "$config.json" layer.tar
  echo "$name" >"$file.name"; mv "$file.new" "$file"; rm -rf "$dir"
}

# Network namespaces are called fk-SANDBOX-NAME. NAME has no dash: fk-test-quiet-node1 is not of the sandbox test.
ns_path() { echo "/run/netns/fk-$SANDBOX-$1"; }
# ns_names: those of this sandbox
ns_names() { find /run/netns -maxdepth 1 -name "fk-$SANDBOX-*" ! -name "fk-$SANDBOX-*-*" -printf '%f\n' 2>/dev/null; }
# in_ns NAME CMD…: run in one of the sandbox's network namespaces, keeping the machine's mounts (ip netns exec would
# hide cgroups)
in_ns() { local ns=$1; shift; nsenter --net="$(ns_path "$ns")" -- "$@"; }

# born PID: its start time, which tells it from a later process with the same id
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# memory_limit NAME: the limit that the chart gives the program of a process, empty without one
memory_limit() {
  local product
  case $1 in
    netmaster | master-*) product=netmaster ;;
    *-netplugin) product=netplugin ;;
    *-node-state) product=nodeState ;;
    *-macvtap) product=macvtap ;;
    *) return 0 ;;
  esac
  awk -v product="$product:" '/^[^ ]/ {found = $1 == product} found && /limits:/ {sub(/.*memory: */, ""); sub(/}.*/, ""); print; exit}' \
    "$SANDBOX_SCRIPTS/../../deploy/chart/values.yaml"
}

# start NAME CMD…: run in the background in its own session, log to logs/NAME, pid in pids/NAME; Flowkeep's programs under their
# memory limits of the chart, where the machine has a memory controller. Without FLOWKEEP_HEAVY, for such a process ends with the sandbox, and not with the run that boots it.
start() {
  local name=$1 limit; shift
  alive "$name" && return 0
  limit=$(memory_limit "$name")
  [ -z "$limit" ] || "$SANDBOX_SCRIPTS/limited" || { log "warning: $name runs without its memory limit of $limit"; limit=; }
  FLOWKEEP_HEAVY= setsid ${limit:+"$SANDBOX_SCRIPTS/limited" "flowkeep-$SANDBOX.$name" "$limit"} "$@" >>"$RUN/logs/$name" 2>&1 </dev/null &
  echo "$! $(born $!)" >"$RUN/pids/$name"
  { printf '%q ' "$@"; echo; } >"$RUN/pids/.$name.command"
}

# restart NAME: start it again with the command it was started with
restart() {
  local command
  read -r command <"$RUN/pids/.$1.command" || die "nothing called $1 was ever started here"
  eval "start $1 $command"
}

# alive NAME: the recorded pid still is the process that was started (same start time)
alive() {
  local pid since
  read -r pid since 2>/dev/null <"$RUN/pids/$1" || return 1
  [ -n "$since" ] && [ "$(born "$pid")" = "$since" ]
}

# stop NAME [SECONDS]: TERM, wait, KILL; only the recorded process
stop() {
  local pid _ i
  if alive "$1"; then
    read -r pid _ <"$RUN/pids/$1"
    kill "$pid" 2>/dev/null || true
    for i in $(seq $((${2:-5} * 20))); do alive "$1" || break; sleep 0.05; done
    if alive "$1"; then kill -9 "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$RUN/pids/$1"
}

# wait_for SECONDS WHAT CMD…: poll until CMD succeeds; FLOWKEEP_SLOW times as long on a slow machine
wait_for() {
  local end=$((SECONDS + $1 * ${FLOWKEEP_SLOW:-1})) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "gave up waiting for $what: read the logs in $RUN/logs"
    sleep 0.2
  done
}

# put FILE: write stdin to FILE unless it already holds just that (kube-proxy exits when its file is rewritten)
put() {
  cat >"$1.new"
  if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}

# health: names every process of the sandbox that is no longer running
health() {
  local f bad=0
  for f in "$RUN"/pids/*; do
    alive "$(basename "$f")" || { log "$(basename "$f") is not running, see $RUN/logs/$(basename "$f")"; bad=1; }
  done
  return $bad
}

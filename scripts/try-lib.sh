# Shared by try and try-down: the directory, the network, and the processes of the nodes. Expects lib.sh.
export FLOWKEEP_SANDBOX=try
. "$ROOT/systemtests/sandbox/lib.sh" # start, stop, alive, wait_for, in_ns; and NET and NET6, the network between the nodes
PKI=$RUN/pki

# network: a bridge in the namespace hub, to which the nodes are linked
network() {
  local n
  [ -e /run/netns/fk-try-hub ] || ip netns add fk-try-hub
  ip -n fk-try-hub link set lo up
  ip -n fk-try-hub link show br0 >/dev/null 2>&1 || ip -n fk-try-hub link add br0 type bridge mcast_snooping 0
  ip -n fk-try-hub link set br0 up
  ip -n fk-try-hub addr replace "$NET.1/24" dev br0
  ip -n fk-try-hub -6 addr replace "$NET6:1/64" dev br0 nodad
  in_ns hub sysctl -qw net.bridge.bridge-nf-call-{iptables,ip6tables,arptables}=0 2>/dev/null || true
  for n in 1 2; do
    [ -e "/run/netns/fk-try-node$n" ] || ip netns add "fk-try-node$n"
    # duplicate address detection keeps link-local addresses back for a second or two, in which the first probes are sent
    in_ns "node$n" sysctl -qw net.ipv6.conf.{all,default}.accept_dad=0
    ip -n "fk-try-node$n" link set lo up
    if ! ip -n "fk-try-node$n" link show eth0 >/dev/null 2>&1; then
      ip -n fk-try-hub link add "node$n" type veth peer name eth0 netns "fk-try-node$n"
      ip -n fk-try-hub link set "node$n" master br0 up
    fi
    ip -n "fk-try-node$n" link set eth0 up
    ip -n "fk-try-node$n" addr replace "$NET.1$n/24" dev eth0
    ip -n "fk-try-node$n" -6 addr replace "$NET6:1$n/64" dev eth0 nodad
    in_ns "node$n" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
  done
}

# node_manifest N: the Node object
node_manifest() {
  cat <<YAML
---
apiVersion: v1
kind: Node
metadata: {name: node$1}
spec: {podCIDR: 10.244.$1.0/24, podCIDRs: [10.244.$1.0/24, "fd00:10:244:$1::/64"]}
status: {addresses: [{type: InternalIP, address: $NET.1$1}, {type: InternalIP, address: "$NET6:1$1"}]}
YAML
}

# setup_file DIR: what netctl try reads
setup_file() {
  cat <<JSON
{"manifests": ["$RUN/nodes", "$1"], "cni": "$RUN/bin/flowkeep-cni", "nodes": [
  {"name": "node1", "socket": "$RUN/node1/cni.sock"},
  {"name": "node2", "socket": "$RUN/node2/cni.sock"}]}
JSON
}

certificates() {
  local m=$RUN/bin/netmaster n
  [ -s "$PKI/ca.crt" ] || "$m" pki init --dir "$PKI" >/dev/null
  [ -s "$PKI/server.crt" ] || "$m" pki issue --dir "$PKI" --server "$NET.1,127.0.0.1,localhost"
  [ -s "$PKI/admin.crt" ] || "$m" pki issue --dir "$PKI" --admin
  for n in 1 2; do [ -s "$PKI/node$n.crt" ] || "$m" pki issue --dir "$PKI" --node "node$n"; done
}

# node N: the node's Open vSwitch and netplugin
node() {
  local name=node$1 dir=$RUN/node$1 ovs=$RUN/node$1/ovs inside="nsenter --net=$(ns_path "node$1") --"
  local dirs="env OVS_RUNDIR=$ovs OVS_LOGDIR=$ovs OVS_DBDIR=$ovs"
  mkdir -p "$ovs" "$dir/state"
  [ -s "$ovs/conf.db" ] || ovsdb-tool create "$ovs/conf.db" /usr/share/openvswitch/vswitch.ovsschema
  start "$name-ovsdb" $inside $dirs ovsdb-server "$ovs/conf.db" --remote="punix:$ovs/db.sock" \
    --unixctl="$ovs/ovsdb.ctl" -vconsole:warn -vsyslog:off
  wait_for 10 "ovsdb-server of $name" ovs-vsctl --db="unix:$ovs/db.sock" --no-wait --timeout=$((10 * ${FLOWKEEP_SLOW:-1})) init
  start "$name-vswitchd" $inside $dirs "$ROOT/scripts/at-nice" -10 ovs-vswitchd "unix:$ovs/db.sock" \
    --unixctl="$ovs/vswitchd.ctl" -vconsole:warn -vsyslog:off
  wait_for 10 "ovs-vswitchd of $name" ovs-appctl --timeout=$((10 * ${FLOWKEEP_SLOW:-1})) -t "$ovs/vswitchd.ctl" version
  start "$name-netplugin" $inside "$RUN/bin/netplugin" --node-name "$name" --server "$NET.1:7443" \
    --tls-ca "$PKI/ca.crt" --tls-cert "$PKI/$name.crt" --tls-key "$PKI/$name.key" --state-dir "$dir/state" \
    --ovsdb "unix:$ovs/db.sock" --ovs-run-dir "$ovs" --ovs-control "$ovs/vswitchd.ctl" --cni-socket "$dir/cni.sock" \
    --cluster-cidrs 10.244.0.0/16,fd00:10:244::/48 --service-cidrs 10.96.0.0/16,fd00:10:96::/112
}

# await NAME NAMESPACE HOST:PORT: until the process NAME is ready
await() {
  local limit=$((60 * ${FLOWKEEP_SLOW:-1}))
  local end=$((SECONDS + limit))
  until in_ns "$2" timeout $((2 * ${FLOWKEEP_SLOW:-1})) bash -c \
    'exec 3<>"/dev/tcp/${0%:*}/${0#*:}" && printf "GET /readyz HTTP/1.0\r\n\r\n" >&3 && read -r _ code _ <&3 && [ "$code" = 200 ]' "$3" 2>/dev/null; do
    alive "$1" || { tail -5 "$RUN/logs/$1" >&2; die "$1 ended: see above, and $RUN/logs/$1"; }
    [ $SECONDS -lt $end ] || { tail -5 "$RUN/logs/$1" >&2; die "$1 is not ready after $limit s: see above, and $RUN/logs/$1"; }
    sleep 0.1
  done
}

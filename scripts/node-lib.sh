# Shared by node-up and node-down; expects lib.sh and node-up's environment.
for v in NODE NETNS NODE_IP RUN_DIR CNI_CONF_DIR CNI_BIN_DIR KUBECONFIG API CP_NETNS CLUSTER_CIDR SERVICE_CIDR; do
  [ -n "${!v:-}" ] || die "$v is not set: run this as a CNI hook (systemtests/sandbox/up --cni-hook scripts/node-up), or give it the environment that it lists at its top"
done
RIG=${RIG:-$ROOT/systemtests/sandbox}
TRAFFIC_MODE=${TRAFFIC_MODE:-route}
SERVICES=${SERVICES:-kube-proxy}
run=${RUN_DIR%/*}
cluster=$run/flowkeep      # bin, pki, netmaster's state, netctl's environment
node=$RUN_DIR/flowkeep     # state, ovs
pki=$cluster/pki
host=${API#https://} host=${host%:*}
server=$host:7443          # netmaster's feed
access=$host:7444          # where the API server asks netmaster
MASTER_HTTP=127.0.0.1:9440 # of netmaster, in the control plane's namespace
PLUGIN_HTTP=127.0.0.1:9441 # of netplugin, in the node's namespace

# registry FUNCTION ARGS…: one of $RIG/lib.sh's functions, on this cluster's directory. In a subshell: that file sets
# variables of names that this environment has too.
registry() { (. "$RIG/lib.sh"; RUN=$run; "$@"); }

install_new() { cmp -s "$1" "$2" || { cp "$1" "$2.new" && mv "$2.new" "$2"; }; }

# ready NETNS HOST:PORT: /readyz answers 200. No curl: a fresh machine has none.
ready() {
  nsenter --net="$1" -- timeout $((2 * ${FLOWKEEP_SLOW:-1})) bash -c \
    'exec 3<>"/dev/tcp/${0%:*}/${0#*:}" && printf "GET /readyz HTTP/1.0\r\n\r\n" >&3 && read -r _ code _ <&3 && [ "$code" = 200 ]' "$2" 2>/dev/null
}
# await SECONDS NAME NETNS HOST:PORT: until ready; gives up early when the process has died
await() {
  local end=$((SECONDS + $1 * ${FLOWKEEP_SLOW:-1}))
  until ready "$3" "$4"; do
    registry alive "$2" || { tail -5 "$run/logs/$2" >&2; die "$2 ended: see its last words above, all of them in $run/logs/$2"; }
    [ $SECONDS -lt $end ] || { tail -5 "$run/logs/$2" >&2; die "$2 is not ready after $1 s: see its last words above, all of them in $run/logs/$2"; }
    sleep 0.1
  done
}

certificates() {
  local m=$cluster/bin/netmaster
  [ -s "$pki/ca.crt" ] || "$m" pki init --dir "$pki" >/dev/null
  [ -s "$pki/server.crt" ] || "$m" pki issue --dir "$pki" --server "${host//[\[\]]/},127.0.0.1,localhost"
  [ -s "$pki/admin.crt" ] || "$m" pki issue --dir "$pki" --admin
  [ -s "$pki/$NODE.crt" ] || "$m" pki issue --dir "$pki" --node "$NODE"
}

control_plane() {
  registry start memcached nsenter --net="$CP_NETNS" -- memcached -u nobody -l 127.0.0.1 -p 11211 -m 64 -U 0
  registry start netmaster nsenter --net="$CP_NETNS" -- "$cluster/bin/netmaster" --kubeconfig "$KUBECONFIG" --listen "$server" \
    --tls-ca "$pki/ca.crt" --tls-cert "$pki/server.crt" --tls-key "$pki/server.key" --state-dir "$cluster/netmaster" \
    --memcached 127.0.0.1:11211 --http-listen "$MASTER_HTTP" --access-listen "$access"
  await 30 netmaster "$CP_NETNS" "$MASTER_HTTP"
  registration
  cat >"$cluster/netctl.env" <<ENV
export KUBECONFIG=$KUBECONFIG
export PATH=$cluster/bin:\$PATH
ENV
  # without the API server
  cat >"$cluster/direct.env" <<ENV
export FLOWKEEP_SERVER=$server
export FLOWKEEP_CA=$pki/ca.crt FLOWKEEP_CERT=$pki/admin.crt FLOWKEEP_KEY=$pki/admin.key
export PATH=$cluster/bin:\$PATH
ENV
}

# registration: the API server learns where netmaster is, and who may ask it
registration() {
  [ ! -e "$cluster/registered" ] || return 0
  "$cluster/bin/netmaster" registration --tls-ca "$pki/ca.crt" --address "${host//[\[\]]/}" --port "${access##*:}" >"$cluster/registration.yaml"
  registry kubectl --kubeconfig "$KUBECONFIG" apply --validate=false -f "$cluster/registration.yaml" -f "$ROOT/deploy/roles.yaml" >/dev/null ||
    die "the API server does not take netmaster's registration, see above"
  touch "$cluster/registered"
}

# switch_up: this node's own ovsdb-server and ovs-vswitchd, in its namespace, with its own directory. ovs-vswitchd has
# the nice value that "netplugin switch" and Open vSwitch's own scripts give it: packets that wait for a processor are
# lost.
switch_up() {
  local ovs=$node/ovs
  local dirs="env OVS_RUNDIR=$ovs OVS_LOGDIR=$ovs OVS_DBDIR=$ovs"
  [ -s "$ovs/conf.db" ] || ovsdb-tool create "$ovs/conf.db" /usr/share/openvswitch/vswitch.ovsschema
  registry start "$NODE-ovsdb" nsenter --net="$NETNS" -- $dirs ovsdb-server "$ovs/conf.db" --remote="punix:$ovs/db.sock" \
    --unixctl="$ovs/ovsdb.ctl" -vconsole:warn -vsyslog:off
  registry wait_for 10 "ovsdb-server of $NODE" ovs-vsctl --db="unix:$ovs/db.sock" --no-wait --timeout=$((10 * ${FLOWKEEP_SLOW:-1})) init
  ovs-vsctl --db="unix:$ovs/db.sock" --no-wait set Open_vSwitch . external_ids:system-id="$NODE"
  registry start "$NODE-vswitchd" nsenter --net="$NETNS" -- $dirs "$ROOT/scripts/at-nice" -10 ovs-vswitchd "unix:$ovs/db.sock" \
    --unixctl="$ovs/vswitchd.ctl" -vconsole:warn -vsyslog:off
  registry wait_for 10 "ovs-vswitchd of $NODE" ovs-appctl --timeout=$((10 * ${FLOWKEEP_SLOW:-1})) -t "$ovs/vswitchd.ctl" version
}

# datapath: what netplugin chooses by itself, or FLOWKEEP_DATAPATH
datapath() {
  if [ -n "${FLOWKEEP_DATAPATH:-}" ]; then echo "$FLOWKEEP_DATAPATH"
  elif [ -e /sys/module/openvswitch ] || modprobe -q openvswitch 2>/dev/null; then echo system
  else echo netdev; fi
}

# underlay: tunnels of the userspace datapath leave by bridges of the same switch only, so the node's interface goes into
# one, br-underlay, which takes over its addresses and routes.
underlay() {
  [ "$TRAFFIC_MODE" != route ] && [ "$(datapath)" = netdev ] || return 0
  local ovs=$node/ovs
  ovs-vsctl --db="unix:$ovs/db.sock" --timeout=$((10 * ${FLOWKEEP_SLOW:-1})) --may-exist add-br br-underlay -- set bridge br-underlay datapath_type=netdev \
    -- --may-exist add-port br-underlay eth0
  nsenter --net="$NETNS" -- bash -c "$(declare -f take_over); take_over eth0 br-underlay"
}
# take_over FROM TO: moves addresses and default routes from one interface to another
take_over() {
  local family a routes
  ip link set "$2" up
  for family in -4 -6; do
    routes=$(ip $family route show default dev "$1")
    for a in $(ip $family -o addr show dev "$1" scope global | awk '{print $4}'); do
      ip $family addr del "$a" dev "$1"
      ip $family addr add "$a" dev "$2" $([ $family = -4 ] || echo nodad)
    done
    [ -z "$routes" ] || ip $family route replace ${routes%% proto*} dev "$2"
  done
}

agent() {
  local ovs=$node/ovs
  registry start "$NODE-netplugin" nsenter --net="$NETNS" -- "$cluster/bin/netplugin" --node-name "$NODE" --server "$server" \
    --tls-ca "$pki/ca.crt" --tls-cert "$pki/$NODE.crt" --tls-key "$pki/$NODE.key" --state-dir "$node/state" \
    --ovsdb "unix:$ovs/db.sock" --ovs-run-dir "$ovs" --ovs-control "$ovs/vswitchd.ctl" ${FLOWKEEP_DATAPATH:+--datapath-type "$FLOWKEEP_DATAPATH"} --cni-socket "$node/cni.sock" \
    --cni-conf-dir "$CNI_CONF_DIR" --portmap "$CNI_BIN_DIR/flowkeep-portmap" \
    --traffic-mode "$TRAFFIC_MODE" --cluster-cidrs "$CLUSTER_CIDR" --service-cidrs "$SERVICE_CIDR" --services "$SERVICES" --http-listen "$PLUGIN_HTTP"
  await 60 "$NODE-netplugin" "$NETNS" "$PLUGIN_HTTP"
  registry wait_for 10 "the CNI configuration of $NODE" test -s "$CNI_CONF_DIR/10-flowkeep.conflist"
}

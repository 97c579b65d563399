package systemtests

// Real programs that change a node's host configuration: commands of disturbances. Each has directories of its own in
// place of those of this machine that it writes.

// networkd runs a real systemd-networkd for three seconds, which manages a link of its own. With a read-only /sys it does
// not wait for udev.
const networkd = `ip link add other0 type veth peer name other1 && ip link set other0 up && ip link set other1 up
unshare -m sh -ec '
mount -t tmpfs tmpfs /run
mount --bind /sys /sys
mount -o remount,bind,ro /sys
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp /run/systemd/network
chown -R systemd-network:systemd-network /run/systemd/netif
printf "[Match]\nName=other0\n[Network]\nAddress=198.51.100.9/24\n" >/run/systemd/network/10-other.network
timeout 3 /lib/systemd/systemd-networkd >/dev/null 2>&1 || [ $? = 124 ]
'
ip link del other0`

// networkManager runs a real NetworkManager for four seconds, with a bus of its own. As after its installation it
// manages every link that has no address: those of pods too.
const networkManager = `unshare -m -p -f --kill-child sh -ec '
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib/NetworkManager
mount --bind /sys /sys
mount -o remount,bind,ro /sys
mkdir -p /run/dbus /run/NetworkManager/conf.d
dbus-daemon --system --fork --nopidfile
printf "[main]\nplugins=keyfile\n[keyfile]\nunmanaged-devices=none\n" >/run/nm.conf
timeout 4 NetworkManager --debug --config /run/nm.conf --config-dir /run/nm.d --log-level ERR >/dev/null 2>&1 || [ $? = 124 ]
'`

// nftablesService loads a file as Debian's nftables.service does when it reloads. The file begins with "flush ruleset";
// behind the tables that Debian ships it has kube-proxy's, which that program restores much later.
const nftablesService = `set -e
grep -q "^flush ruleset" /etc/nftables.conf
{ cat /etc/nftables.conf
nft list tables | grep kube-proxy | while read -r _ family name; do nft list table $family $name; done
} | nft -f -
nft delete table inet filter`

// iptablesRestore loads rules as netfilter-persistent does when it reloads: the second time it removes what netplugin
// has added after the first.
const iptablesRestore = `set -e
for n in 1 2; do
for t in iptables ip6tables; do printf '%s\n' '*filter' ':INPUT ACCEPT' ':FORWARD DROP' ':OUTPUT ACCEPT' COMMIT | $t-restore; done
sleep 0.3
done`

// openIptables removes the rules of the chains that come with iptables, and has them accept.
const openIptables = `for t in iptables ip6tables; do for c in INPUT FORWARD OUTPUT; do $t -P $c ACCEPT; $t -F $c; done; done`

// ufw starts and reloads a real ufw, which drops what the node forwards.
const ufw = `unshare -m sh -ec '
mount -t tmpfs tmpfs /run
mkdir /run/etc
cp -r /etc/ufw /etc/default /run/etc
for d in ufw default; do mount --bind /run/etc/$d /etc/$d; done
ufw logging off
ufw default allow incoming
ufw --force enable
ufw reload
' 2>&1`

// firewalld runs a real firewalld, with a bus of its own, and reloads it. It is configured as docs/field.md has it. While
// its table firewalld_policy_drop exists, firewalld drops packets itself: the output ends with the longest such time.
const firewalld = `set -e
export events=$(mktemp)
unshare -m -p -f --kill-child sh -ec '
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir -p /run/dbus /run/firewalld
cp -r /etc/firewalld /run/etc
mount --bind /run/etc /etc/firewalld
dbus-daemon --system --fork --nopidfile
echo "<zone><port protocol=\"udp\" port=\"8098\"/></zone>" >/etc/firewalld/zones/public.xml
{ echo "<zone target=\"ACCEPT\">"
for i in fk-gw fk-wire fk-out; do echo "<interface name=\"$i\"/>"; done
for s in 10.244.0.0/16 fd00:10:244::/48; do echo "<source address=\"$s\"/>"; done
echo "</zone>"; } >/etc/firewalld/zones/trusted.xml
nft monitor tables | while read -r event; do echo "$(date +%s%3N) $event"; done >$events &
firewalld --nofork --nopid &
for n in $(seq 300); do if firewall-cmd --state; then break; fi; sleep 0.1; done
nft list table inet firewalld | grep -q fk-gw
nft list table inet firewalld | grep -q "fib saddr"
firewall-cmd --reload
sleep 1
firewall-cmd --reload
kill $!
wait $! || true
' 2>&1
awk '/ add table inet firewalld_policy_drop/ { began = $1 }
/ delete table inet firewalld_policy_drop/ && $1 - began > longest { longest = $1 - began }
END { print "` + droppedFor + `" longest + 0 "ms" }' $events
rm $events`

// trafficControl adds queues and filters, as a program that bounds bandwidth does; everything passes them. Both kinds are
// in small kernels too.
const trafficControl = `for l in fk-gw fk-wire fk-out $(ls /proc/sys/net/ipv4/conf | grep ^fkp); do
tc qdisc replace dev $l root tbf rate 10gbit burst 10m latency 50ms
tc qdisc add dev $l clsact 2>/dev/null || true
tc filter replace dev $l ingress pref 1 protocol all u32 match u32 0 0 classid 1:1
done`

// noTrafficControl removes what trafficControl adds.
const noTrafficControl = `for l in fk-gw fk-wire fk-out $(ls /proc/sys/net/ipv4/conf | grep ^fkp); do
tc qdisc del dev $l clsact 2>/dev/null || true
tc qdisc del dev $l root 2>/dev/null || true
done`

// removeLink deletes the link that is its argument, or renames it: the kernel's datapath does not let ports be deleted.
const removeLink = `remove() { ip link del $1 2>/dev/null || { ip link set $1 down; ip link set $1 name other1; }; }
remove`

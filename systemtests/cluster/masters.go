package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Masters are netmasters that take part in an election, in place of the one that the sandbox was booted with: one beside the API server and
// one on each of two nodes. They are called master-cp, master-node1, master-node2.
var Masters = []string{"master-cp", "master-node1", "master-node2"}

// Elect starts them, and has the nodes know all three; or, byService, only the Service that whoever leads has lead to itself.
func (c *Cluster) Elect(ctx context.Context, byService bool) error {
	address, err := c.Kubectl(ctx, "", "-n", "flowkeep-system", "get", "service", "netmaster", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	if byService {
		if err := c.masterPorts(ctx, "access: 443", "feed: 7443"); err != nil {
			return err
		}
	}
	_, err = c.script(ctx, fmt.Sprintf("service=%s known=%t", address, byService)+`
		stop netmaster
		dir=$RUN/flowkeep; pki=$dir/masters
		[ -s "$pki/server.crt" ] || { mkdir -p "$pki"; cp "$dir"/pki/ca.* "$pki/"; "$dir/bin/netmaster" pki issue --dir "$pki" --server "$NET.10,$NET.11,$NET.12,$service"; }
		servers=
		for at in cp:10 node1:11 node2:12; do
			name=${at%:*} address=$NET.${at#*:}
			servers+=,$address:7443
			start "master-$name" nsenter --net="$(ns_path "$name")" -- "$dir/bin/netmaster" --kubeconfig "$KUBECONFIG" --leader-elect --identity "master-$name" \
				--listen "$address:7443" --access-listen "$address:7444" --tls-ca "$pki/ca.crt" --tls-cert "$pki/server.crt" --tls-key "$pki/server.key" \
				--state-dir "$dir/master-$name" --advertise-address "$address"
		done
		case $known:$service in true:*:*) servers="[$service]:7443" ;; true:*) servers="$service:7443" ;; esac
		for node in node1 node2; do
			cp "$RUN/pids/.$node-netplugin.command" "$RUN/pids/.$node-netplugin.alone"
			sed -i "s/--server [^ ]*/--server ${servers#,}/" "$RUN/pids/.$node-netplugin.command"
			stop "$node-netplugin"; restart "$node-netplugin"
		done`)
	return err
}

// masterPorts are what the Service netmaster has, each "name: number".
func (c *Cluster) masterPorts(ctx context.Context, ports ...string) error {
	var list []string
	for _, p := range ports {
		name, number, _ := strings.Cut(p, ": ")
		list = append(list, fmt.Sprintf(`{"name": %q, "port": %s, "protocol": "TCP"}`, name, number))
	}
	_, err := c.Kubectl(ctx, "", "-n", "flowkeep-system", "patch", "service", "netmaster", "--type=merge", "-p", `{"spec": {"ports": [`+strings.Join(list, ", ")+"]}}")
	return err
}

// Alone undoes it: nodes forget whom they obeyed, with the rules that they had of it. The last leader's EndpointSlices would have the API server look for netmaster where there is none any more.
func (c *Cluster) Alone(ctx context.Context) error {
	_, err := c.script(ctx, `
		for name in cp node1 node2; do stop "master-$name"; rm -f "$RUN/pids/.master-$name.command"; done
		restart netmaster
		for node in node1 node2; do
			stop "$node-netplugin"
			mv "$RUN/pids/.$node-netplugin.alone" "$RUN/pids/.$node-netplugin.command"
			rm "$RUN/$node/flowkeep/state/rules.db"
			restart "$node-netplugin"
		done`)
	_, deleted := c.Kubectl(ctx, "", "-n", "flowkeep-system", "delete", "--ignore-not-found", "endpointslice/netmaster-leader-ipv4", "endpointslice/netmaster-leader-ipv6", "configmap/netmaster-standbys")
	return errors.Join(err, deleted, c.masterPorts(ctx, "access: 443"))
}

// AskMaster runs netctl, past the API server, with the netmaster that is named.
func (c *Cluster) AskMaster(ctx context.Context, master string, args ...string) (string, error) {
	return c.script(ctx, fmt.Sprintf(`declare -A at=([master-cp]=10 [master-node1]=11 [master-node2]=12)
		. "$RUN/flowkeep/direct.env"; netctl --server "$NET.${at[%s]}:7443" %s`, master, strings.Join(args, " ")))
}

// Leader is who holds the Lease, and its epoch.
func (c *Cluster) Leader(ctx context.Context) (name string, epoch int, err error) {
	text, err := c.Kubectl(ctx, "", "-n", "flowkeep-system", "get", "lease", "netmaster", "-o", "jsonpath={.spec.holderIdentity} {.spec.leaseTransitions}")
	if err != nil {
		return "", 0, err
	}
	if n, _ := fmt.Sscan(text, &name, &epoch); n != 2 {
		return "", 0, fmt.Errorf("nobody leads: %q", text)
	}
	return name[:strings.LastIndexByte(name, '-')], epoch + 1, nil
}

// Serves fails unless a netmaster serves this many nodes.
func (c *Cluster) Serves(ctx context.Context, master string, nodes int) error {
	text, err := c.script(ctx, fmt.Sprintf(`in_ns %s "$BIN/probe" get http://127.0.0.1:9440/metrics`, strings.TrimPrefix(master, "master-")))
	if err != nil {
		return err
	}
	n, err := sumMetric(text, "flowkeep_netmaster_feed_nodes")
	if err == nil && int(n) != nodes {
		err = fmt.Errorf("%s serves %v nodes", master, n)
	}
	return err
}

// StandsBy fails unless a netmaster serves nobody.
func (c *Cluster) StandsBy(ctx context.Context, master string) error {
	text, err := c.script(ctx, fmt.Sprintf(`in_ns %s "$BIN/probe" get http://127.0.0.1:9440/metrics`, strings.TrimPrefix(master, "master-")))
	if err != nil {
		return err
	}
	for _, name := range []string{"flowkeep_netmaster_leads", "flowkeep_netmaster_epoch", "flowkeep_netmaster_feed_nodes"} {
		if n, err := sumMetric(text, name); err != nil || n != 0 {
			return errors.Join(err, fmt.Errorf("%s: %s is %v", master, name, n))
		}
	}
	return nil
}

// CutOff has a netmaster not reach the API server any more, or again; where it is one of a node, the node's own requests are cut off too. fromNodes has it
// reach no node either.
func (c *Cluster) CutOff(ctx context.Context, master string, off, fromNodes bool) error {
	what := "add table ip cutoff; add chain ip cutoff out { type filter hook output priority 0; }; add rule ip cutoff out tcp dport 6443 drop"
	if fromNodes {
		what += "; add rule ip cutoff out tcp sport 7443 drop"
	}
	if !off {
		what = "delete table ip cutoff"
	}
	_, err := c.script(ctx, fmt.Sprintf("in_ns %s nft '%s'", strings.TrimPrefix(master, "master-"), what))
	return err
}

// Gone fails while a recorded process runs.
func (c *Cluster) Gone(ctx context.Context, name string) error {
	_, err := c.script(ctx, fmt.Sprintf(`! alive %[1]s || die "%[1]s is running"`, name))
	return err
}

package hostport

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/node/install"
)

const (
	// settle is the time from a change until the comparison: a firewall's reload is many changes.
	settle = 100 * time.Millisecond
	// confirm is the time between two comparisons that both have to miss a pod's own rules.
	confirm = 250 * time.Millisecond
	// interval is the time between two comparisons for which there was no reason.
	interval = 30 * time.Second
	// endInterval is the time between two looks for pods that have ended.
	endInterval = time.Second
	// minGap and maxGap bound the time between two repetitions for the same pods, which doubles while they follow each
	// other within quiet.
	minGap  = 500 * time.Millisecond
	maxGap  = 30 * time.Second
	quiet   = time.Minute
	timeout = 10 * time.Second
	// parallel is how many programs portmap run at once.
	parallel = 4
)

// Config is what a keeper needs.
type Config struct {
	Program  string                      // portmap's
	Pods     func() []endpoints.Endpoint // the node's pods that have not ended
	Repaired func(pods int)              // may be nil
	// WatchFailed is called each time that the watch of portmap's tables fails. May be nil.
	WatchFailed func()
	Logger      *slog.Logger

	// Tests replace them.
	list  func(context.Context) (*byFamily, error)
	run   func(ctx context.Context, command string, e *endpoints.Endpoint) error
	watch func(ctx context.Context, table string, changed func()) error
}

// Keep restores rules of hostPorts until ctx ends.
func Keep(ctx context.Context, cfg Config) {
	k := &keeper{Config: cfg, ledger: newLedger()}
	if k.list == nil {
		k.list, k.run, k.watch = listTables, k.portmap, hostnet.WatchTable
	}
	changed := make(chan struct{}, 1)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { k.follow(ctx, changed) })
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-changed:
			if at := max(settle, time.Until(k.floor)); time.Until(k.due) > at {
				k.due = time.Now().Add(at)
			}
		case <-next.C:
		case <-ctx.Done():
			return
		}
		next.Reset(k.compare(ctx))
	}
}

type keeper struct {
	Config
	ledger  *ledger
	gap     time.Duration // before the next repetition
	last    time.Time     // of the last repetition
	due     time.Time     // the next comparison
	floor   time.Time     // changes lead to no comparison before
	problem string        // logged last
}

// follow reports changes of portmap's tables.
func (k *keeper) follow(ctx context.Context, changed chan<- struct{}) {
	problem := ""
	for ctx.Err() == nil {
		err := k.watch(ctx, table, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		if err != nil && k.WatchFailed != nil {
			k.WatchFailed()
		}
		if err != nil && err.Error() != problem {
			problem = err.Error()
			k.Logger.Error("could not watch the rules of hostPorts; they are compared every 30 s", "error", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// compare compares once, and returns the time until the next comparison.
func (k *keeper) compare(ctx context.Context) time.Duration {
	pods := slices.DeleteFunc(k.Pods(), func(e endpoints.Endpoint) bool {
		return len(e.HostPorts) == 0 || !e.Realised || e.Superseded
	})
	next := min(k.end(ctx, pods), time.Until(k.due))
	if next > 0 {
		return next
	}
	if k.due = time.Now().Add(interval); len(pods) == 0 {
		k.ledger.begun = true
		return endInterval
	}
	have, err := k.list(ctx)
	if err != nil {
		k.report(err)
		return endInterval
	}
	add, again := k.ledger.compare(have, pods)
	if again {
		k.floor = time.Now().Add(confirm)
		k.due = k.floor
		return confirm
	}
	k.repeat(ctx, have, add)
	return min(endInterval, time.Until(k.due))
}

// end runs portmap for pods of repeated ADDs that have ended.
func (k *keeper) end(ctx context.Context, pods []endpoints.Endpoint) time.Duration {
	for _, e := range k.ledger.ended(pods) {
		if err := k.run(ctx, "DEL", &e); err != nil {
			k.report(err)
			continue
		}
		k.ledger.deleted(e.ContainerID)
	}
	return endInterval
}

// repeat runs portmap for pods without rules.
func (k *keeper) repeat(ctx context.Context, have *byFamily, add []endpoints.Endpoint) {
	if len(add) == 0 {
		k.report(nil)
		return
	}
	if time.Since(k.last) > quiet {
		k.gap = 0
	}
	k.gap, k.last = min(max(2*k.gap, minGap), maxGap), time.Now()
	k.floor = k.last.Add(k.gap)
	err := k.each(add, func(e *endpoints.Endpoint) error {
		if have.four.own[e.ContainerID]+have.six.own[e.ContainerID] > 0 { // ADD would add them once more
			if err := k.run(ctx, "DEL", e); err != nil {
				return err
			}
		}
		return k.run(ctx, "ADD", e)
	})
	if k.report(err); err != nil {
		k.due = k.floor
		return
	}
	var names []string
	for i := range add {
		names = append(names, add[i].ID())
	}
	slices.Sort(names)
	k.Logger.Warn("another program removed rules of hostPorts; repaired", "pods", strings.Join(names, ", "))
	if k.Repaired != nil {
		k.Repaired(len(add))
	}
}

// each calls do for all pods, a few at once, and returns one of the errors.
func (k *keeper) each(pods []endpoints.Endpoint, do func(*endpoints.Endpoint) error) (err error) {
	var all sync.WaitGroup
	errs, slots := make(chan error, len(pods)), make(chan struct{}, parallel)
	for i := range pods {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs <- do(&pods[i])
		})
	}
	all.Wait()
	close(errs)
	for e := range errs {
		if e != nil {
			err = e
		}
	}
	return err
}

// report logs a failure once.
func (k *keeper) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != k.problem {
		k.Logger.Error("could not restore rules of hostPorts; it is tried again", "error", err)
	}
	k.problem = text
}

// listTables reads portmap's tables. One that is not there has no rules.
func listTables(ctx context.Context) (*byFamily, error) {
	out := new(byFamily)
	for family, into := range map[string]*rules{"ip": &out.four, "ip6": &out.six} {
		text, err := nft(ctx, "list", "tables", family)
		if err != nil {
			return nil, err
		}
		if !strings.Contains(string(text), `"`+table+`"`) {
			continue
		}
		text, err = nft(ctx, "list", "table", family, table)
		if err != nil && strings.Contains(err.Error(), "No such file or directory") { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		if *into, err = parse(text); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func nft(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return run(exec.CommandContext(ctx, "nft", append([]string{"--json"}, args...)...))
}

func run(cmd *exec.Cmd) ([]byte, error) {
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil { // CNI plugins write their errors to the standard output
		text := strings.TrimSpace(problem.String() + string(out))
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, text)
	}
	return out, nil
}

// portmap runs the plugin as the container runtime does.
func (k *keeper) portmap(ctx context.Context, command string, e *endpoints.Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stdin, err := configuration(e)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, k.Program)
	cmd.Env = append(cmd.Environ(),
		"CNI_COMMAND="+command,
		"CNI_CONTAINERID="+e.ContainerID,
		"CNI_IFNAME="+e.IfName,
		"CNI_NETNS="+e.NetNS,
		"CNI_PATH="+filepath.Dir(k.Program),
	)
	cmd.Stdin = bytes.NewReader(stdin)
	if _, err := run(cmd); err != nil {
		return fmt.Errorf("repeat %s of pod %s: %w", command, e.ID(), err)
	}
	return nil
}

// configuration returns what the container runtime gives portmap for a pod.
func configuration(e *endpoints.Endpoint) ([]byte, error) {
	const version = "1.0.0"
	result := &current.Result{
		CNIVersion: version,
		Interfaces: []*current.Interface{{Name: e.IfName, Mac: e.MAC.String(), Sandbox: e.NetNS}},
	}
	for _, a := range e.Addresses {
		result.IPs = append(result.IPs, &current.IPConfig{
			Interface: current.Int(0),
			Address:   net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		})
	}
	type runtime struct {
		PortMappings []endpoints.PortMapping `json:"portMappings"`
	}
	return json.Marshal(struct {
		CNIVersion string       `json:"cniVersion"`
		Name       string       `json:"name"`
		Type       string       `json:"type"`
		Backend    string       `json:"backend"`
		SNAT       bool         `json:"snat"`
		Runtime    runtime      `json:"runtimeConfig"`
		PrevResult types.Result `json:"prevResult"`
	}{
		CNIVersion: version,
		Name:       "flowkeep",
		Type:       install.Portmap,
		Backend:    install.BackendNftables,
		SNAT:       true,
		Runtime:    runtime{e.HostPorts},
		PrevResult: result,
	})
}

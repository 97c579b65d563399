package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// Way is what a client sends to a server: its address, and where to. ICMP has no port.
type Way struct {
	Proto    string
	From, To netip.Addr
	Port     int
}

// Arrival is what came in along a way; see the probe's.
type Arrival struct {
	Packets uint64    `json:"packets"`
	First   time.Time `json:"first,omitzero"`
	Last    time.Time `json:"last,omitzero"`
}

// Arrivals counts what comes in along the ways on eth0 of the server's network namespace, from when it returns until the function that it
// returns is called.
func (c *Cluster) Arrivals(ctx context.Context, netns string, ways []Way) (stop func() ([]Arrival, error), err error) {
	args := []string{c.probe(), "arrivals"}
	for _, w := range ways {
		args = append(args, w.Proto, w.From.String(), Expectation{Proto: w.Proto, To: w.To, Port: w.Port}.target())
	}
	cmd := inNS(ctx, netns, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(out)
	if first, err := lines.ReadString('\n'); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("listen in %s: %q: %w", netns, first, err)
	}
	return func() (seen []Arrival, err error) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return nil, err
		}
		if err := json.NewDecoder(lines).Decode(&seen); err != nil {
			return nil, fmt.Errorf("what came in %s: %w", netns, err)
		}
		return seen, cmd.Wait()
	}, nil
}

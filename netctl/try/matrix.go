package try

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Verdicts of a cell.
const (
	Open  = "open"
	Shut  = "shut"
	Mixed = "mixed" // one address family is open, the other shut
)

// Cell is a measured connection.
type Cell struct {
	From    string `json:"from"` // namespace/name
	To      string `json:"to"`   // namespace/name:port, with /udp behind the port of UDP
	Verdict string `json:"verdict"`
}

// Measure connects from each pod to each port of every other, over each address family that both have. A target that
// does not answer within the timeout is shut.
func Measure(ctx context.Context, pods []*Pod, timeout time.Duration) ([]Cell, error) {
	rows := make([][]Cell, len(pods))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for i, from := range pods {
		group.Go(func() (err error) {
			rows[i], err = measureFrom(ctx, from, pods, timeout)
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(rows...), err
}

// measureFrom runs one process in the pod's network namespace for all targets.
func measureFrom(ctx context.Context, from *Pod, pods []*Pod, timeout time.Duration) (cells []Cell, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"--net=" + from.path(), "--", self, "try", "connect", "--probe-timeout", timeout.String()}
	var of []int // the cell of each target
	for _, to := range pods {
		if to == from {
			continue
		}
		for _, port := range to.Ports {
			for _, addr := range to.Addresses {
				args = append(args, port.Protocol+":"+net.JoinHostPort(addr.String(), strconv.Itoa(int(port.Number))))
				of = append(of, len(cells))
			}
			cells = append(cells, Cell{From: from.ID(), To: to.ID() + ":" + port.String()})
		}
	}
	if len(of) == 0 {
		return cells, nil
	}
	text, err := exec.CommandContext(ctx, "nsenter", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("connect from %s: %w", from.ID(), err)
	}
	verdicts := strings.Fields(string(text))
	if len(verdicts) != len(of) {
		return nil, fmt.Errorf("connect from %s: %d verdicts for %d targets", from.ID(), len(verdicts), len(of))
	}
	for i, v := range verdicts {
		switch c := &cells[of[i]]; c.Verdict {
		case "", v:
			c.Verdict = v
		default:
			c.Verdict = Mixed
		}
	}
	return cells, nil
}

// Expectation is a line of a file of expected verdicts: FROM TO VERDICT, where * stands for any pod or port.
type Expectation struct {
	Line              int
	From, To, Verdict string
}

// ReadExpected reads a file of expected verdicts. Text behind # is a comment.
func ReadExpected(name string, r io.Reader) (list []Expectation, err error) {
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		switch {
		case len(fields) == 0:
			continue
		case len(fields) != 3:
			return nil, fmt.Errorf("%s, line %d: write FROM TO VERDICT, such as: shop/web shop/api:8080 open", name, n)
		case fields[2] != Open && fields[2] != Shut && fields[2] != Mixed:
			return nil, fmt.Errorf("%s, line %d: verdict %q: write open, shut or mixed", name, n, fields[2])
		}
		list = append(list, Expectation{Line: n, From: fields[0], To: fields[1], Verdict: fields[2]})
	}
	return list, lines.Err()
}

// matches reports whether an expectation is about a cell.
func (e *Expectation) matches(c *Cell) bool {
	return (e.From == "*" || e.From == c.From) && (e.To == "*" || e.To == c.To)
}

// Difference is a cell that is not as expected. Expected is empty where no line is about the cell.
type Difference struct {
	Cell
	Expected string `json:"expected"`
}

// Differences compares cells with expectations, of which the last that matches counts. It also returns the expectations
// that match no cell.
func Differences(cells []Cell, expected []Expectation) (different []Difference, unused []Expectation) {
	used := make([]bool, len(expected))
	for i := range cells {
		want := ""
		for j := range expected {
			if expected[j].matches(&cells[i]) {
				want, used[j] = expected[j].Verdict, true
			}
		}
		if want != cells[i].Verdict {
			different = append(different, Difference{cells[i], want})
		}
	}
	for j := range expected {
		if !used[j] {
			unused = append(unused, expected[j])
		}
	}
	return different, unused
}

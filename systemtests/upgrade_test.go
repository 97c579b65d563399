package systemtests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// netplugin starts while neither netmaster nor the API server can be asked: what it has on its disk is what is in force.
func TestNetpluginStartsAlone(t *testing.T) {
	s := newScene(t)
	for _, name := range []string{"apiserver", "netmaster", "node1-netplugin"} {
		s.again(name)
	}
	s.unharmed(func() {
		for _, name := range []string{"netmaster", "apiserver"} {
			s.must(s.Kill(s.ctx, name))
		}
		s.must(s.Kill(s.ctx, "node1-netplugin"))
		s.must(s.Start(s.ctx, "node1-netplugin"))
		s.must(cluster.Until(s.ctx, 30*time.Second, func() error { return s.lacksOnlyNetmaster("node1-netplugin") }))
		for _, name := range []string{"apiserver", "netmaster"} {
			s.must(s.Start(s.ctx, name))
		}
		s.must(s.AwaitReady(s.ctx, "netmaster", 60*time.Second))
		s.must(s.AwaitReady(s.ctx, "node1-netplugin", 30*time.Second))
	})
	s.watching()
	s.stillEnforces()
}

// lacksOnlyNetmaster: all else of what it takes to be ready is there.
func (s *scene) lacksOnlyNetmaster(name string) error {
	err := s.AwaitReady(s.ctx, name, 0)
	switch {
	case err == nil:
		return errors.New(name + " is ready without netmaster")
	case !strings.Contains(err.Error(), ": netmaster: rpc error") || strings.Contains(err.Error(), "; network: ") || strings.Contains(err.Error(), "; switch: "):
		return err
	}
	return nil
}

// netplugin starts before its switch, which comes back without flows: nothing that is denied passes, and all comes back.
func TestNetpluginStartsBeforeTheSwitch(t *testing.T) {
	s := newScene(t)
	s.again("node1-vswitchd")
	s.again("node1-netplugin")
	s.watch(0, s.refused, func() {
		s.must(s.Kill(s.ctx, "node1-netplugin"))
		s.must(s.Kill(s.ctx, "node1-vswitchd"))
		s.must(s.Start(s.ctx, "node1-netplugin"))
		time.Sleep(2 * time.Second)
		s.must(s.Start(s.ctx, "node1-vswitchd"))
		s.must(s.AwaitReady(s.ctx, "node1-netplugin", 30*time.Second))
	})
	s.settles(s.allowed, s.refused)
	s.stillEnforces()
}

var (
	tableOf  = regexp.MustCompile(`(\btable=|goto_table:|resubmit\(,)(\d+)`)
	cookieOf = regexp.MustCompile(`cookie=0xf101`)
)

// otherLayout makes of a node's flows those of another version: all tables but the first elsewhere, and other cookies.
func (s *scene) otherLayout(node string) (flows int) {
	s.Helper()
	socket := "unix:" + filepath.Join(s.Dir, node, "flowkeep", "ovs", "fk0.mgmt")
	old, err := s.Flows(s.ctx, node)
	s.must(err)
	var text strings.Builder
	for _, f := range old {
		line := tableOf.ReplaceAllStringFunc(f.Text, func(m string) string {
			part := tableOf.FindStringSubmatch(m)
			if n, err := strconv.Atoi(part[2]); err == nil && n > 0 {
				return part[1] + strconv.Itoa(n+100)
			}
			return m
		})
		text.WriteString(cookieOf.ReplaceAllString(line, "cookie=0xf1fe") + "\n")
	}
	file := filepath.Join(s.TempDir(), "flows")
	s.must(os.WriteFile(file, []byte(text.String()), 0o600))
	if out, err := exec.CommandContext(s.ctx, "ovs-ofctl", "-O", "OpenFlow13", "replace-flows", socket, file).CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	return len(old)
}

func (s *scene) onlyOwnLayout() error {
	flows, err := s.Flows(s.ctx, "node1")
	if err != nil {
		return err
	}
	for _, f := range flows {
		if !strings.HasPrefix(f.Text, "cookie=0xf101") {
			return fmt.Errorf("left of the other layout: %s", f.Text)
		}
	}
	return nil
}

// A node is upgraded to a version whose tables and cookies are others: nothing is opened and nothing cut on the way.
func TestUpgradeToAnotherTableLayout(t *testing.T) {
	s := newScene(t)
	s.again("node1-netplugin")
	s.must(s.Kill(s.ctx, "node1-netplugin"))
	if s.otherLayout("node1") < 20 {
		t.Fatal("hardly any flows: nothing would be shown")
	}
	s.settles(s.allowed, s.refused) // as the version before has it
	s.watch(stall, append(s.allowed, s.refused...), func() {
		s.must(s.Start(s.ctx, "node1-netplugin"))
		s.must(s.AwaitReady(s.ctx, "node1-netplugin", 30*time.Second))
		s.must(cluster.Until(s.ctx, 20*time.Second, s.onlyOwnLayout))
		time.Sleep(time.Second)
	})
	s.stillEnforces()
}

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

// TestRun_EtcdRestored restores the etcd of a hub from a backup. A controller that runs ends; the next one sends what the
// backup has and what came after the restore, and nothing that came after the backup. No spoke responds, so works do not go
// beyond questions.
func TestRun_EtcdRestored(t *testing.T) {
	if why := apitest.Missing(); why != "" {
		t.Skip(why)
	}
	server, cfg, err := newHub()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	h := newBareWorld(t, cfg)
	h.furnish(1)
	h.gateway("web", "edge", "all")
	h.policy("LimitPolicy", "kept", 5, "web")
	r := h.start()
	h.expect(1, "Namespace/"+h.id, "Gateway/web?", "LimitPolicy/kept?")
	h.must(server.Backup())
	for i := range 100 {
		h.parameters(fmt.Sprintf("lost%d", i), "a: b")
	}
	h.policy("LimitPolicy", "lost", 6, "web")
	h.expect(1, "Namespace/"+h.id, "Gateway/web?", "LimitPolicy/kept?", "LimitPolicy/lost?")
	r.killed = true
	h.must(server.Restore())
	select {
	case <-r.ended:
	case <-time.After(slow.Stretch(time.Minute)):
		t.Fatal("the restore was not noticed")
	}
	if !errors.Is(r.err, etcdrestore.ErrRestored) && !strings.Contains(fmt.Sprint(r.err), "the Lease was lost") {
		t.Error(r.err) // the Lease is lost where the API server takes longer than 20 s to start
	}
	h.policy("LimitPolicy", "new", 7, "web")
	h.start()
	h.expect(1, "Namespace/"+h.id, "Gateway/web?", "LimitPolicy/kept?", "LimitPolicy/new?")
}

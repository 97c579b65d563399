package verdicts

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/ca"
	"github.com/flowkeep/flowkeep/netmaster/ca/catest"
	"github.com/flowkeep/flowkeep/netplugin/node/certificates"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// vouches is an API server that vouches for every token as of node1's netplugin.
type vouches struct{}

func (vouches) Review(context.Context, string) (*ca.Verdict, error) {
	return &ca.Verdict{Authenticated: true, Audiences: []string{"flowkeep"}, User: authenticationv1.UserInfo{Username: "system:serviceaccount:flowkeep-system:netplugin",
		Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {"node1"}, "authentication.kubernetes.io/pod-name": {"netplugin-x"}}}}, nil
}

// A node gets its certificate at netmaster's door with nothing but a token and the published bundle, and both trust each other with it.
func TestANodeGetsItsCertificate(t *testing.T) {
	log, store, dir := slog.New(slog.DiscardHandler), new(catest.Store), t.TempDir()
	keeper := ca.New(ca.Config{Store: store, Lives: ca.Lives{Leaf: time.Hour, Authority: 24 * time.Hour, Overlap: time.Hour}, Logger: log})
	must(t, keeper.Open(t.Context(), func(string) {}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	door := ca.NewDoor(ca.DoorConfig{Reviewer: vouches{}, Signer: keeper, ServiceAccount: "flowkeep-system:netplugin", Logger: log})
	all.Go(func() { _ = door.Serve(ctx, l, keeper) })

	claims, _ := json.Marshal(map[string]any{"sub": "system:serviceaccount:flowkeep-system:netplugin", "aud": "flowkeep", "exp": time.Now().Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{"node": map[string]any{"name": "node1"}}})
	token, bundle := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	must(t, os.WriteFile(token, []byte("e30."+base64.RawURLEncoding.EncodeToString(claims)+".c2ln"), 0o600))
	_, published, _ := store.Contents()
	must(t, os.WriteFile(bundle, published, 0o600))
	had := make(chan string, 9)
	node := certificates.New(certificates.Config{Node: "node1", Dir: dir, TokenFile: token, CAFile: bundle, Servers: []string{l.Addr().String()}, ServerName: mtls.ServiceName, Logger: log, Tell: func(reason string) { had <- reason }})
	all.Go(func() { node.Run(ctx) })
	if why := <-had; why != "" {
		t.Fatal(why)
	}
	m, err := node.Current()
	must(t, err)
	if of, ok := mtls.Node(m.Own.Leaf); !ok || of != "node1" {
		t.Errorf("it is of %s", m.Own.Leaf.Subject)
	}
	creds, err := mtls.ServerCredentials(keeper)
	must(t, err)
	client, err := mtls.ClientConfig(node, mtls.ServiceName)
	must(t, err)
	client.NextProtos = []string{"h2"}
	ours, theirs := net.Pipe()
	all.Go(func() {
		if err := tls.Client(theirs, client).Handshake(); err != nil {
			t.Error(err)
		}
	})
	conn, _, err := creds.ServerHandshake(ours)
	must(t, err)
	theirs.Close()
	conn.Close()
}

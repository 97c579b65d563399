package look

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// TestContested: what netplugin reports is read, and a server that is none or does not respond is no reason for a
// conclusion.
func TestContested(t *testing.T) {
	const text = "another program keeps changing rule 60 (by ip, started by foo)"
	for name, c := range map[string]struct {
		serve       http.HandlerFunc // nil: there is no socket
		text, error string
	}{
		"a problem": {serve: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `[{"kind": "contested", "node": "node1", "text": %q}]`, text)
		}, text: text},
		"none":          {serve: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "null") }},
		"older version": {serve: http.NotFound, error: "older version"},
		"junk": {serve: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "\xff")
		}, error: "parse"},
		"too much": {serve: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `[{"text": %q}]`, strings.Repeat("x", maxContested))
		}, error: "parse"},
		"no response": {serve: func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}, error: "deadline"},
		"absent": {},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "fk") // short: unix socket paths have 108 bytes
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			o := &Options{CNISocket: filepath.Join(dir, "s"), Each: time.Second}
			if c.serve != nil {
				l, err := net.Listen("unix", o.CNISocket)
				if err != nil {
					t.Fatal(err)
				}
				mux := http.NewServeMux()
				mux.Handle("GET "+inspect.ContestedPath, c.serve)
				server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
				go func() { _ = server.Serve(l) }()
				defer server.Close()
			}
			got := o.contested(t.Context())
			if got.Absent != (c.serve == nil) || strings.Join(got.Problems.Value, "; ") != c.text {
				t.Errorf("%+v, want %q", got, c.text)
			}
			failure := got.Problems.Error
			if (failure != "") != (c.error != "") || !strings.Contains(failure, c.error) {
				t.Errorf("error %q, want %q", failure, c.error)
			}
		})
	}
}

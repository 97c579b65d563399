package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// resultCommands are those of which exit code 1 is a result.
var resultCommands = []string{
	"status", "explain shop/web shop/db:80", "verify", "cuts", "drops", "top", "unused --since 1h", "lint", "db",
	"trace shop/web shop/db:80", "dry-run", "fleet status", "node-state diff node1",
}

func TestExitCode_OfAFailureIsNoResult(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	b := newBench(t, map[string]any{})
	for _, command := range append(resultCommands, "check", "bundle -o "+filepath.Join(t.TempDir(), "x.tar.gz")) {
		if code := run(append(strings.Fields(command), "--kubeconfig", none), &strings.Builder{}, &strings.Builder{}); code != exitTrouble {
			t.Errorf("%s without a kubeconfig: exit code %d", command, code)
		}
		readsObjects := []string{"fleet", "node-state", "bundle", "check"}
		if kind, _, _ := strings.Cut(command, " "); slices.Contains(readsObjects, kind) {
			continue // they read objects
		}
		for _, c := range []codes.Code{codes.PermissionDenied, codes.NotFound, codes.Internal} {
			b.fail(status.Error(c, "no"))
			if _, errOut, code := b.run(strings.Fields(command)...); code != exitTrouble {
				t.Errorf("%s, %v: exit code %d: %s", command, c, code, errOut)
			}
		}
	}
}

func TestExitCode_OfAResultIs1(t *testing.T) {
	b := newBench(t, map[string]any{
		inspect.AskStatus:  inspect.Status{Problems: []string{"something"}},
		inspect.AskExplain: inspect.Explained{Ways: []inspect.Way{{}}},
		inspect.AskDB:      inspect.DB{Error: "full"},
	})
	for _, command := range []string{"status", "explain shop/web shop/db:80", "db"} {
		if _, errOut, code := b.run(strings.Fields(command)...); code != exitResult {
			t.Errorf("%s: exit code %d: %s", command, code, errOut)
		}
	}
}

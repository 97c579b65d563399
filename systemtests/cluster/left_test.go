package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestLeftPods: a pod is left on a node while netplugin has a record of it, and the API server does not have it, or has
// another of its name.
func TestLeftPods(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"node1/flowkeep/state/endpoints/c1@eth0.json":     `{"namespace": "net", "name": "runs", "uid": "1", "port": 5}`,
		"node1/flowkeep/state/endpoints/c2@eth0.json":     `{"namespace": "net", "name": "deleted", "uid": "2"}`,
		"node1/flowkeep/state/endpoints/c3@eth0.json.new": `{`,
		"node2/flowkeep/state/endpoints/c4@eth0.json":     `{"namespace": "net", "name": "static", "uid": "4"}`,
		"node2/host/var/lib/flowkeep/endpoints/c5.json":   `{"namespace": "net", "name": "again", "uid": "5"}`,
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, err := readRecords(dir)
	if err != nil || len(records) != 4 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	var list podList
	if err := json.Unmarshal([]byte(`{"items": [{"metadata": {"uid": "1"}}, {"metadata": {"uid": "50", "name": "again"}},
		{"metadata": {"uid": "40", "annotations": {"kubernetes.io/config.mirror": "4"}}}]}`), &list); err != nil {
		t.Fatal(err)
	}
	if got, want := leftPods(records, list), []string{"net/deleted", "net/again"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}

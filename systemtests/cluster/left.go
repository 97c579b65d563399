package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// record is netplugin's record of a pod's interface, as far as it names the pod.
type record struct{ Namespace, Name, UID string }

// recordFiles are the patterns of the records' files below the sandbox's directory: of a node that scripts/node-up
// prepared, and of one where Flowkeep was installed by its manifests.
var recordFiles = []string{"node*/flowkeep/state/endpoints/*.json", "node*/host/var/lib/flowkeep/endpoints/*.json"}

// AwaitNoLeftPods waits until the nodes have nothing of pods that the API server no longer has. A pod without a grace
// period leaves the API server before its node ends it, and much later if the kubelet starts meanwhile. netplugin
// removes its record of a pod after the pod's flows, its port and its link.
func (c *Cluster) AwaitNoLeftPods(ctx context.Context, limit time.Duration) error {
	return Until(ctx, limit, func() error {
		records, err := readRecords(c.Dir)
		if err != nil || len(records) == 0 {
			return err
		}
		var list podList // read later than the records, so that it has the pods that were added in between
		if err := c.Get(ctx, PathOf("Pod", "", ""), &list); err != nil {
			return err
		}
		if left := leftPods(records, list); len(left) > 0 {
			return fmt.Errorf("the nodes still have pods that were deleted: %s", strings.Join(left, ", "))
		}
		return nil
	})
}

// readRecords returns the records of all nodes in a sandbox's directory.
func readRecords(dir string) (records []record, err error) {
	for _, pattern := range recordFiles {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since the directory was read
			}
			var r record
			if err == nil {
				err = json.Unmarshal(text, &r)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			records = append(records, r)
		}
	}
	return records, nil
}

// podList is a list of pods.
type podList struct{ Items []podObject }

// leftPods returns the pods, NAMESPACE/NAME, that nodes have records of and that are not in the list. A pod that was
// created again under its name has another UID.
func leftPods(records []record, list podList) (left []string) {
	for _, r := range records {
		if !slices.ContainsFunc(list.Items, func(p podObject) bool { return p.kubeletUID() == r.UID }) {
			left = append(left, r.Namespace+"/"+r.Name)
		}
	}
	return left
}

package manifests

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/watch"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const shop = `
apiVersion: v1
kind: Node
metadata: {name: node1}
spec: {podCIDRs: [10.244.1.0/24]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, image: i, ports: [{name: sql, containerPort: 5432}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {selector: {app: db}, ports: [{port: 5432}]}
`

const denied = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}}
`

// logged is the text of a log. It is safe for concurrent use.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// write writes a file into a directory as an editor does: another file takes its place.
func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// open returns a source of a directory with these manifests, which runs until the test ends.
func open(t *testing.T, dir string) (*Source, *logged) {
	t.Helper()
	log := new(logged)
	s, err := Open(slog.New(slog.NewTextHandler(log, nil)), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	return s, log
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}

// follower is netmaster's watcher on a source.
type follower struct {
	*watch.Watcher
	list watch.Lister
	all  *watch.Batch
}

func follow(t *testing.T, s *Source) *follower {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	w, err := watch.New(client, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.Keep()
	list, err := watch.NewLister(s.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	f := &follower{Watcher: w, list: list}
	until(t, "the first lists", w.Synced)
	f.all = w.Take()
	return f
}

// take adds what changed to f.all.
func (f *follower) take() *watch.Batch {
	b := f.Take()
	for id, p := range b.Policies {
		if f.all.Policies[id] = p; p == nil {
			delete(f.all.Policies, id)
		}
	}
	for id, e := range b.Endpoints {
		if f.all.Endpoints[id] = e; e == nil {
			delete(f.all.Endpoints, id)
		}
	}
	return f.all
}

// TestSource_IsWatched: netmaster's watcher sees manifests, changes of files, and nothing of invalid ones.
func TestSource_IsWatched(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "shop.yaml", shop)
	s, log := open(t, dir)
	f := follow(t, s)
	pod := f.all.Endpoints["shop/db"]
	if len(f.all.Nodes) != 1 || len(f.all.Namespaces) != 3 || pod == nil || pod.Node != "node1" || pod.UID == "" {
		t.Fatalf("%+v, pod %+v", f.all, pod)
	}
	write(t, dir, "db.yaml", denied)
	until(t, "the policy", func() bool { return f.take().Policies["shop/db"] != nil })
	if err := f.CatchUp(t.Context(), f.list); err != nil {
		t.Error(err)
	}
	write(t, dir, "db.yaml", strings.Replace(denied, "podSelector", "podSelektor", 1))
	until(t, "a log line", func() bool { return log.has("podSelektor") && log.has("db.yaml, document 1 (line 1)") })
	if f.take().Policies["shop/db"] == nil {
		t.Error("an invalid file deletes its policy")
	}
	write(t, dir, "db.yaml", denied)
	until(t, "a log line", func() bool { return log.has("valid again") })
	write(t, dir, "shop.yaml", shop[:strings.Index(shop, "---\napiVersion: v1\nkind: Pod")])
	until(t, "the pod's end", func() bool { return f.take().Endpoints["shop/db"] == nil })
	if err := os.Remove(filepath.Join(dir, "db.yaml")); err != nil {
		t.Fatal(err)
	}
	until(t, "the policy's end", func() bool { return f.take().Policies["shop/db"] == nil })
	if err := f.CatchUp(t.Context(), f.list); err != nil {
		t.Error(err)
	}
}

// TestSource_Requests: single objects, selectors, and requests that manifests cannot serve.
func TestSource_Requests(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "shop.yaml", shop)
	s, _ := open(t, dir)
	client, err := kubernetes.NewForConfig(s.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, pods := t.Context(), client.CoreV1().Pods("shop")
	pod, err := pods.Get(ctx, "db", metav1.GetOptions{})
	if err != nil || pod.Spec.Containers[0].Ports[0].ContainerPort != 5432 || pod.ResourceVersion == "" {
		t.Errorf("%+v, %v", pod, err)
	}
	if _, err := pods.Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is not there: %v", err)
	}
	for selector, want := range map[string]int{"app=db": 1, "app!=db": 0, "!app": 0} {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s: %+v, %v", selector, list, err)
		}
	}
	if err := pods.Delete(ctx, "db", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a deletion: %v", err)
	}
	if _, err := client.CoreV1().ConfigMaps("shop").List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("another kind: %v", err)
	}
}

// TestSource_OldVersion: a watch from a version whose events are gone is refused, so that the client lists again.
func TestSource_OldVersion(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "shop.yaml", shop)
	s, _ := open(t, dir)
	client, err := kubernetes.NewForConfig(s.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods("")
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.kinds["pods"].lost = s.version + 1
	s.mu.Unlock()
	_, err = pods.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("%v", err)
	}
}

// TestOpen_NamesErrors: each object that an API server would refuse is named with its file and line.
// TestRun_TruncatedFile: while a file is truncated and not yet written again, its policies stay.
func TestRun_TruncatedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "shop.yaml", shop)
		write(t, dir, "policies.yaml", denied)
		s, _ := open(t, dir)
		policies := func() int {
			time.Sleep(readInterval)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.kinds["networkpolicies"].objects)
		}
		write(t, dir, "policies.yaml", "")
		if n := policies(); n != 1 {
			t.Errorf("%d policies after the first read of the empty file, want 1", n)
		}
		write(t, dir, "policies.yaml", denied)
		if n := policies(); n != 1 {
			t.Errorf("%d policies after the file was written again, want 1", n)
		}
		write(t, dir, "policies.yaml", "")
		policies()
		if n := policies(); n != 0 {
			t.Errorf("%d policies after two reads of the empty file, want none", n)
		}
	})
}

func TestOpen_NamesErrors(t *testing.T) {
	for text, want := range map[string]string{
		strings.Replace(denied, "app: db", "app: -db-", 1):                                  "bad.yaml, document 1 (line 1): NetworkPolicy shop/db: spec.podSelector.matchLabels",
		strings.Replace(denied, "namespace: shop", "namespace: shap", 1):                    `namespaces "shap" not found`,
		shop + "---" + strings.Replace(shop, "kind: Pod", "kind: Pod\nspecs: {}", 1):        `unknown field "specs"`,
		strings.Replace(shop, "containerPort: 5432", "containerPort: 70000", 1):             "must be between 1 and 65535",
		strings.Replace(shop, "spec: {containers", "spec: {nodeName: node9, containers", 1): "there is no node node9",
		"a: b: c": "bad.yaml, document 1 (line 1)",
	} {
		dir := t.TempDir()
		if !strings.Contains(text, "kind: Namespace") {
			write(t, dir, "shop.yaml", shop)
		}
		write(t, dir, "bad.yaml", text)
		if _, err := Open(slog.New(slog.DiscardHandler), dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

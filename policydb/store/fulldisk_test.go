package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// smallDisk is a file system with little room; gone when the test ends.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k")
	if errors.Is(err, syscall.EPERM) {
		t.Skip("needs root to mount a small file system")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// While the disk is full Write goes on and what waits stays bounded; when there is room again all of it is written.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "policy.db")
	s := open(t, path)
	flush(t, s)
	fill(t, filepath.Join(dir, "filler"))
	pod := func(n int) *policy.Endpoint {
		return &policy.Endpoint{Namespace: "ns", Name: fmt.Sprintf("pod-%d", n), Labels: map[string]string{"app": fmt.Sprintf("%0200d", n)}}
	}
	put := map[string]*policy.Endpoint{}
	for i := range 500 {
		put[pod(i).ID()] = pod(i)
	}
	s.Write(Change{Endpoints: put})
	if err := s.Flush(t.Context()); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("error %v on a full disk", err)
	}
	for i := 500; i < 5000; i++ { // pods come and go
		s.Write(Change{Endpoints: map[string]*policy.Endpoint{pod(i).ID(): pod(i)}})
		s.Write(Change{Endpoints: map[string]*policy.Endpoint{pod(i).ID(): nil}})
	}
	_ = s.Flush(t.Context())
	if waiting, err := s.Problem(); err == nil || waiting != 500 {
		t.Errorf("%d changes wait for 500 pods; problem %v", waiting, err)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C { // by itself
		if waiting, err := s.Problem(); err == nil && waiting == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is written although there is room")
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, path).Load()
	if err != nil || len(got.Endpoints) != 500 {
		t.Errorf("%d pods, error %v", len(got.Endpoints), err)
	}
}

// An existing file opens on a full disk: nothing has to be written for that.
func TestOpenOnFullDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "policy.db")
	s := open(t, path)
	s.Write(Change{Namespaces: map[string]*policy.Namespace{"ns": {Name: "ns"}}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(dir, "filler"))
	s = open(t, path)
	if got, err := s.Load(); err != nil || got.Empty() || s.SetAside() != "" {
		t.Errorf("error %v, set aside %q", err, s.SetAside())
	}
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
}

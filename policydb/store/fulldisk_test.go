package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// While the disk is full Write goes on and what waits stays bounded; when there is room again all of it is written.
func TestFullDisk(t *testing.T) {
	dir := schematest.SmallDisk(t)
	path := filepath.Join(dir, "policy.db")
	s := open(t, path)
	flush(t, s)
	empty := schematest.Fill(t, dir)
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
	empty()
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
		t.Errorf("LEAK: data was lost: %d pods of 500, error %v", len(got.Endpoints), err)
	}
}

// An existing file opens on a full disk: nothing has to be written for that.
func TestOpenOnFullDisk(t *testing.T) {
	dir := schematest.SmallDisk(t)
	path := filepath.Join(dir, "policy.db")
	s := open(t, path)
	s.Write(Change{Namespaces: map[string]*policy.Namespace{"ns": {Name: "ns"}}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	schematest.Fill(t, dir)
	s = open(t, path)
	if got, err := s.Load(); err != nil || got.Empty() || s.SetAside() != "" {
		t.Errorf("error %v, set aside %q", err, s.SetAside())
	}
}

// What the system refuses in the midst of a step to another schema says nothing of the file, which stays.
func TestARefusedStepSetsNothingAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	s := open(t, path)
	s.Write(Change{Namespaces: map[string]*policy.Namespace{"ns": {Name: "ns"}}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	end := schematest.NoGrowth(t, path)
	before := schematest.Contents(t, path)
	_, err := openAs(path, &schema.Layout{Writes: layout.Writes + 1, Before: schematest.Grows})
	if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), "make this one usable") || len(schematest.SetAside(t, path)) != 0 {
		t.Errorf("error %v, set aside %q", err, schematest.SetAside(t, path))
	}
	end()
	if after := schematest.Contents(t, path); after != before {
		t.Errorf("the file was changed:\n%s", after)
	}
}

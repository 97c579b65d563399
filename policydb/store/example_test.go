package store_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// Write returns at once; Flush waits for the disk.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "policy.db")
	s, err := store.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	s.Write(store.Change{
		Namespaces: map[string]*policy.Namespace{"shop": {Name: "shop"}},
		Policies:   map[string]*policy.Policy{"shop/db": {Namespace: "shop", Name: "db"}},
	})
	if err := s.Flush(context.Background()); err != nil {
		fmt.Println(err)
	}
	s.Close()

	s, err = store.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	contents, err := s.Load()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(slices.Sorted(maps.Keys(contents.Policies)))
	// Output: [shop/db]
}

package labelcache_test

import (
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/policydb/labelcache"
)

// A value is computed once for a revision.
func ExampleCache_Do() {
	c := labelcache.New(labelcache.Config{})
	at := labelcache.Stamp{Term: 1, Revision: 7}
	compute := func(context.Context) ([]byte, labelcache.Stamp, error) {
		return []byte("10.244.1.2 10.244.1.3"), at, nil
	}
	for range 2 {
		value, _, from, err := c.Do(context.Background(), "pods/app=api", at, compute)
		fmt.Println(string(value), from, err)
	}
	// Output:
	// 10.244.1.2 10.244.1.3 engine <nil>
	// 10.244.1.2 10.244.1.3 in-process <nil>
}

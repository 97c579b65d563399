package ipam

import "testing"

func TestHasAllocated(t *testing.T) {
	dir := t.TempDir()
	a := newAllocator(t, dir, cidrs...)
	expect := func(when string, want bool) {
		t.Helper()
		if got, err := HasAllocated(dir); got != want || err != nil {
			t.Errorf("%s: %v (%v), want %v", when, got, err, want)
		}
	}
	expect("without a store", false)
	if err := a.Release("c1", "eth0"); err != nil { // of a pod of another plugin; creates the store
		t.Fatal(err)
	}
	expect("before the first pod", false)
	allocate(t, a, "c1")
	expect("with a pod", true)
	if err := a.Release("c1", "eth0"); err != nil {
		t.Fatal(err)
	}
	expect("after the last pod", true)
}

package service

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestClaim_Compare: the kind decides first, then the age of the Service, then its name.
func TestClaim_Compare(t *testing.T) {
	want := []Claim{
		{ClusterIP, 9, "z/z"},
		{NodePort, 9, "z/a"},
		{NodePort, 9, "z/b"},
		{LoadBalancerIP, 9, "y/y"},
		{ExternalIP, 0, "b/b"},
		{ExternalIP, 1, "c/c"},
		{ExternalIP, 2, "a/a"},
	}
	for seed := range uint64(20) {
		got := slices.Clone(want)
		r := rand.New(rand.NewPCG(seed, 1))
		r.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		if slices.SortFunc(got, Claim.Compare); !slices.Equal(got, want) {
			t.Errorf("seed %d: %v, want %v", seed, got, want)
		}
	}
}

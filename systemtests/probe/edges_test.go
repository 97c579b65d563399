package main

import (
	"slices"
	"testing"
)

func TestEdges(t *testing.T) {
	questions := make([]question, 60)
	for i := range questions {
		questions[i].sent = int64(i)
		questions[i].answered = i >= 5 && i < 30 && i != 12 || i >= 50 // 12 is lost, no edge
	}
	want := []Edge{{5, true}, {30, false}, {50, true}}
	if got := edges(questions); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestConnects(t *testing.T) {
	s := server1(t)
	if err := connectsCommand([]string{"-for", "50ms", "-workers", "2", s.addr()}); err != nil {
		t.Error(err)
	}
	if connectsCommand([]string{"-workers", "0", s.addr()}) == nil || connectsCommand(nil) == nil {
		t.Error("no workers, or no address, should be refused")
	}
}

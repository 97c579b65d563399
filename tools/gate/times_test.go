package main

import (
	"slices"
	"strings"
	"testing"
)

func TestReadEvents_Times(t *testing.T) {
	text := eventText("run TestA", "output TestA     setup_test.go:9: TIME 0.83 of the limit: x: 83ms, limit 100ms at slowness 1, timers 0s late",
		"output TestA     setup_test.go:9: LATE TIME 1.20 of the limit: y: 120ms", "output TestA TIME is short", "fail TestA", "fail")
	want := []Timing{
		{"TestA", 0.83, "0.83 of the limit: x: 83ms, limit 100ms at slowness 1, timers 0s late"},
		{"TestA", 1.2, "1.20 of the limit: y: 120ms"},
	}
	if got := readEvents("quiet", strings.NewReader(text)).Times; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWorst(t *testing.T) {
	var times []Timing
	for name, part := range map[string]float64{"TestA/x": 0.4, "TestA/y": 0.9, "TestB": 0.1, "TestC": 1.2, "TestD": 0.5, "TestE": 0.2, "TestF": 0.3} {
		times = append(times, Timing{Test: name, Part: part})
	}
	var got []string
	for _, one := range worst(times) {
		got = append(got, one.Test)
	}
	if want := []string{"TestC", "TestA", "TestD", "TestF", "TestE"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := worst(nil); len(got) != 0 {
		t.Errorf("without times: %v", got)
	}
}

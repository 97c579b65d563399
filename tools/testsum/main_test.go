package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		name, in                string
		passed, failed, skipped int
		says                    string
	}{
		{"all well", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"skip","Package":"p","Test":"B"}
{"Action":"pass","Package":"p","Elapsed":1}`, 1, 0, 1, "ok p: 1 passed, 1 skipped"},
		{"one fails", `{"Action":"output","Package":"p","Test":"A","Output":"wanted 1\n"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`, 0, 1, 0, "wanted 1"},
		{"does not build", `{"ImportPath":"p","Action":"build-output","Output":"x.go:1: no\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"fail","Package":"p","FailedBuild":"p"}`, 0, 1, 0, "x.go:1: no"},
		{"panics", `{"Action":"pass","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"B","Output":"panic: oh\n"}
{"Action":"fail","Package":"p"}`, 1, 1, 0, "panic: oh"},
		{"cut short", `{"Action":"pass","Package":"p","Test":"A"}
{"Action":"fail","Package":"p","Test":"B"}`, 1, 2, 0, "never ended"},
		{"long", `{"Action":"pass","Package":"p","Test":"A","Elapsed":1}
{"Action":"pass","Package":"p","Test":"B/c","Elapsed":70}
{"Action":"pass","Package":"p","Test":"B","Elapsed":70}
{"Action":"pass","Package":"p","Elapsed":71}`, 3, 0, 0, "its longest: B 70 s, A 1 s"},
		{"no tests", `{"Action":"skip","Package":"p"}`, 0, 0, 0, ""},
		{"not JSON", "go: no such thing\n", 0, 0, 0, "go: no such thing"},
	} {
		var out strings.Builder
		s := newSummary(&out)
		if err := s.read(strings.NewReader(c.in)); err != nil {
			t.Fatal(err)
		}
		if s.passed != c.passed || s.failed != c.failed || s.skipped != c.skipped || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: %d passed, %d failed, %d skipped; printed %q", c.name, s.passed, s.failed, s.skipped, out.String())
		}
	}
}

// A run that takes hours tells what has passed.
func TestEachIsNamed(t *testing.T) {
	var out strings.Builder
	s := newSummary(&out)
	s.each = true
	if err := s.read(strings.NewReader(`{"Action":"pass","Package":"p","Test":"A","Elapsed":3}`)); err != nil || !strings.Contains(out.String(), "passed A (3.0 s)\n") {
		t.Errorf("%v, printed %q", err, out.String())
	}
}

// What is wrong is in the digest, at whichever end; what was around it is not.
func TestDigest(t *testing.T) {
	var in strings.Builder
	for _, said := range []string{"=== RUN A", "wanted 1", strings.Repeat("noise ", 500), "and 2", background + ":", "logs"} {
		fmt.Fprintf(&in, `{"Action":"output","Package":"p","Test":"A","Output":"%s\n"}`+"\n", said)
	}
	in.WriteString(`{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`)
	var out strings.Builder
	s := newSummary(&out)
	if err := s.read(strings.NewReader(in.String())); err != nil || len(s.digests) != 1 {
		t.Fatal(err, s.digests)
	}
	d := s.digests[0]
	if !strings.Contains(d, "FAILED p A") || !strings.Contains(d, "wanted 1") || !strings.Contains(d, "and 2") || strings.Contains(d, "logs") || len(d) > 1600 {
		t.Errorf("%d: %s", len(d), d)
	}
}

// What passed says something only where it is asked to.
func TestSaid(t *testing.T) {
	const in = `{"Action":"output","Package":"p","Test":"A","Output":"=== RUN   A\n"}
{"Action":"output","Package":"p","Test":"A","Output":"p50 3 ms\n"}
{"Action":"output","Package":"p","Test":"A","Output":"--- PASS: A (0.00s)\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}`
	for said, want := range map[bool]string{true: "p50 3 ms\nok p: 1 passed, 0 skipped, 0.0 s\n", false: "ok p: 1 passed, 0 skipped, 0.0 s\n"} {
		var out strings.Builder
		s := newSummary(&out)
		s.said = said
		if err := s.read(strings.NewReader(in)); err != nil || out.String() != want {
			t.Errorf("said %v: %v, %q, want %q", said, err, out.String(), want)
		}
	}
}

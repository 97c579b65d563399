// Testsum reads `go test -json` and prints a line a package, and the output of what failed. With -tally it appends
// "PASSED FAILED SKIPPED" to a file, with -digest a few lines of each test that failed: what is to be read at the end of a
// long log; with -each it prints a line a passed test too, with -said what those said. It fails if anything failed, a package that did not build or ran no test to its end included.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	tally := flag.String("tally", "", "append the counts to this file")
	digest := flag.String("digest", "", "append the ends of failures to this file")
	each := flag.Bool("each", false, "name each test as it passes")
	said := flag.Bool("said", false, "print what tests that passed have said, as tables")
	flag.Parse()
	s := newSummary(os.Stdout)
	s.each, s.said = *each, *said
	err := s.read(os.Stdin)
	if err == nil && *tally != "" {
		err = appendText(*tally, fmt.Sprintf("%d %d %d\n", s.passed, s.failed, s.skipped))
	}
	if err == nil && *digest != "" {
		err = appendText(*digest, strings.Join(s.digests, ""))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	if s.failed > 0 {
		os.Exit(1)
	}
}

func appendText(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Close()
}

// event is one line of test2json's (go doc test2json), or of a build's (go help buildjson).
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

type result struct {
	passed, failed, skipped int
	output                  map[string][]string // by test; "" is the package itself
	took                    []event             // tests, as they ended
}

type summary struct {
	w                       io.Writer
	each                    bool // a line a passed test
	said                    bool // what it said
	passed, failed, skipped int
	packages                map[string]*result
	build                   []string // the compiler's output so far
	digests                 []string // of what failed
}

func newSummary(w io.Writer) *summary { return &summary{w: w, packages: map[string]*result{}} }

// read takes all events; a line that is none is passed on.
func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line)
		}
		if err == io.EOF {
			return s.end()
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		fmt.Fprint(s.w, line)
		return
	}
	if e.Package == "" {
		s.build = append(s.build, e.Output)
		return
	}
	p := s.packages[e.Package]
	if p == nil {
		p = &result{output: map[string][]string{}}
		s.packages[e.Package] = p
	}
	switch {
	case e.Action == "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case e.Test != "":
		s.testDone(p, e)
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		s.packageDone(p, e)
	}
}

func (s *summary) testDone(p *result, e event) {
	switch e.Action {
	case "pass":
		p.passed++
		if s.each {
			fmt.Fprintf(s.w, "passed %s (%.1f s)\n", e.Test, e.Elapsed)
		}
		if s.said {
			for _, line := range reason(p.output[e.Test]) {
				fmt.Fprintln(s.w, line)
			}
		}
	case "skip":
		p.skipped++
		fmt.Fprintf(s.w, "skipped %s %s: %s\n", e.Package, e.Test, strings.TrimSpace(strings.Join(reason(p.output[e.Test]), " ")))
	case "fail":
		p.failed++
		fmt.Fprintf(s.w, "FAILED %s %s (%.1f s)\n%s", e.Package, e.Test, e.Elapsed, strings.Join(p.output[e.Test], ""))
		s.digests = append(s.digests, fmt.Sprintf("FAILED %s %s (%.1f s)\n%s", e.Package, e.Test, e.Elapsed, digestOf(p.output[e.Test])))
	default:
		return
	}
	if !strings.Contains(e.Test, "/") {
		p.took = append(p.took, e)
	}
	delete(p.output, e.Test)
}

// longPackage is how many seconds a package may take until its longest tests are named, of which a suite can be kept lean.
const longPackage = 60

func (p *result) longest() string {
	const most = 8
	slices.SortStableFunc(p.took, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	var list []string
	for _, e := range p.took[:min(len(p.took), most)] {
		list = append(list, fmt.Sprintf("%s %.0f s", e.Test, e.Elapsed))
	}
	return strings.Join(list, ", ")
}

// background begins what a test that failed tells of its surroundings, after what is wrong.
const background = "what was around it"

// digestOf is the beginning and the end of what a test said until it told of its surroundings.
func digestOf(output []string) string {
	const most = 700
	lines := reason(output)
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, background) }); i >= 0 {
		lines = lines[:i]
	}
	text := strings.Join(lines, "\n")
	if len(text) > 2*most {
		text = text[:most] + "\n[…]\n" + text[len(text)-most:]
	}
	return strings.ToValidUTF8(text, "") + "\n"
}

// reason leaves the frame of a test's output out.
func reason(output []string) (list []string) {
	for _, line := range output {
		if text := strings.TrimSpace(line); !strings.HasPrefix(text, "===") && !strings.HasPrefix(text, "---") {
			list = append(list, text)
		}
	}
	return list
}

func (s *summary) packageDone(p *result, e event) {
	delete(s.packages, e.Package)
	if e.Action == "fail" && p.failed == 0 { // it does not build, or a test never ended
		p.failed = 1
		said := slices.Concat(slices.Collect(maps.Values(p.output))...)
		s.digests = append(s.digests, fmt.Sprintf("FAILED %s\n%s", e.Package, digestOf(slices.Concat(s.build, said))))
	}
	s.passed, s.failed, s.skipped = s.passed+p.passed, s.failed+p.failed, s.skipped+p.skipped
	if e.Elapsed > longPackage && len(p.took) > 1 {
		defer fmt.Fprintf(s.w, "    its longest: %s\n", p.longest())
	}
	if e.Action == "fail" {
		s.printFailure(p, e)
		return
	}
	if p.passed+p.skipped > 0 {
		fmt.Fprintf(s.w, "ok %s: %d passed, %d skipped, %.1f s\n", e.Package, p.passed, p.skipped, e.Elapsed)
	}
}

func (s *summary) printFailure(p *result, e event) {
	for _, line := range s.build {
		fmt.Fprint(s.w, line)
	}
	s.build = nil
	for test, lines := range p.output { // of tests that never ended, and the package's own
		if test != "" {
			fmt.Fprintf(s.w, "never ended: %s\n", test)
		}
		fmt.Fprint(s.w, strings.Join(lines, ""))
	}
	fmt.Fprintf(s.w, "FAILED %s: %d passed, %d failed, %d skipped, %.1f s\n", e.Package, p.passed, p.failed, p.skipped, e.Elapsed)
}

// end counts packages whose end was never told: the run was cut short.
func (s *summary) end() error {
	for name, p := range s.packages {
		s.passed, s.failed, s.skipped = s.passed+p.passed, s.failed+p.failed+1, s.skipped+p.skipped
		s.digests = append(s.digests, fmt.Sprintf("FAILED %s: never ended\n", name))
		fmt.Fprintf(s.w, "FAILED %s: never ended\n", name)
	}
	if len(s.build) > 0 && s.failed == 0 {
		s.failed++
		fmt.Fprint(s.w, strings.Join(s.build, ""))
	}
	return nil
}

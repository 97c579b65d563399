package deploy

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are those that users read.
func documents(t *testing.T) []string {
	t.Helper()
	all := []string{"../README.md"}
	for _, pattern := range []string{"../docs/*.md", "../docs/reference/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) < 15 {
		t.Fatalf("only %d documents were found", len(all))
	}
	return all
}

// program is a command of the reference.
type program struct {
	runs  bool // by itself, and not only to choose one of those below it
	flags map[string]bool
	below map[string]*program
}

var (
	ofProgram = regexp.MustCompile(`(?m)^## (net(?:ctl|master|plugin)[a-z -]*)$`)
	ofFlag    = regexp.MustCompile("(?m)^\\| (?:`-([a-zA-Z])`, )?`--([a-z0-9-]+)")
)

// programs are netctl, netmaster and netplugin with all of their commands, as docs/reference has them.
func programs(t *testing.T) map[string]*program {
	t.Helper()
	top := &program{below: map[string]*program{}}
	for _, name := range []string{"netctl", "netmaster", "netplugin"} {
		text := string(read(t, "../docs/reference/"+name+".md"))
		at := ofProgram.FindAllStringSubmatchIndex(text, -1)
		for i, m := range at {
			end := len(text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			path, body := text[m[2]:m[3]], text[m[1]:end]
			p := &program{runs: strings.Contains(body, "\n    "+path), flags: map[string]bool{"--help": true, "-h": true, "--version": true}, below: map[string]*program{}}
			for _, f := range ofFlag.FindAllStringSubmatch(body, -1) {
				p.flags["--"+f[2]], p.flags["-"+f[1]] = true, true
			}
			into := top
			words := strings.Fields(path)
			for _, w := range words[:len(words)-1] {
				into = into.below[w]
			}
			into.below[words[len(words)-1]] = p
		}
	}
	// cobra makes these
	for _, p := range top.below {
		p.below["completion"] = &program{runs: true, flags: map[string]bool{}}
		p.below["help"] = &program{runs: true, flags: map[string]bool{}}
	}
	return top.below
}

var (
	// code is an indented line, without a prompt, or words within backquotes, which a line's end may divide.
	code      = regexp.MustCompile("(?m)^(?:    |```)(?:\\$ )?(.*)$|`([^`]+)`")
	called    = regexp.MustCompile(`(?:^ *|[|;&(] *| -- |sudo |nice |[A-Z]=[^ ]+ )(net(?:ctl|master|plugin))((?: +[^ ]+)*)`)
	endOfCall = regexp.MustCompile(`^(?:[|;&>#)]|&&|\|\||…$)`)
	name      = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flagWord  = regexp.MustCompile(`^(--[a-z0-9-]+|-[a-zA-Z])(?:=.*)?$`)
)

// sayings are how messages begin that name a program.
var sayings = []string{"netmaster has"}

// wrong is what a call's words have that the program does not; empty: nothing.
func wrong(all map[string]*program, call string, words []string) string {
	p := all[call]
	known := map[string]bool{}
	path := call
	take := func() {
		for f := range p.flags {
			known[f] = true
		}
	}
	take()
	choosing := true
	for _, word := range words {
		if endOfCall.MatchString(word) {
			return ""
		}
		ends := strings.ContainsAny(word, ";)")
		word = strings.TrimRight(word, ";),.:]")
		if m := flagWord.FindStringSubmatch(strings.TrimLeft(word, "[")); m != nil {
			if !known[m[1]] {
				return path + " has no flag " + m[1]
			}
		} else if next := p.below[word]; choosing && next != nil {
			p, path = next, path+" "+word
			take()
			continue
		} else if choosing && name.MatchString(word) && (!p.runs || len(p.below) > 0) {
			return path + " has no command " + word
		}
		choosing = false
		if ends {
			return ""
		}
	}
	return ""
}

// Commands that documents tell people to run are there, with the flags that they are given.
func TestCommandsOfDocumentsAreThere(t *testing.T) {
	all := programs(t)
	seen := 0
	for _, file := range documents(t) {
		text := string(read(t, file))
		for _, m := range code.FindAllStringSubmatch(text, -1) {
			line := m[1] + strings.ReplaceAll(m[2], "\n", " ")
			for _, c := range called.FindAllStringSubmatch(line, -1) {
				words := strings.Fields(c[2])
				if len(words) == 0 || slices.Contains(sayings, c[1]+" "+words[0]) {
					continue
				}
				seen++
				if why := wrong(all, c[1], words); why != "" {
					t.Errorf("%s: %q: %s", file, line, why)
				}
			}
		}
	}
	if seen < 300 {
		t.Errorf("only %d commands were seen", seen)
	}
	for call, want := range map[string]string{
		"netctl policy show shop/db -o json": "", "netctl polcy ls": "netctl has no command polcy", "netctl policy shew x": "netctl policy has no command shew",
		"netctl explain a b --nonsense": "netctl explain has no flag --nonsense", "netmaster pki rotate --stolen": "", "netmaster pki rotate --stolen=x --broken": "netmaster pki rotate has no flag --broken",
		"netplugin clean --state | less --nonsense": "", "netplugin cleen": "netplugin has no command cleen", "netmaster --leader-elect": "",
	} {
		words := strings.Fields(call)
		if got := wrong(all, words[0], words[1:]); got != want {
			t.Errorf("%s: %q, want %q", call, got, want)
		}
	}
}

var (
	testName = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]*)\(`)
)

// Tests that documents name are there.
func TestTestsOfDocumentsAreThere(t *testing.T) {
	there := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range testFunc.FindAllSubmatch(read(t, path), -1) {
			there[string(m[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob("../docs/decisions/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Concat(documents(t), decisions, []string{"../ARCHITECTURE.md"}) {
		for _, m := range testName.FindAllSubmatch(read(t, file), -1) {
			if !there[string(m[1])] {
				t.Errorf("%s: there is no test %s", file, m[1])
			}
		}
	}
}

var link = regexp.MustCompile(`\]\(([a-zA-Z0-9./_-]*)(?:#([a-z0-9-]+))?\)`)

// Files and chapters to which documents lead are there.
func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	for _, file := range documents(t) {
		for _, m := range link.FindAllSubmatch(read(t, file), -1) {
			to, chapter := file, string(m[2])
			if len(m[1]) > 0 {
				to = filepath.Join(filepath.Dir(file), string(m[1]))
			}
			if chapter == "" {
				if found, err := filepath.Glob(to); err != nil || len(found) == 0 {
					t.Errorf("%s: there is no %s", file, m[1])
				}
				continue
			}
			if !anchors(read(t, to))[chapter] {
				t.Errorf("%s: %s has no chapter #%s", file, to, chapter)
			}
		}
	}
}

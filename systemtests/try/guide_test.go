package try

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

// step is a command of a document with the output that the document shows.
type step struct {
	line    int
	command string
	output  []string
}

// steps returns the commands of a document's indented blocks: those after "$ ", with their here-documents and outputs.
func steps(text string) (list []step) {
	var current *step
	heredoc := false
	for i, line := range strings.Split(text, "\n") {
		code, indented := strings.CutPrefix(line, "    ")
		command, begins := strings.CutPrefix(code, "$ ")
		switch {
		case !indented && line != "":
			current = nil
		case heredoc:
			current.command += "\n" + code
			heredoc = code != "END"
		case indented && begins:
			list = append(list, step{line: i + 1, command: command})
			current = &list[len(list)-1]
			heredoc = strings.HasSuffix(command, "<<'END'")
		case current != nil && strings.TrimSpace(code) != "":
			current.output = append(current.output, code)
		}
	}
	return list
}

var (
	timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	address   = regexp.MustCompile(`10\.\d+\.\d+\.\d+|fd00:[0-9a-f:]+`)
	number    = regexp.MustCompile(`(^|[\s(])\d+(\.\d+)?(ms|s)?\b`)
)

// constant returns a line without the times, addresses and counts that differ between runs.
func constant(line string) string {
	line = timestamp.ReplaceAllString(line, "TIME")
	line = address.ReplaceAllString(line, "ADDRESS")
	line = number.ReplaceAllString(line, "${1}N")
	return strings.Join(strings.Fields(line), " ")
}

// isShown reports whether a line of a document shows a line of output; "…" at its end stands for the rest of the line.
func isShown(want, got string) bool {
	start, prefix := strings.CutSuffix(want, "…")
	if prefix {
		return strings.HasPrefix(got, constant(start)+" ")
	}
	return got == constant(want)
}

// compareOutput returns the lines of want that got lacks, and those that got has in addition, which a line "…" permits.
func compareOutput(want []string, got string) error {
	var missing []string
	var left []string
	for line := range strings.Lines(got) {
		if line = constant(line); line != "" {
			left = append(left, line)
		}
	}
	open := false
	for _, line := range want {
		if strings.TrimSpace(line) == "…" {
			open = true
			continue
		}
		i := slices.IndexFunc(left, func(got string) bool { return isShown(line, got) })
		if i < 0 {
			missing = append(missing, line)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(missing) > 0 || len(left) > 0 && !open {
		return fmt.Errorf("missing:\n%s\nnot in the document:\n%s", strings.Join(missing, "\n"), strings.Join(left, "\n"))
	}
	return nil
}

func TestSteps(t *testing.T) {
	got := steps(`# Title

    $ cat >x <<'END'
    a: b

    $ no command
    END
    $ netctl status
    NODE  AGE

    n1    3s

Text.

    no: command
`)
	want := []step{
		{3, "cat >x <<'END'\na: b\n\n$ no command\nEND", nil},
		{8, "netctl status", []string{"NODE  AGE", "n1    3s"}},
	}
	if !slices.EqualFunc(got, want, func(a, b step) bool {
		return a.line == b.line && a.command == b.command && slices.Equal(a.output, b.output)
	}) {
		t.Errorf("got %+v", got)
	}
}

func TestCompareOutput(t *testing.T) {
	for name, c := range map[string]struct {
		want []string
		got  string
		same bool
	}{
		"equal":              {[]string{"a b"}, "a   b\n", true},
		"other counts":       {[]string{"n  3 (7ms) 10.244.1.2"}, "n  12  (9ms)  10.244.1.3\n", true},
		"other port":         {[]string{"shop/db:5432"}, "shop/db:80\n", false},
		"missing":            {[]string{"a", "b"}, "a\n", false},
		"in addition":        {[]string{"a"}, "a\nb\n", false},
		"in addition, open":  {[]string{"a", "…"}, "a\nb\n", true},
		"one line for two":   {[]string{"a", "a"}, "a\n", false},
		"another order":      {[]string{"a", "b"}, "b\na\n", true},
		"the rest left out":  {[]string{"a …"}, "a b\n", true},
		"not the rest of it": {[]string{"a …"}, "ab\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := compareOutput(c.want, c.got); (err == nil) != c.same {
				t.Error(err)
			}
		})
	}
}

// TestFirstPolicy runs each command of docs/first-policy.md and compares its output with the document.
func TestFirstPolicy(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("makes network namespaces")
	}
	text, err := os.ReadFile("../../docs/first-policy.md")
	if err != nil {
		t.Fatal(err)
	}
	down(t) // of a run that was killed
	t.Cleanup(func() { down(t) })
	dir := filepath.Join(t.TempDir(), "first-policy")
	list := steps(strings.ReplaceAll(string(text), "/tmp/first-policy", dir))
	if len(list) < 15 {
		t.Fatalf("only %d commands were found", len(list))
	}
	g := guide{T: t}
	for _, s := range list {
		g.run(s)
	}
}

// guide is a shell session that follows a document.
type guide struct {
	*testing.T
	prelude string // commands that set variables and functions, for those after them
}

// run runs a step. What netctl shows follows files and packets with a delay: it is repeated until it is as expected.
func (g *guide) run(s step) {
	g.Helper()
	if strings.HasPrefix(s.command, ". ") {
		g.prelude += s.command + "\n"
		return
	}
	repeat := strings.HasPrefix(s.command, "netctl ")
	for end := time.Now().Add(slow.Stretch(time.Minute)); ; time.Sleep(100 * time.Millisecond) {
		out, code := g.shell(s.command)
		err := compareOutput(s.output, out)
		if code > 1 {
			err = errors.Join(err, fmt.Errorf("exit code %d", code))
		}
		if err == nil {
			return
		}
		if !repeat || time.Now().After(end) {
			g.Fatalf("docs/first-policy.md, line %d: %s\n%v\nthe output is:\n%s", s.line, s.command, err, out)
		}
	}
}

func (g *guide) shell(command string) (out string, code int) {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), slow.Stretch(5*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", g.prelude+command)
	cmd.Dir = filepath.Join("..", "..")
	// A make that runs the tests must not change the output of the guide's make.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=")
	})
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	cmd.WaitDelay = time.Second // processes that stay up have the output too
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok && !errors.Is(err, exec.ErrWaitDelay) {
		g.Fatalf("%s: %v", command, err)
	}
	return text.String(), cmd.ProcessState.ExitCode()
}

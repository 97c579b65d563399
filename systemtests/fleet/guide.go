package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// Of docs/policy-sync.md: the section whose commands are run, and its last part, which takes all away.
const (
	WalkThrough = "Walk-through"
	LastPart    = "Remove a gateway"
)

// Played are the namespaces that it uses, whose controllers are played.
var Played = []string{"gateways", "shop"}

// Step is a command of a guide, with what comes before it.
type Step struct {
	Heading string // if the command is the first below it
	Objects string // YAML, which the command reads from a file
	Command string
	Output  string // as the guide has it
}

// ReadGuide reads the commands of a section of a guide in Markdown. Blocks that are fenced as yaml hold objects, indented blocks that
// begin with "$ " commands with their outputs. The first command with a file (-f) reads the objects before it.
func ReadGuide(text, section string) (steps []Step, err error) {
	_, text, found := strings.Cut(text, "\n## "+section+"\n")
	if !found {
		return nil, fmt.Errorf("the guide has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var next Step
	fenced, inBlock := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		code, indented := strings.CutPrefix(line, "    ")
		command, isCommand := strings.CutPrefix(code, "$ ")
		switch {
		case fenced && line == "```":
			fenced = false
		case fenced:
			next.Objects += line + "\n"
		case line == "```yaml":
			fenced, next.Objects = true, ""
		case strings.HasPrefix(line, "### "):
			next.Heading = strings.TrimPrefix(line, "### ")
		case indented && isCommand:
			step := Step{Heading: next.Heading, Command: command}
			next.Heading = ""
			if file.MatchString(command) {
				step.Objects, next.Objects = next.Objects, ""
			}
			steps, inBlock = append(steps, step), true
		case indented && inBlock:
			steps[len(steps)-1].Output += code + "\n"
		case line != "":
			inBlock = false
		}
	}
	return steps, nil
}

// Looks tells whether the command only looks, so that it may be repeated until it sees what the guide says.
func (s *Step) Looks() bool {
	return strings.Contains(s.Command, " get ") || strings.HasPrefix(s.Command, "netctl ")
}

// file is the name of one that a command reads.
var file = regexp.MustCompile(`-f (\S+\.yaml)`)

// Perform runs a step as an administrator whose current context is the hub, in a directory of its own. It returns what the command wrote to
// its standard output and error.
func (f *Fleet) Perform(ctx context.Context, s *Step) (string, error) {
	dir := filepath.Join(f.Dir, "desk")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if m := file.FindStringSubmatch(s.Command); m != nil {
		if err := os.WriteFile(filepath.Join(dir, m[1]), []byte(s.Objects), 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", s.Command)
	cmd.Dir = dir
	cmd.Env = []string{"KUBECONFIG=" + f.Kubeconfig(), "HOME=" + dir, "PATH=" + f.Programs + ":" + f.Bin + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var errWell = errors.New("no error")

// ages, runs of blanks and empty lines are no matter.
var (
	ages   = regexp.MustCompile(`\b(\d+[smhd])+\b`)
	blanks = regexp.MustCompile(`[ \t]+`)
	empty  = regexp.MustCompile(`\s*\n\s*`)
)

func plain(output string) string {
	return strings.TrimSpace(empty.ReplaceAllString(blanks.ReplaceAllString(ages.ReplaceAllString(output, "AGE"), " "), "\n"))
}

// Follow runs a step, one that looks until it sees what the guide says; ages may be others. It returns what it saw last.
func (f *Fleet) Follow(ctx context.Context, s *Step) (output string, err error) {
	once := func() error {
		out, err := f.Perform(ctx, s)
		output = out
		if want := plain(s.Output); plain(out) != want {
			return fmt.Errorf("%s\nprints\n%s\n(it ended with: %w), and the guide says\n%s", s.Command, out, cmp.Or(err, errWell), s.Output)
		}
		return nil
	}
	if s.Looks() {
		return output, cluster.Until(ctx, looking, once)
	}
	return output, once()
}

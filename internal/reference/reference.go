// Package reference writes as Markdown what programs say of themselves, and holds docs/reference to it: what --help says, of all commands, and
// what they measure.
package reference

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Markdown describes a program: each command that is shown, in the order of their names, with the flags that are its own.
func Markdown(root *cobra.Command) string {
	root.InitDefaultHelpCmd()
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nThis is what `%s --help` says, written by `scripts/generate`.\n", root.Name(), root.Name())
	command(&b, root)
	return b.String()
}

func command(b *strings.Builder, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	short := cmd.Short
	if !strings.HasSuffix(short, "?") {
		short += "."
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), short)
	if cmd.Long != "" {
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(cmd.Long))
	}
	if cmd.Runnable() {
		fmt.Fprintf(b, "\n    %s\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n\n%s\n", indented(cmd.Example))
	}
	flags(b, cmd.NonInheritedFlags())
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
			command(b, c)
		}
	}
}

// indented makes a block of code.
func indented(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = "  " + line // examples are indented by two already
		}
	}
	return strings.Join(lines, "\n")
}

var cell = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")

func flags(b *strings.Builder, set *pflag.FlagSet) {
	heading := "\n| flag | default | |\n|---|---|---|\n"
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		b.WriteString(heading)
		heading = ""
		kind, usage := pflag.UnquoteUsage(f)
		name := "`--" + strings.TrimSpace(f.Name+" "+kind) + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, defaultOf(f), cell.Replace(usage))
	})
}

// defaultOf returns a flag's default, "" if it means that the flag is not set.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false", "0", "0s":
		return ""
	}
	return "`" + cell.Replace(f.DefValue) + "`"
}

// Check fails a test where the file is not what the program says of itself, or, with update, writes it.
func Check(t testing.TB, root *cobra.Command, file string, update bool) {
	t.Helper()
	CheckFile(t, Markdown(root), file, update)
}

// CheckFile fails a test if the file differs from want, or, with update, writes it.
func CheckFile(t testing.TB, want, file string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if line := firstDifference(read(t, file), want); line > 0 {
		t.Errorf("%s:%d is not what the programs say of themselves: run scripts/generate, and commit what it writes", file, line)
	}
}

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// firstDifference returns the first line that differs, from 1; 0 if none does.
func firstDifference(a, b string) int {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(x), len(y)) {
		if i >= len(x) || i >= len(y) || x[i] != y[i] {
			return i + 1
		}
	}
	return 0
}

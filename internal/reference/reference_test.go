package reference

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func program() *cobra.Command {
	root := &cobra.Command{Use: "prog", Short: "Does things", Long: "Long words."}
	root.PersistentFlags().StringP("output", "o", "table", "table or json")
	sub := &cobra.Command{Use: "sub NAME", Short: "A part", Example: "  prog sub x | y", Run: func(*cobra.Command, []string) {}}
	sub.Flags().Bool("all", false, "all of <them> | none")
	hidden := &cobra.Command{Use: "hidden", Hidden: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(sub, hidden)
	return root
}

func TestMarkdown(t *testing.T) {
	const want = "# prog\n\nThis is what `prog --help` says, written by `scripts/generate`.\n\n## prog\n\nDoes things.\n\nLong words.\n\n" +
		"| flag | default | |\n|---|---|---|\n| `-o`, `--output string` | `table` | table or json |\n\n" +
		"## prog sub\n\nA part.\n\n    prog sub NAME [flags]\n\nExamples:\n\n    prog sub x | y\n\n| flag | default | |\n|---|---|---|\n| `--all` |  | all of &lt;them> \\| none |\n"
	if got := Markdown(program()); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// told notes that a test would have failed.
type told struct {
	testing.TB
	failed bool
}

func (t *told) Errorf(string, ...any) { t.failed = true }

func TestAStaleReferenceFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prog.md")
	Check(t, program(), file, true)
	Check(t, program(), file, false)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, stale := range []string{strings.Replace(string(text), "table or json", "table", 1), string(text) + "more\n", ""} {
		if err := os.WriteFile(file, []byte(stale), 0o600); err != nil {
			t.Fatal(err)
		}
		note := &told{TB: t}
		if Check(note, program(), file, false); !note.failed {
			t.Errorf("nobody notices:\n%s", stale)
		}
	}
}

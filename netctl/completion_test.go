package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// asNetctl makes the test program be netctl.
const asNetctl = "FLOWKEEP_TEST_AS_NETCTL"

func TestMain(m *testing.M) {
	if os.Getenv(asNetctl) != "" {
		os.Exit(run(pluginArgs(os.Args), os.Stdout, os.Stderr))
	}
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // under the race detector each netctl would sleep for a second as it ends
	os.Exit(m.Run())
}

// typed is what somebody has typed before TAB, and what then is offered.
var typed = map[string]string{
	"netctl endpoint show ":              "shop/db",
	"netctl flows ":                      "node1 node2",
	"netctl flows node1 --policy=":       "shop/db",
	"netctl explain shop/db sh":          "shop/db",
	"netctl bundle --node ":              "node1 node2",
	"netctl status --context no":         "nowhere",
	"netctl policy show shop/db ":        "",
	"netctl policy wait shop/db --for d": "delete",
}

// inShell gives a script each line as an argument, in a shell that finds netctl, and a cluster by its kubeconfig. It is to print
// what is offered, a line for each.
func inShell(t *testing.T, name string, args ...string) {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not on this machine", name)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := newCluster(t, shop())
	bin := t.TempDir()
	wrapper := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", asNetctl, self)
	if err := os.WriteFile(filepath.Join(bin, "netctl"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	lines := slices.Sorted(maps.Keys(typed))
	cmd := exec.CommandContext(t.Context(), program, append(args, lines...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TERM=dumb", "KUBECONFIG="+b.flags[1])
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || said.Len() > 0 {
		t.Errorf("%s: %v: %s", name, err, said.String())
	}
	offered := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(offered) != len(lines) {
		t.Fatalf("%d lines for %d:\n%s", len(offered), len(lines), out)
	}
	for i, line := range lines {
		got := strings.Fields(offered[i])
		slices.Sort(got)
		if text := strings.Join(got, " "); text != typed[line] {
			t.Errorf("%s<TAB>: %q, want %q", line, text, typed[line])
		}
	}
}

const bashScript = `source <(netctl completion bash)
compopt() { :; }
for COMP_LINE; do
  COMP_POINT=${#COMP_LINE}
  read -ra COMP_WORDS <<<"$COMP_LINE"
  [[ $COMP_LINE != *" " ]] || COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  __start_netctl
  echo "${COMPREPLY[*]}"
done`

// The script for bash works in a bash that has nothing else.
func TestCompletionInBash(t *testing.T) {
	inShell(t, "bash", "--norc", "--noprofile", "-c", bashScript, "bash")
}

// With the package bash-completion it uses that.
func TestCompletionInBashWithThePackage(t *testing.T) {
	const library = "/usr/share/bash-completion/bash_completion"
	if _, err := os.Stat(library); err != nil {
		t.Skip("the package bash-completion is not on this machine")
	}
	inShell(t, "bash", "--norc", "--noprofile", "-c", "source "+library+"\n"+bashScript, "bash")
}

// Fish is offered a second one with a dot where it would otherwise add a space.
func TestCompletionInFish(t *testing.T) {
	const script = `netctl completion fish | source
for line in $argv
  echo (complete -C $line | string replace -r '\t.*' '' | string replace -r '^--[a-z]+=' '' | string match -rv '\.$')
end`
	inShell(t, "fish", "--no-config", "-c", script)
}

// In zsh the function is called as zsh calls it; what it describes is what is offered, as far as it begins with what was typed.
func TestCompletionInZsh(t *testing.T) {
	const script = `compdef() { :; }; _describe() { offered=(${(M)completions:#${words[CURRENT]#*=}*}); }; _arguments() { :; }
source <(netctl completion zsh)
for line; do
  offered=() words=(${(z)line})
  [[ $line != *" " ]] || words+=("")
  CURRENT=${#words}
  _netctl
  print -- $offered
done`
	inShell(t, "zsh", "-f", "-c", script, "zsh")
}

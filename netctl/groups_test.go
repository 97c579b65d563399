package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestCommands_HaveAGroup(t *testing.T) {
	root := rootCommand()
	addCompletion(root)
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if !root.ContainsGroup(c.GroupID) && !c.Hidden {
			t.Errorf("%s has the group %q", c.Name(), c.GroupID)
		}
	}
	var out bytes.Buffer
	root.SetOut(&out)
	if err := root.Help(); err != nil {
		t.Fatal(err)
	}
	for _, g := range commandGroups(&options{}) {
		if !strings.Contains(out.String(), "\n"+g.title+"\n") {
			t.Errorf("help lacks %q:\n%s", g.title, out.String())
		}
	}
	if strings.Contains(out.String(), "Additional Commands") {
		t.Errorf("commands without a group:\n%s", out.String())
	}
}

func TestNameAs_KubectlPlugin(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/local/bin/netctl":           "netctl [command]",
		"/usr/local/bin/kubectl-flowkeep": "kubectl flowkeep [command]",
		"kubectl-flowkeep.exe":            "kubectl flowkeep [command]",
	} {
		t.Run(program, func(t *testing.T) {
			root := rootCommand()
			nameAs(root, program)
			if usage := root.UsageString(); !strings.Contains(usage, "  "+want) {
				t.Error(usage)
			}
		})
	}
}

func TestPluginArgs_Completion(t *testing.T) {
	if got := pluginArgs([]string{"/bin/netctl", "status"}); !slices.Equal(got, []string{"status"}) {
		t.Error(got)
	}
	if got := pluginArgs([]string{"/bin/kubectl_complete-flowkeep", "pol"}); !slices.Equal(got, []string{"__complete", "pol"}) {
		t.Error(got)
	}
}

package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// commandGroup is a group of commands in netctl's help.
type commandGroup struct {
	id, title string
	// results have exit codes for what they find (withResult); others only succeed or fail.
	results, others []*cobra.Command
}

func commandGroups(o *options) []commandGroup {
	return []commandGroup{
		{
			id:    "inspect",
			title: "Inspect:",
			results: []*cobra.Command{
				statusCommand(o), explainCommand(o), dropsCommand(o), cutsCommand(o), topCommand(o), unusedCommand(o),
			},
			others: []*cobra.Command{
				policyCommand(o), endpointCommand(o), serviceCommand(o), flowsCommand(o), matrixCommand(o),
				webCommand(o),
			},
		},
		{
			id:      "preview",
			title:   "Preview:",
			results: []*cobra.Command{diffCommand(o), lintCommand(o), dryRunCommand(o)},
		},
		{
			id:    "diagnose",
			title: "Diagnose and repair:",
			results: []*cobra.Command{
				checkCommand(o), verifyCommand(o), traceCommand(o), bundleCommand(o), dbCommand(o),
			},
			others: []*cobra.Command{doctorCommand(o), captureCommand(o), cacheCommand(o)},
		},
		{
			id:     "node",
			title:  "Node and fleet:",
			others: []*cobra.Command{nodeStateCommand(o), macvtapCommand(o), fleetCommand(o)},
		},
		{
			id:     setupGroup,
			title:  "Set up:",
			others: []*cobra.Command{tryCommand(o), uninstallCommand(o)},
		},
	}
}

const setupGroup = "setup"

func addCommands(root *cobra.Command, o *options) {
	for _, g := range commandGroups(o) {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.results {
			c.GroupID = g.id
			root.AddCommand(withResult(c))
		}
		for _, c := range g.others {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID(setupGroup)
	root.SetCompletionCommandGroupID(setupGroup)
}

// pluginName is what kubectl looks for in PATH for the command "kubectl flowkeep".
const pluginName = "kubectl-flowkeep"

// completionName is what kubectl runs to complete the arguments of "kubectl flowkeep".
const completionName = "kubectl_complete-flowkeep"

// pluginArgs returns the arguments without the program's name. Under completionName they are to be completed.
func pluginArgs(args []string) []string {
	if isCalled(args[0], completionName) {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[1:]
}

func isCalled(program, name string) bool {
	return strings.TrimSuffix(filepath.Base(program), ".exe") == name
}

// nameAs sets the name that help and errors show to the one that the user typed: netctl, or "kubectl flowkeep".
func nameAs(root *cobra.Command, program string) {
	if isCalled(program, pluginName) {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl flowkeep"}
	}
}

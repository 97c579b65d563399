package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/lint"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

const lintLong = `Lint looks for what in policies is probably not what was meant: selectors that choose nobody, ports' names that no pod has, rules that others
cover, policies without effect, ipBlocks of pods, egress without DNS. Each finding has a code; docs/lint.md tells of all.

Rules and policies that are found to be needless could all go together without a change of any verdict: warnings whatever
pods there are, infos with those that there are now.

With -f no cluster is asked: the manifests are the cluster, as for netctl diff --offline; of several objects of one name the last counts.

It exits with 1 if anything is found that is a warning or an error, and with 4 if it failed.`

// errFindings ends lint with a failure although it did what it was asked for.
var errFindings = errors.New("there are warnings: see above")

func lintCommand(o *options) *cobra.Command {
	q := inspect.Question{Kind: inspect.AskLint}
	least := string(lint.Info)
	var files []string
	var recursive bool
	cmd := &cobra.Command{
		Use: "lint", Short: "What in policies is probably not meant", Long: lintLong, Args: exactly(),
		Example: "  netctl lint\n  netctl lint -n shop --severity warning\n  netctl lint -f cluster.yaml -f policies/\n  netctl lint -o json | jq -r '.findings[] | select(.code == \"FK008\") | .policy'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(severities, least) {
				return usageError{fmt.Errorf("--severity %q: use info, warning or error", least)}
			}
			l, err := findings(cmd, o, q, files, recursive)
			if err != nil {
				return err
			}
			worst := slices.ContainsFunc(l.Findings, func(f lint.Finding) bool { return f.Severity.AtLeast(lint.Warning) })
			l.Findings = slices.DeleteFunc(l.Findings, func(f lint.Finding) bool { return !f.Severity.AtLeast(lint.Severity(least)) })
			if err := show(cmd.OutOrStdout(), o, l, func(w io.Writer, wide bool) { printLint(w, &l, wide) }); err != nil {
				return err
			}
			if worst {
				return errFindings
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&q.Namespace, "namespace", "n", "", "only policies of this namespace; default: all")
	f.StringArrayVarP(&files, "filename", "f", nil, "ask no cluster, but look at this file, directory or - for stdin; may be given again")
	f.BoolVarP(&recursive, "recursive", "R", false, "directories of -f with all below them")
	f.StringVar(&least, "severity", least, "show no less than info, warning or error")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	_ = cmd.RegisterFlagCompletionFunc("severity", cobra.FixedCompletions(severities, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// findings returns netmaster's findings or, with files, the findings for their content.
func findings(cmd *cobra.Command, o *options, q inspect.Question, files []string, recursive bool) (l inspect.Lint, err error) {
	if len(files) == 0 {
		return ask[inspect.Lint](cmd, o, q)
	}
	var objects []kube.Object
	var bad []error
	for _, name := range files {
		list, err := kube.Read(name, recursive, cmd.InOrStdin())
		objects, bad = append(objects, list...), append(bad, err)
	}
	if err := kube.Join(bad...); err != nil {
		return l, usageError{err}
	}
	world, policies, notes, err := kube.World(objects, kube.Options{})
	if err != nil {
		return l, usageError{err}
	}
	if len(world.Endpoints) == 0 {
		notes = append(notes, "there are no pods in what was given, and nothing that makes any: most of what is found follows from that")
	}
	c := lint.Cluster{World: world, Namespace: q.Namespace, PodCIDRs: podCIDRs(objects)}
	for _, np := range policies {
		if q.Namespace == "" || np.Namespace == q.Namespace {
			l.Policies++
		}
	}
	l.Findings, l.Notes = append([]lint.Finding{}, lint.Check(&c)...), notes
	return l, nil
}

// podCIDRs returns the pod CIDRs of the Nodes among the objects.
func podCIDRs(objects []kube.Object) (out []netip.Prefix) {
	for i := range objects {
		var n corev1.Node
		if o := &objects[i]; o.APIVersion == "v1" && o.Kind == "Node" && json.Unmarshal(o.JSON, &n) == nil {
			out = append(out, kube.Node(&n).PodCIDRs...)
		}
	}
	return out
}

var severities = []string{string(lint.Info), string(lint.Warning), string(lint.Error)}

func printLint(w io.Writer, l *inspect.Lint, wide bool) {
	for _, n := range l.Notes {
		fmt.Fprintf(w, "note: %s\n", oneLine.Replace(n))
	}
	fmt.Fprintf(w, "%s in %s\n", plural(len(l.Findings), "finding", "findings"), plural(l.Policies, "policy", "policies"))
	if len(l.Findings) == 0 {
		return
	}
	heading := []string{"CODE", "SEVERITY", "POLICY", "FIELD", "FINDING"}
	if wide {
		heading = append(heading, "WHAT TO DO")
	}
	var rows [][]string
	for i := range l.Findings {
		f := &l.Findings[i]
		row := []string{f.Code, string(f.Severity), dash(f.Policy), f.Field, f.Message}
		if wide {
			row = append(row, f.Remedy)
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(w)
	table(w, heading, rows)
}

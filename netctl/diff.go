package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
	networkingv1 "k8s.io/api/networking/v1"
)

const diffLong = `Diff tells what would change if the NetworkPolicies of the manifests were applied, or with --delete removed: who would no longer reach
whom and who would, at which ports, and because of which policy; and how many of the connections that live now would be cut. Nothing is
changed. Pods that no policy can tell apart are one line, as in netctl matrix.

Manifests are YAML or JSON, with several documents and lists, read as kubectl reads them. What the API server would refuse is an error
that names file, document and field. Objects of other kinds are left out, and a line says so. The cluster is taken as netmaster has it,
its pods and namespaces as they are.

With --offline no cluster is asked. The first -f is then the cluster as it is: namespaces, pods (or Deployments, StatefulSets, DaemonSets
and the like, for which pods are made up), and the policies in force. The policies of the other -f are tried on it. Where there is only
one -f, its policies are tried on its own pods as if there were none yet.

It exits with 0 if nothing would change, with 1 if something would, and with more on trouble: 2 for wrong usage or manifests that
cannot be read, 3 if netmaster does not answer, 4 for everything else.`

const diffExample = `  netctl diff -f db.yaml
  kubectl kustomize overlays/prod | netctl diff -f -
  netctl diff -R -f policies/ -o wide
  netctl diff --delete -f default-deny.yaml
  netctl diff --offline -f cluster.yaml -f policies/
  kubectl get ns,pods,netpol -A -o yaml >cluster.yaml`

type diffOptions struct {
	*options
	files     []string
	recursive bool
	remove    bool
	offline   bool
	quick     bool
	namespace string
}

func diffCommand(o *options) *cobra.Command {
	d := &diffOptions{options: o}
	cmd := &cobra.Command{
		Use: "diff -f FILE|DIR|-", Short: "What policies would change if they were applied or removed", Long: diffLong, Example: diffExample, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&d.files, "filename", "f", nil, "a manifest, a directory of them, or - for standard input; may be given again")
	f.BoolVarP(&d.recursive, "recursive", "R", false, "directories with all that is below them")
	f.BoolVar(&d.remove, "delete", false, "what if they were removed")
	f.BoolVar(&d.offline, "offline", false, "ask no cluster: the first -f is the cluster")
	f.BoolVar(&d.quick, "no-connections", false, "do not ask the nodes for live connections")
	f.StringVarP(&d.namespace, "namespace", "n", "", "the namespace of objects that name none; default: that of the kubeconfig's context, and default with --offline or --server")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	return cmd
}

func (d *diffOptions) run(cmd *cobra.Command) error {
	if len(d.files) == 0 {
		return usageError{errors.New("say which manifests: -f FILE, -f DIRECTORY, or -f - for standard input")}
	}
	if n := count(d.files, "-"); n > 1 {
		return usageError{errors.New("standard input can be read once: give -f - once")}
	}
	out, err := d.diff(cmd)
	if err != nil {
		return err
	}
	if err := show(cmd.OutOrStdout(), d.options, out, func(w io.Writer, wide bool) { printDiff(w, out, wide) }); err != nil {
		return err
	}
	if !out.Same() {
		return errDiffers
	}
	return nil
}

func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}

func (d *diffOptions) diff(cmd *cobra.Command) (*inspect.Diff, error) {
	if d.offline {
		return d.without(cmd)
	}
	objects, err := d.read(cmd, d.files)
	if err != nil {
		return nil, err
	}
	policies, notes, err := d.policies(objects)
	if err != nil {
		return nil, err
	}
	out := &inspect.Diff{}
	if len(policies) > 0 {
		trial, err := d.trial(policies)
		if err != nil {
			return nil, err
		}
		answer, err := ask[inspect.Diff](cmd, d.options, inspect.Question{Kind: inspect.AskDiff, Diff: trial})
		if err != nil {
			return nil, err
		}
		out = &answer
	}
	out.Notes = append(out.Notes, notes...)
	return out, nil
}

// without returns the diff without access to a cluster.
func (d *diffOptions) without(cmd *cobra.Command) (*inspect.Diff, error) {
	objects, err := d.read(cmd, d.files[:1])
	if err != nil {
		return nil, err
	}
	world, there, notes, err := kube.World(objects, kube.Options{Namespace: d.namespace})
	if err != nil {
		return nil, usageError{err}
	}
	tried := there
	if len(d.files) > 1 {
		more, err := d.read(cmd, d.files[1:])
		if err != nil {
			return nil, err
		}
		var others []string
		if tried, others, err = d.policies(more); err != nil {
			return nil, err
		}
		notes = append(notes, others...)
	} else if !d.remove {
		world.Policies = nil
	}
	var attempts []explain.Attempt
	for _, np := range tried {
		p := kube.Policy(np)
		policy.DefaultBudgets.Trim(p)
		attempts = append(attempts, explain.Attempt{
			Policy:       p,
			Remove:       d.remove,
			TypesOmitted: len(np.Spec.PolicyTypes) == 0,
			ModeOmitted:  !kube.SaysMode(np),
		})
	}
	after, list := explain.Try(world, attempts)
	out := &inspect.Diff{Policies: list, Delta: explain.Diff(explain.NewModel(world), explain.NewModel(after)), Notes: notes}
	if len(world.Endpoints) == 0 {
		out.Notes = append(out.Notes, d.files[0]+" has no pods, and nothing that makes any")
	}
	return out, nil
}

func (d *diffOptions) read(cmd *cobra.Command, files []string) (objects []kube.Object, err error) {
	var bad []error
	for _, name := range files {
		list, err := kube.Read(name, d.recursive, cmd.InOrStdin())
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("%s holds no objects", name)
		}
		objects, bad = append(objects, list...), append(bad, err)
	}
	if err := kube.Join(bad...); err != nil {
		return nil, usageError{err}
	}
	return objects, nil
}

func (d *diffOptions) policies(objects []kube.Object) ([]*networkingv1.NetworkPolicy, []string, error) {
	o := kube.Options{Namespace: d.namespace, Only: d.namespace != "", Names: d.remove}
	if d.namespace == "" && !d.offline && d.server == "" {
		o.Namespace = apiserver.Namespace(d.access()) // where kubectl would put them
	}
	list, notes, err := kube.Policies(objects, o)
	if err != nil {
		return nil, nil, usageError{err}
	}
	if len(list) == 0 {
		notes = append(notes, "there is no NetworkPolicy in what was given")
	}
	return list, notes, nil
}

// mostBytes is what netmaster's own port takes of a question, with room for the rest of it; the API server takes more.
const mostBytes = 2<<20 - 64<<10

func (d *diffOptions) trial(policies []*networkingv1.NetworkPolicy) (*inspect.Trial, error) {
	t := &inspect.Trial{Delete: d.remove, Connections: !d.quick}
	size := 0
	for _, np := range policies {
		text, err := kube.Bare(np)
		if err != nil {
			return nil, err
		}
		size += len(text)
		t.Policies = append(t.Policies, text)
	}
	if size > mostBytes && d.server != "" {
		return nil, usageError{fmt.Errorf("%d policies are more than netmaster takes in one question by --server: go through the API server, or try fewer", len(policies))}
	}
	return t, nil
}

func printDiff(w io.Writer, d *inspect.Diff, wide bool) {
	fmt.Fprintln(w, diffSummary(d))
	printTried(w, d, wide)
	if rows := d.Rows(); len(rows) > 0 {
		fmt.Fprintln(w)
		printRows(w, d, rows, wide)
	}
	if d.Live != nil {
		printLive(w, d, wide)
	}
	for _, n := range d.Notes {
		fmt.Fprintf(w, "note: %s\n", oneLine.Replace(n))
	}
}

// diffSummary returns the first line: the number of verdicts that change, and of live connections to cut.
func diffSummary(d *inspect.Diff) string {
	if d.Same() {
		return "nothing would change"
	}
	denied, allowed := d.Ways()
	text := fmt.Sprintf("%d allowed → denied, %d denied → allowed", denied, allowed)
	if d.Live != nil {
		text += fmt.Sprintf("; %s would be cut", plural(d.Live.Connections, "live connection", "live connections"))
		if len(d.Live.Unknown) > 0 {
			text += ", or more"
		}
	}
	return text
}

func printTried(w io.Writer, d *inspect.Diff, wide bool) {
	by := map[explain.Action][]string{}
	for _, t := range d.Policies {
		by[t.Action] = append(by[t.Action], t.Policy)
	}
	most := 5
	if wide {
		most = len(d.Policies)
	}
	for _, a := range []explain.Action{explain.Created, explain.Changed, explain.Removed, explain.Unchanged, explain.Missing} {
		if len(by[a]) > 0 {
			fmt.Fprintf(w, "%-9s  %s\n", a, oneLine.Replace(explain.Some(by[a], most)))
		}
	}
	for _, t := range d.Policies {
		for _, n := range t.Notes {
			fmt.Fprintf(w, "note: %s: %s\n", t.Policy, oneLine.Replace(n))
		}
	}
}

// mostLines is how much of a table is shown unasked.
const mostLines = 200

var verdicts = map[bool]string{true: "allowed → denied", false: "denied → allowed"}

func printRows(w io.Writer, d *inspect.Diff, rows []explain.Row, wide bool) {
	cuts := map[int]int{}
	heading := []string{"FROM", "TO", "PORTS", "VERDICT", "BECAUSE"}
	if d.Live != nil {
		heading = slices.Insert(heading, 4, "LIVE")
		for _, c := range d.Live.Cuts {
			cuts[c.Difference] = c.Connections
		}
	}
	most := 3
	if wide {
		most = 1 << 30
	}
	var lines [][]string
	for _, r := range rows {
		what := r.What.String()
		if r.Family != 0 {
			what += fmt.Sprintf(" (IPv%d)", r.Family)
		}
		row := []string{explain.Some(r.From, most), explain.Some(r.To, most), what, verdicts[r.Denied], because(r.Because, most)}
		if d.Live != nil {
			live := "-"
			if r.Denied {
				live = fmt.Sprint(cuts[r.Difference])
			}
			row = slices.Insert(row, 4, live)
		}
		lines = append(lines, row)
	}
	more := 0
	if !wide && len(lines) > mostLines {
		more = len(lines) - mostLines
		lines = lines[:mostLines]
	}
	table(w, heading, lines)
	if more > 0 {
		fmt.Fprintf(w, "and %d more: -o wide shows all\n", more)
	}
	if wide {
		printGroups(w, d)
	}
}

func because(causes []string, most int) string {
	text := strings.Join(causes[:min(most, len(causes))], "; ")
	if more := len(causes) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return dash(text)
}

// printGroups names the pods of groups of several.
func printGroups(w io.Writer, d *inspect.Diff) {
	for _, g := range d.Groups {
		if len(g.Pods) > 1 {
			fmt.Fprintf(w, "%s: %s\n", g.Name, strings.Join(g.Pods, ", "))
		}
	}
}

func printLive(w io.Writer, d *inspect.Diff, wide bool) {
	if len(d.Live.Cuts) > 0 {
		fmt.Fprintln(w, "\nwould be cut, among others:")
	}
	for _, c := range d.Live.Cuts {
		examples := c.Examples
		if !wide {
			examples = examples[:min(1, len(examples))]
		}
		for _, e := range examples {
			fmt.Fprintf(w, "  %s\n", oneLine.Replace(e))
		}
	}
	for _, node := range slices.Sorted(maps.Keys(d.Live.Unknown)) {
		fmt.Fprintf(w, "note: connections of node %s are not all known: %s\n", node, oneLine.Replace(d.Live.Unknown[node]))
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const waitLong = `Wait returns when a generation of a policy is in force on every node that needs it, and has gone from every node that no longer
does: from then on no packet is judged by the one before. It is the generation that the API server has when wait is called, so
that it can follow kubectl apply at once; or, with --generation, that one or a later. So does a policy in a dry run, which nodes then try; its
annotation has no generation of its own, and what the API server has of it counts.

A node has it in force when it has acknowledged all that is the policy's: its rules, and the pods in its groups as they were when
netmaster had resolved the generation. What other policies, or pods that come later, bring to the node does not count.

With --for=delete it returns when the API server has no such policy, and no node has rules of it. What nodes that are away have
is remembered until netmaster is restarted.

When the time is over it exits with 3 and says which nodes are pending, failed or away, and why. On a terminal it tells each change
meanwhile; -q leaves that out.`

// errNotInForce ends wait when the time is over.
var errNotInForce = errors.New("not in force in time")

// grace is what netmaster's answer that the time is over may take.
const grace = 5 * time.Second

type waitOptions struct {
	*options
	timeout    time.Duration
	generation int64
	condition  string
	quiet      bool
}

func waitCommand(o *options) *cobra.Command {
	w := &waitOptions{options: o}
	cmd := &cobra.Command{
		Use: "wait NAMESPACE/NAME", Short: "Wait until a policy is in force on every node that needs it", Long: waitLong, Args: oneID,
		Example: "  kubectl apply -f db.yaml && netctl policy wait shop/db\n  netctl policy wait shop/db --timeout 2m -q\n  netctl policy wait shop/db --generation 4 -o json\n" +
			"  kubectl delete -f db.yaml && netctl policy wait shop/db --for=delete",
		ValidArgsFunction: completePolicies(o, 1),
		RunE:              func(cmd *cobra.Command, args []string) error { return w.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.DurationVar(&w.timeout, "timeout", 30*time.Second, "how long to wait")
	f.Int64Var(&w.generation, "generation", 0, "wait for this generation or a later one; default: the one that the API server has now")
	f.StringVar(&w.condition, "for", "in-force", "in-force or delete")
	f.BoolVarP(&w.quiet, "quiet", "q", false, "do not tell what changes while waiting")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"in-force", "delete"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("generation", cobra.NoFileCompletions)
	return cmd
}

func (w *waitOptions) check() error {
	switch {
	case w.timeout <= 0:
		return usageError{fmt.Errorf("timeout %v: say how long to wait, such as 30s", w.timeout)}
	case w.generation < 0:
		return usageError{fmt.Errorf("generation %d: they begin with 1", w.generation)}
	case w.condition != "in-force" && w.condition != "delete":
		return usageError{fmt.Errorf("--for=%s: use in-force or delete", w.condition)}
	case w.condition == "delete" && w.generation > 0:
		return usageError{errors.New("--generation means nothing with --for=delete")}
	}
	return nil
}

func (w *waitOptions) run(cmd *cobra.Command, id string) error {
	if err := w.check(); err != nil {
		return err
	}
	began := time.Now()
	var progress io.Writer
	if !w.quiet && isTerminal(cmd.ErrOrStderr()) {
		progress = cmd.ErrOrStderr()
	}
	out, err := w.ask(cmd, id, progress)
	if err != nil {
		return err
	}
	out.State = ""
	if err := show(cmd.OutOrStdout(), w.options, out, func(to io.Writer, _ bool) { printWait(to, &out, w.condition, time.Since(began)) }); err != nil {
		return err
	}
	if !out.Done {
		return fmt.Errorf("%w: %s after %v: %s", errNotInForce, id, w.timeout, lacking(&out))
	}
	return nil
}

// ask puts the question again until it is done or the time is over; each further one says what is known already. Once it was
// answered, it survives a restart of netmaster.
func (w *waitOptions) ask(cmd *cobra.Command, id string, progress io.Writer) (out inspect.Wait, err error) {
	want := inspect.WaitFor{Generation: w.generation, Deleted: w.condition == "delete", Progress: progress != nil}
	deadline := time.Now().Add(w.timeout)
	for answered := false; ; answered = true {
		want.Most = max(time.Until(deadline), time.Millisecond)
		asking := *w.options
		asking.timeout = want.Most + grace
		next, err := ask[inspect.Wait](cmd, &asking, inspect.Question{Kind: inspect.AskWait, ID: id, Wait: &want})
		switch {
		case err != nil && answered && goesBy(err) && time.Now().Before(deadline):
			if err := pause(cmd.Context()); err != nil {
				return out, err
			}
			continue
		case err != nil:
			return out, err
		}
		if progress != nil {
			tellChanges(progress, &out, &next, answered)
		}
		if out = next; out.Done || !time.Now().Before(deadline) {
			return out, nil
		}
		want.Seen, want.UID, want.Generation, want.Mode, want.Revision = out.State, out.UID, out.Wanted, out.Mode, out.Revision
	}
}

// goesBy reports whether an error can come from a restart of netmaster.
func goesBy(err error) bool { return isUnreachable(err) || status.Code(err) == codes.Unavailable }

func pause(ctx context.Context) error {
	timer := time.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tellChanges prints a line for each node whose state is another, and for what netmaster itself waits for.
func tellChanges(w io.Writer, before, now *inspect.Wait, answered bool) {
	if now.Reason != "" && now.Reason != before.Reason {
		fmt.Fprintf(w, "%s/%s: %s\n", now.Namespace, now.Name, oneLine.Replace(now.Reason))
	}
	if now.Reason == "" && (!answered || before.Reason != "") && now.Generation > 0 {
		fmt.Fprintf(w, "%s/%s: generation %d is resolved; %s it\n", now.Namespace, now.Name, now.Generation, plural(len(now.Nodes), "node needs", "nodes need"))
	}
	was := map[string]string{}
	for i := range before.Nodes {
		was[before.Nodes[i].Name] = nodeText(&before.Nodes[i])
	}
	for i := range now.Nodes {
		n := &now.Nodes[i]
		text := nodeText(n)
		if old, ok := was[n.Name]; !ok || old != text {
			fmt.Fprintf(w, "%s: %s\n", n.Name, text)
		}
		delete(was, n.Name)
	}
	for i := range before.Nodes {
		if _, gone := was[before.Nodes[i].Name]; gone {
			fmt.Fprintf(w, "%s: no longer needs it\n", before.Nodes[i].Name)
		}
	}
}

// nodeText returns a node's state with the reason, on one line, without the number of revisions that it is behind.
func nodeText(n *inspect.PolicyNode) string {
	text := n.State
	if n.Leaving {
		text += ", has to drop its rules"
	}
	switch {
	case n.State == "partial", n.State == "away" && n.Reason != "":
		text += ": " + n.Reason
	case len(n.Errors) > 0:
		text += ": " + strings.Join(n.Errors, "; ")
	}
	return oneLine.Replace(text)
}

// standing is what a policy is on nodes that have it, by whether it is a dry run.
var standing = map[bool]string{false: "in force", true: "in a dry run"}

func printWait(w io.Writer, out *inspect.Wait, condition string, took time.Duration) {
	id := out.Namespace + "/" + out.Name
	took = took.Round(time.Millisecond)
	switch {
	case out.Done && condition == "delete":
		fmt.Fprintf(w, "%s is gone from every node (%v)\n", id, took)
	case out.Done && len(out.Nodes) == 0:
		fmt.Fprintf(w, "%s, generation %d: it applies to no pod (%v)\n", id, out.Generation, took)
	case out.Done:
		fmt.Fprintf(w, "%s, generation %d is %s on %s (%v)\n", id, out.Generation, standing[out.Mode == policy.ModeDryRun], plural(len(out.Nodes), "node", "nodes"), took)
	default:
		var rows [][]string
		for i := range out.Nodes {
			n := &out.Nodes[i]
			why := n.Reason
			if len(n.Errors) > 0 {
				why = strings.Join(n.Errors, "; ")
			}
			if n.State == "partial" {
				why = strings.Join(append([]string{n.Reason}, n.Errors...), "; ")
			}
			if n.Leaving {
				why = "has to drop its rules; " + why
			}
			rows = append(rows, []string{n.Name, n.State, dash(why)})
		}
		if len(rows) > 0 {
			table(w, []string{"NODE", "STATE", "WHY"}, rows)
		}
	}
}

// lacking sums up what there was not.
func lacking(out *inspect.Wait) string {
	if out.Reason != "" {
		return out.Reason
	}
	by := map[string][]string{}
	for _, n := range out.Nodes {
		by[n.State] = append(by[n.State], n.Name)
	}
	const most = 5
	var parts []string
	for _, state := range []string{"partial", "failed", "pending", "away"} {
		if names := by[state]; len(names) > most {
			parts = append(parts, fmt.Sprintf("%s and %d more %s", strings.Join(names[:most], ", "), len(names)-most, state))
		} else if len(names) > 0 {
			parts = append(parts, strings.Join(names, ", ")+" "+state)
		}
	}
	return strings.Join(parts, "; ")
}

// isTerminal reports whether the output is a terminal.
func isTerminal(w io.Writer) bool {
	if p, ok := w.(*plain); ok {
		w = p.w
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

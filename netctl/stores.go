package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
	selectors "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

func dbCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "db", Short: "The policy DB: what it holds, and whether that is sound", Args: exactly(), Example: "  netctl db\n  netctl db -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := ask[inspect.DB](cmd, o, inspect.Question{Kind: inspect.AskDB})
			if err != nil {
				return err
			}
			if err := show(cmd.OutOrStdout(), o, db, func(w io.Writer, _ bool) { printDB(w, &db) }); err != nil {
				return err
			}
			if len(db.Problems) > 0 || db.Error != "" {
				return errDegraded
			}
			return nil
		},
	}
}

func printDB(w io.Writer, db *inspect.DB) {
	state := "sound"
	if len(db.Problems) > 0 || db.Error != "" {
		state = "not sound"
	}
	fmt.Fprintf(w, "%s: revision %d, %d changes waiting to be written\n", state, db.Revision, db.Waiting)
	table(w, []string{"NAMESPACES", "ENDPOINTS", "POLICIES", "RULES", "GROUPS"}, [][]string{
		{fmt.Sprint(db.Namespaces), fmt.Sprint(db.Endpoints), fmt.Sprint(db.Policies), fmt.Sprint(db.Rules), fmt.Sprint(db.Groups)}})
	for _, text := range []string{db.SetAside, db.Error} {
		if text != "" {
			fmt.Fprintln(w, text)
		}
	}
	for _, p := range db.Problems {
		fmt.Fprintln(w, "  -", p)
	}
}

func cacheCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cache",
		Short:   "The label cache: entries, hits, times, and its memcached",
		Args:    noMore,
		Example: "  netctl cache\n  netctl cache lookup -n shop -l app=web",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := ask[inspect.Cache](cmd, o, inspect.Question{Kind: inspect.AskCache})
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), o, c, func(w io.Writer, _ bool) { printCache(w, &c) })
		},
	}
	cmd.AddCommand(lookupCommand(o))
	return cmd
}

func printCache(w io.Writer, c *inspect.Cache) {
	server := "in process alone"
	switch {
	case c.Connected:
		server = "memcached " + strings.Join(c.Servers, ",") + " answers"
	case len(c.Servers) > 0:
		server = "memcached " + strings.Join(c.Servers, ",") + " does not answer: " + c.Problem
	}
	fmt.Fprintln(w, server)
	rate := "-"
	if sum := c.Hits + c.Misses; sum > 0 {
		rate = fmt.Sprintf("%d%%", 100*c.Hits/sum)
	}
	columns := []string{"ENTRIES", "KIB", "HITS", "MISSES", "HIT RATE", "ERRORS", "REFUSED", "TOO LARGE", "DROPPED"}
	table(w, columns, [][]string{{
		fmt.Sprint(c.Entries), fmt.Sprint(c.Bytes >> 10), fmt.Sprint(c.Hits), fmt.Sprint(c.Misses), rate,
		fmt.Sprint(c.Errors), fmt.Sprint(c.Refused), fmt.Sprint(c.TooLarge), fmt.Sprint(c.Dropped),
	}})
	if len(c.Sources) == 0 { // netmaster has an earlier version
		return
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, s := range c.Sources {
		mean := "-"
		if s.Count > 0 {
			mean = s.Mean.Round(time.Microsecond).String()
		}
		rows = append(rows, []string{s.Source, fmt.Sprint(s.Count), mean})
	}
	table(w, []string{"SOURCE", "ANSWERED", "MEAN TIME"}, rows)
}

func lookupCommand(o *options) *cobra.Command {
	var namespace, selector string
	cmd := &cobra.Command{
		Use: "lookup", Short: "Which pods does a selector choose, and who knew?", Args: exactly(), Example: "  netctl cache lookup -n shop -l app=web\n  netctl cache lookup -n shop -l 'tier in (web,api),!canary'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := parseSelector(selector)
			if err != nil {
				return usageError{err}
			}
			if namespace == "" {
				return usageError{errors.New("say which namespace: -n NAMESPACE")}
			}
			found, err := ask[inspect.Lookup](cmd, o, inspect.Question{Kind: inspect.AskLookup, Namespace: namespace, Selector: s})
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), o, found, func(w io.Writer, _ bool) {
				fmt.Fprintf(w, "%s, from %s, revision %d\n", plural(len(found.Endpoints), "pod", "pods"), found.Source, found.Revision)
				for _, id := range found.Endpoints {
					fmt.Fprintln(w, " ", id)
				}
			})
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "label selector, as kubectl takes it; default: all pods")
	return cmd
}

var operators = map[selection.Operator]policy.Operator{
	selection.In: policy.In, selection.Equals: policy.In, selection.DoubleEquals: policy.In, selection.NotIn: policy.NotIn, selection.NotEquals: policy.NotIn,
	selection.Exists: policy.Exists, selection.DoesNotExist: policy.DoesNotExist,
}

// parseSelector reads kubectl's syntax.
func parseSelector(text string) (*policy.Selector, error) {
	requirements, err := selectors.ParseToRequirements(text)
	if err != nil {
		return nil, fmt.Errorf("selector %q: %w", text, err)
	}
	out := &policy.Selector{}
	for i := range requirements {
		r := &requirements[i]
		operator, ok := operators[r.Operator()]
		if !ok {
			return nil, fmt.Errorf("selector %q: labels have no operator %s", text, r.Operator())
		}
		q := policy.Requirement{Key: r.Key(), Operator: operator}
		if values := r.Values().List(); len(values) > 0 {
			q.Values = values
		}
		out.Requirements = append(out.Requirements, q)
	}
	return out, nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const bundleLong = `Bundle writes one archive with what somebody needs who is to help: versions and status; policies, as objects and as netmaster has
resolved them; pods as enforcement sees them; of each node its flows, rules and groups, what Open vSwitch says of itself, metrics, the
last lines of the log; of netmaster the same, and its stores; cut connections, and Flowkeep's events.

Secrets are not in it: no Secret objects, keys, tokens or environment are read, and what looks like one in a log is left out.
Names, labels and addresses are in it.

What cannot be read is reported on standard error and in errors.txt in the archive, and the exit code is 1 (4 if there
is no archive); the archive contains the rest. An interrupted netctl leaves no incomplete archive behind. The
ClusterRole flowkeep-admin allows all of these requests; with flowkeep-view, logs and metrics are missing.`

// errPartial ends a bundle that lacks something.
var errPartial = errors.New("not everything is in the archive")

// mostObjects bounds one list of objects, in bytes.
const mostObjects = 64 << 20

// mostWords bounds what is taken of a node's lists.
const mostWords = 50

type bundleOptions struct {
	*options
	file    string
	nodes   []string
	maxSize int64 // MiB
	way     way
	say     io.Writer
	archive *archive
	// switches are rows of versions
	switches [][]string
}

func bundleCommand(o *options) *cobra.Command {
	b := &bundleOptions{options: o}
	cmd := &cobra.Command{
		Use: "bundle", Short: "One archive with what support needs, secrets left out", Long: bundleLong, Args: exactly(),
		Example: "  netctl bundle\n  netctl bundle -o case-4711.tar.gz\n  netctl bundle --node node1 --node node2 --max-size 2000",
		RunE:    func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVarP(&b.file, "output", "o", "", "the archive's name; default: flowkeep-TIME.tar.gz in this directory")
	f.StringSliceVar(&b.nodes, "node", nil, "only these nodes; default: all")
	f.Int64Var(&b.maxSize, "max-size", 512, "MiB that the archive may hold, before compression; what does not fit is left out and reported")
	_ = cmd.RegisterFlagCompletionFunc("node", completeNodeFlag(o))
	return cmd
}

func (b *bundleOptions) run(cmd *cobra.Command) (err error) {
	if b.maxSize < 1 {
		return usageError{fmt.Errorf("--max-size %d: it is at least 1", b.maxSize)}
	}
	now := time.Now().UTC()
	if b.file == "" {
		b.file = "flowkeep-" + now.Format("20060102T150405Z") + ".tar.gz"
	}
	if b.way, err = b.open(); err != nil {
		return err
	}
	defer b.way.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if b.archive, err = newArchive(b.file, b.maxSize<<20, now); err != nil {
		return err
	}
	defer b.archive.drop() // of no consequence once it is finished
	b.say = cmd.ErrOrStderr()
	if err := b.collect(ctx); err != nil {
		return err
	}
	size, err := b.archive.finish()
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %d KiB\n", b.file, plural(b.archive.entries, "file", "files"), (size+1023)>>10)
	if n := len(b.archive.problems); n > 0 {
		return fmt.Errorf("%w: errors.txt in it lists %s", errPartial, plural(n, "problem", "problems"))
	}
	return nil
}

// collect fails where nothing at all can be had, or nothing be written.
func (b *bundleOptions) collect(ctx context.Context) error {
	st, reached := b.status(ctx)
	steps := []func(context.Context) error{b.state, b.netmaster, b.objects}
	for _, name := range b.wanted(&st) {
		steps = append(steps, func(ctx context.Context) error { return b.node(ctx, name) })
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: no archive is left: %w", ctx.Err())
		}
	}
	if b.archive.entries == 0 {
		return fmt.Errorf("nothing can be had: %w", reached)
	}
	if reached == nil {
		var text bytes.Buffer
		printStatus(&plain{&text}, &st, true)
		if err := b.archive.add("status.txt", text.Bytes()); err != nil {
			return err
		}
	}
	return b.archive.add("versions.txt", b.versions(&st))
}

func (b *bundleOptions) status(ctx context.Context) (st inspect.Status, err error) {
	body, err := b.ask(ctx, "status.json", inspect.Question{Kind: inspect.AskStatus})
	if err == nil {
		err = json.Unmarshal(body, &st)
	}
	if err == nil {
		err = b.json("status.json", body)
	}
	return st, err
}

// wanted returns the names of the nodes to query.
func (b *bundleOptions) wanted(st *inspect.Status) (names []string) {
	for i := range st.Nodes {
		if n := &st.Nodes[i]; len(b.nodes) == 0 || slices.Contains(b.nodes, n.Name) {
			names = append(names, n.Name)
		}
	}
	for _, name := range b.nodes {
		if !slices.Contains(names, name) {
			b.lacks("nodes/"+name, errors.New("netmaster knows no such node"))
		}
	}
	return names
}

// lacks records and prints the error of a part.
func (b *bundleOptions) lacks(what string, err error) {
	b.archive.problem(what, err)
	fmt.Fprintf(b.say, "! %s\n", b.archive.problems[len(b.archive.problems)-1])
}

// ask sends a query. A failure is reported and does not end the bundle.
func (b *bundleOptions) ask(ctx context.Context, what string, q inspect.Question) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	a, err := b.way.Ask(ctx, &q)
	if status.Code(err) == codes.DeadlineExceeded {
		err = fmt.Errorf("%w within %v", errTimeout, b.timeout)
	}
	if err != nil {
		b.lacks(what, err)
		return nil, err
	}
	return a.Body, nil
}

func (b *bundleOptions) put(ctx context.Context, name string, q inspect.Question) error {
	body, err := b.ask(ctx, name, q)
	if err != nil {
		return nil //nolint:nilerr // reported already
	}
	return b.json(name, body)
}

func (b *bundleOptions) json(name string, body []byte) error {
	var text bytes.Buffer
	if err := json.Indent(&text, body, "", " "); err != nil {
		b.lacks(name, err)
		return nil
	}
	return b.archive.add(name, text.Bytes())
}

// state adds what netmaster has resolved, and the content of its stores.
func (b *bundleOptions) state(ctx context.Context) error {
	fmt.Fprintln(b.say, "what netmaster has resolved")
	for _, part := range []struct {
		name string
		q    inspect.Question
	}{
		{"state/policies.json", inspect.Question{Kind: inspect.AskPolicies, Rules: true}},
		{"state/endpoints.json", inspect.Question{Kind: inspect.AskEndpoints}},
		{"state/cuts.json", inspect.Question{Kind: inspect.AskCuts}},
		{"state/counters.json", inspect.Question{Kind: inspect.AskCounters}},
		{"state/dryruns.json", inspect.Question{Kind: inspect.AskDryRuns, DryRun: &inspect.DryRunQuestion{Counts: true, Pairs: &inspect.DropsQuestion{}}}},
		{"state/lint.json", inspect.Question{Kind: inspect.AskLint}},
		{"state/db.json", inspect.Question{Kind: inspect.AskDB}},
		{"state/cache.json", inspect.Question{Kind: inspect.AskCache}},
	} {
		if err := b.put(ctx, part.name, part.q); err != nil || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

func (b *bundleOptions) netmaster(ctx context.Context) error {
	fmt.Fprintln(b.say, "netmaster's log, metrics and settings")
	return b.support(ctx, "netmaster", inspect.Question{Kind: inspect.AskSupport})
}

func (b *bundleOptions) node(ctx context.Context, name string) error {
	fmt.Fprintln(b.say, "node", name)
	folder := "nodes/" + strings.ReplaceAll(url.PathEscape(name), "..", "%2E%2E")
	body, err := b.ask(ctx, folder+"/flows.txt", inspect.Question{Kind: inspect.AskFlows, Node: name})
	var flows inspect.NodeFlows
	if err == nil {
		err = json.Unmarshal(body, &flows)
	}
	if err == nil {
		var text bytes.Buffer
		printFlows(&plain{&text}, &flows, true)
		if err := b.archive.add(folder+"/flows.txt", text.Bytes()); err != nil {
			return err
		}
	}
	return b.support(ctx, folder, inspect.Question{Kind: inspect.AskSupport, Node: name})
}

// support adds what a program reports about itself, a file for each part.
func (b *bundleOptions) support(ctx context.Context, folder string, q inspect.Question) error {
	body, err := b.ask(ctx, folder, q)
	if err != nil {
		return nil //nolint:nilerr // reported already
	}
	var s inspect.Support
	if err := json.Unmarshal(body, &s); err != nil {
		b.lacks(folder, err)
		return nil
	}
	for _, p := range s.Problems[:min(len(s.Problems), mostWords)] {
		b.lacks(folder, errors.New(p))
	}
	flags, err := json.MarshalIndent(s.Flags, "", " ")
	if err != nil {
		return err
	}
	files := []struct {
		name string
		text []byte
	}{{"log.txt", []byte(s.Log)}, {"metrics.txt", []byte(s.Metrics)}, {"flags.json", flags}}
	for _, w := range s.Switch[:min(len(s.Switch), mostWords)] {
		if w.Command == "version" {
			b.switches = append(b.switches, []string{"Open vSwitch on " + q.Node, dash(strings.TrimSpace(w.Text))})
		}
		files = append(files, struct {
			name string
			text []byte
		}{"ovs/" + strings.ReplaceAll(w.Command, "/", "-") + ".txt", []byte(w.Text)})
	}
	for _, f := range files {
		if err := b.archive.add(folder+"/"+f.name, scrubWords(f.text)); err != nil {
			return err
		}
	}
	if q.Node == "" {
		return nil
	}
	held, err := json.Marshal(map[string]any{"rules": s.Rules, "groups": s.Groups})
	if err != nil {
		return err
	}
	return b.json(folder+"/rules.json", held)
}

// versions returns a table of the known versions of all programs.
func (b *bundleOptions) versions(st *inspect.Status) []byte {
	var text bytes.Buffer
	rows := [][]string{{"netctl", process.BuildVersion()}, {"netmaster", dash(st.Version)}}
	for i := range st.Nodes {
		rows = append(rows, []string{"netplugin on " + st.Nodes[i].Name, dash(st.Nodes[i].Version)})
	}
	rows = append(rows, b.switches...)
	table(&plain{&text}, []string{"PROGRAM", "VERSION"}, rows)
	fmt.Fprintf(&text, "\nmade at %s, through %s\n", b.archive.made.Format(time.RFC3339), b.way.Server())
	return text.Bytes()
}

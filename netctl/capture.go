package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/frames"
	"github.com/flowkeep/flowkeep/internal/frames/filter"
	"github.com/spf13/cobra"
)

const captureLong = `Capture shows the packets of a pod, as they pass between it and its node's switch: what the pod sends before any policy judges it, and
what is let through to it. It writes a line a packet, seen from the pod ("Out": it sent it), or with -w a pcap file for tcpdump and
Wireshark. It goes on until ^C, --count, --duration, or until the pod is gone, for an hour at the most; then it tells how many packets
there were. The file is whole however it ends.

Nothing is changed on the way of the packets: the kernel gives netplugin copies. A node passes on 20,000 packets and 4 MiB a second, of
all captures together, and what comes faster is lost to the capture alone, counted and told; --filter and --snaplen make it less. One
capture of a pod at a time, four of a node.

A filter is part of tcpdump's language: host ADDRESS, net PREFIX, port NUMBER and portrange FIRST-LAST, each also with src or dst, tcp,
udp, sctp, icmp, icmp6, ip, ip6 and arp, joined by and, or, not and brackets.

Packets hold what pods say to each other: the ClusterRole flowkeep-admin is needed, or in the pod's namespace flowkeep-capture. That a pod
is captured is in its netplugin's log.`

const captureExample = `  netctl capture shop/db-0
  netctl capture shop/db-0 --filter 'tcp port 5432 and host 10.0.1.7' --count 20
  netctl capture shop/db-0 -w db.pcap --duration 30s
  netctl capture shop/db-0 -w - | tcpdump -r - -n
  netctl capture shop/db-0 -o json | jq .text`

type captureOptions struct {
	*options
	file string
	spec inspect.CaptureSpec
}

func captureCommand(o *options) *cobra.Command {
	c := &captureOptions{options: o}
	cmd := &cobra.Command{
		Use: "capture NAMESPACE/POD", Short: "Show a pod's packets, or write them to a pcap file", Long: captureLong, Example: captureExample, Args: oneID,
		ValidArgsFunction: completeEndpoints(o),
		RunE:              func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&c.file, "write", "w", "", "write a pcap file; - is standard output")
	f.StringVar(&c.spec.Filter, "filter", "", "only packets that match, such as 'tcp port 80 and not host 10.0.0.1'")
	f.IntVarP(&c.spec.Snap, "snaplen", "s", 0, "how many bytes of a packet; default: all")
	f.Uint64VarP(&c.spec.Count, "count", "c", 0, "end after so many packets")
	f.DurationVar(&c.spec.Duration, "duration", 0, "end after so long")
	for _, name := range []string{"filter", "snaplen", "count", "duration"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	_ = cmd.MarkFlagFilename("write", "pcap")
	return cmd
}

func (c *captureOptions) check(out io.Writer) error {
	_, err := filter.Parse(c.spec.Filter)
	switch {
	case err != nil:
		return usageError{err}
	case c.spec.Snap < 0 || c.spec.Snap > inspect.MaxSnap:
		return usageError{fmt.Errorf("snaplen %d: from 1 to %d, or 0 for all of a packet", c.spec.Snap, inspect.MaxSnap)}
	case c.spec.Duration < 0 || c.spec.Duration > inspect.LongestCapture:
		return usageError{fmt.Errorf("duration %v: at most %v", c.spec.Duration, inspect.LongestCapture)}
	case c.output != "table" && c.output != "json":
		return usageError{fmt.Errorf("output %q: use table or json", c.output)}
	case c.output == "json" && c.file != "":
		return usageError{errors.New("-o json and -w: one or the other")}
	case c.file == "-" && isTerminal(out):
		return usageError{errors.New("a pcap file is nothing for a terminal: leave -w out, or send it to a file or another program")}
	}
	return nil
}

func (c *captureOptions) run(cmd *cobra.Command, pod string) error {
	if err := c.check(cmd.OutOrStdout()); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	sink, err := c.sink(cmd.OutOrStdout())
	if err != nil {
		return err
	}
	var last *inspect.Captured
	q := inspect.Question{Kind: inspect.AskCapture, ID: pod, Capture: &c.spec}
	err = c.options.followSoon(ctx, q, func(body json.RawMessage) error {
		var got inspect.Captured
		if err := json.Unmarshal(body, &got); err != nil {
			return err
		}
		if last == nil {
			if err := sink.begin(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "capturing %s on %s (%s)\n", got.Pod, got.Node, got.Interface)
		}
		last = &got
		return sink.frames(got.Frames)
	})
	if ctx.Err() != nil { // ^C is how it is meant to end
		err = nil
	}
	if closed := sink.end(); err == nil {
		err = closed
	}
	if last != nil {
		printCaptured(cmd.ErrOrStderr(), last)
	}
	return err
}

// followSoon follows a stream whose first response must come within the timeout.
func (o *options) followSoon(ctx context.Context, q inspect.Question, each func(json.RawMessage) error) error {
	w, err := o.open()
	if err != nil {
		return err
	}
	defer w.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(o.timeout, func() {
		cancel(fmt.Errorf("%w: no answer from %s within %v; is --server or the kubeconfig right, or is a longer --timeout needed?", errTimeout, w.Server(), o.timeout))
	})
	defer late.Stop()
	err = w.Follow(ctx, &q, func(body json.RawMessage) error {
		late.Stop()
		return each(body)
	})
	if why := context.Cause(ctx); errors.Is(why, errTimeout) {
		return why
	}
	return err
}

func printCaptured(w io.Writer, c *inspect.Captured) {
	fmt.Fprintf(w, "%s", plural(int(c.Packets), "packet", "packets"))
	if c.End != "" {
		fmt.Fprintf(w, ": %s", c.End)
	}
	fmt.Fprintln(w)
	if c.Dropped > 0 {
		fmt.Fprintf(w, "%s more lost to the capture: they came faster than they could be passed on\n", plural(int(c.Dropped), "packet was", "packets were"))
	}
	if c.Limited >= time.Second {
		fmt.Fprintf(w, "the node's limit of 20,000 packets and 4 MiB a second held the capture up for %v: --filter and --snaplen make it less\n", c.Limited.Round(time.Second))
	}
}

// sink takes packets.
type sink interface {
	begin() error // before the first packet, when it is sure that there is a capture
	frames([]inspect.Frame) error
	end() error
}

func (c *captureOptions) sink(out io.Writer) (sink, error) {
	snap := c.spec.Snap
	if snap == 0 {
		snap = inspect.MaxSnap
	}
	raw := out
	if p, ok := out.(*plain); ok {
		raw = p.w
	}
	switch {
	case c.file == "-":
		return &pcapSink{out: raw, snap: snap}, nil
	case c.file != "":
		if _, err := os.Stat(c.file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return &pcapSink{name: c.file, snap: snap}, nil
	}
	return &textSink{out: out, json: c.output == "json"}, nil
}

// textSink writes a line a packet.
type textSink struct {
	out  io.Writer
	json bool
}

func (t *textSink) begin() error { return nil }
func (t *textSink) end() error   { return nil }

func (t *textSink) frames(list []inspect.Frame) error {
	var lines bytes.Buffer
	for i := range list {
		f := &list[i]
		p := frames.Decode(f.Data)
		if p.Cut = p.Cut && f.Length > len(f.Data); !t.json {
			direction := "In "
			if f.FromPod {
				direction = "Out"
			}
			fmt.Fprintf(&lines, "%s %s %s\n", f.Time.Local().Format("15:04:05.000000"), direction, p.String())
			continue
		}
		line, err := json.Marshal(struct {
			inspect.Frame
			Text string `json:"text"`
		}{*f, p.String()})
		if err != nil {
			return err
		}
		lines.Write(append(line, '\n'))
	}
	if lines.Len() == 0 {
		return nil
	}
	_, err := t.out.Write(lines.Bytes())
	return err
}

// pcapSink writes a file, or to out. What it wrote ends with a whole packet.
type pcapSink struct {
	name  string // empty: out
	out   io.Writer
	snap  int
	file  *os.File
	buf   bytes.Buffer
	pcap  *frames.PcapWriter
	whole int64 // bytes that are in the file
}

func (s *pcapSink) begin() (err error) {
	if s.name != "" {
		if s.file, err = os.OpenFile(s.name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil { // for the user alone
			return err
		}
		s.out = s.file
	}
	if s.pcap, err = frames.NewPcapWriter(&s.buf, s.snap); err != nil {
		return err
	}
	return s.flush()
}

func (s *pcapSink) frames(list []inspect.Frame) error {
	for i := range list {
		f := &list[i]
		if err := s.pcap.Write(f.Time, f.Length, f.Data[:min(len(f.Data), s.snap)]); err != nil {
			return err
		}
	}
	return s.flush()
}

func (s *pcapSink) flush() error {
	n, err := s.out.Write(s.buf.Bytes())
	s.buf.Reset()
	if err != nil && s.file != nil {
		return errors.Join(fmt.Errorf("write %s: %w", s.name, err), s.file.Truncate(s.whole))
	}
	s.whole += int64(n)
	return err
}

func (s *pcapSink) end() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

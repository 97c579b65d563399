package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/spf13/cobra"
)

const matrixLong = `Matrix shows who reaches whom, by the policies: a row is where packets come from, a column where they go. Pods that no policy can tell apart
are one row. With --port a cell is whether that port is allowed, without it what is allowed at all.

-o html and -o svg make a picture to look at or to send.`

func matrixCommand(o *options) *cobra.Command {
	var q explain.Question
	var port string
	cmd := &cobra.Command{
		Use: "matrix", Short: "Who reaches whom", Long: matrixLong, Args: exactly(), Annotations: map[string]string{alsoOutputs: "html,svg"},
		Example: "  netctl matrix\n  netctl matrix -n shop -n web --port 5432\n  netctl matrix --outside --port 53/udp\n  netctl matrix -o html >matrix.html",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.Protocol, q.Port, err = parsePort(port); err != nil {
				return usageError{err}
			}
			m, err := ask[inspect.Matrix](cmd, o, inspect.Question{Kind: inspect.AskMatrix, Matrix: &q})
			if err != nil {
				return err
			}
			switch o.output {
			case "html":
				return matrixHTML(cmd.OutOrStdout(), &m, &q)
			case "svg":
				return matrixSVG(cmd.OutOrStdout(), &m)
			}
			return show(cmd.OutOrStdout(), o, m, func(w io.Writer, wide bool) { printMatrix(w, &m, &q, wide) })
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&q.Namespaces, "namespace", "n", nil, "only pods of this namespace; may be given again; default: all")
	f.StringVar(&port, "port", "", "only this port, PORT[/PROTOCOL], such as 80 or 53/udp; default: everything")
	f.BoolVar(&q.Outside, "outside", false, "addresses outside the cluster too, by the ipBlocks of policies")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	return cmd
}

// parsePort takes TCP where no protocol is given; nothing for nothing.
func parsePort(text string) (policy.Protocol, uint16, error) {
	if text == "" {
		return 0, 0, nil
	}
	number, name, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return 0, 0, fmt.Errorf("port %q: write a number between 1 and 65535, and a protocol if it is not TCP: 53/udp", text)
	}
	protocol, ok := map[string]policy.Protocol{"": policy.TCP, "tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP}[strings.ToLower(name)]
	if !ok {
		return 0, 0, fmt.Errorf("protocol %q: use tcp, udp or sctp", name)
	}
	return protocol, uint16(n), nil
}

// signs returns the text of a cell for each index of a value. Nothing and everything have signs of their own.
func signs(m *explain.Matrix, q *explain.Question) []string {
	list := make([]string, len(m.Values))
	next := 0
	for i, v := range m.Values {
		switch {
		case v.IsNone():
			list[i] = "·"
		case v.IsAll(), q.Protocol != 0:
			list[i] = "■"
		default:
			list[i] = letters(next)
			next++
		}
	}
	return list
}

// letters counts A to Z, AA, AB and so on.
func letters(n int) string {
	if n < 26 {
		return string(rune('A' + n))
	}
	return letters(n/26-1) + string(rune('A'+n%26))
}

func printMatrix(w io.Writer, m *inspect.Matrix, q *explain.Question, wide bool) {
	if len(m.Groups) == 0 {
		fmt.Fprintln(w, "there are no pods")
	} else {
		grid(w, &m.Matrix, q)
	}
	if len(m.Uneven) > 0 {
		fmt.Fprintf(w, "%s: IPv4 and IPv6 differ there, and either is shown\n", plural(len(m.Uneven), "cell", "cells"))
	}
	if wide {
		for i, g := range m.Groups {
			if len(g.Pods) > 1 {
				fmt.Fprintf(w, "%d: %s\n", i+1, strings.Join(g.Pods, ", "))
			}
		}
	}
	if len(m.NotEnforced) > 0 {
		fmt.Fprintln(w, notEnforcedText(m))
	}
	if len(m.Apart) > 0 {
		fmt.Fprintf(w, "no ends of their own (hostNetwork, finished, without an address): %s\n", strings.Join(m.Apart, ", "))
	}
}

// maxNamed limits the pods that notEnforcedText names.
const maxNamed = 10

// notEnforcedText returns a sentence about pods that Flowkeep did not attach, with the remedy.
func notEnforcedText(m *inspect.Matrix) string {
	n := min(len(m.NotEnforced), maxNamed)
	text := "not wired by Flowkeep, their side of each cell is not enforced: " + strings.Join(m.NotEnforced[:n], ", ") +
		unlisted(len(m.NotEnforced)-n)
	if m.Remedy == "" { // netmaster is older
		return text
	}
	return text + ": " + m.Remedy
}

// unjudged reports whether both groups are outside the cluster, so that no policy applies between them.
func unjudged(m *explain.Matrix, i, j int) bool {
	return len(m.Groups[i].Pods) == 0 && len(m.Groups[j].Pods) == 0
}

// grid numbers rows and columns alike.
func grid(w io.Writer, m *explain.Matrix, q *explain.Question) {
	sign := signs(m, q)
	heading := []string{"", "FROM \\ TO"}
	for i := range m.Groups {
		heading = append(heading, strconv.Itoa(i+1))
	}
	var rows [][]string
	for i, g := range m.Groups {
		row := []string{strconv.Itoa(i + 1), g.String()}
		for j := range m.Groups {
			cell := sign[m.Cells[i][j]]
			if unjudged(m, i, j) {
				cell = " "
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	table(w, heading, rows)
	fmt.Fprintln(w)
	for i, v := range m.Values {
		fmt.Fprintf(w, "%s  %s\n", sign[i], v)
	}
}

// alsoOutputs names the annotation of commands that print in further forms.
const alsoOutputs = "outputs"

// checkOutput refuses output formats that the command does not have.
func (o *options) checkOutput(cmd *cobra.Command) error {
	known := outputs
	if also := cmd.Annotations[alsoOutputs]; also != "" {
		known = append(slices.Clone(outputs), strings.Split(also, ",")...)
	}
	if !slices.Contains(known, o.output) {
		return usageError{errors.New("output " + strconv.Quote(o.output) + ": use " + strings.Join(known[:len(known)-1], ", ") + " or " + known[len(known)-1])}
	}
	return nil
}

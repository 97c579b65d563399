package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"
)

// show prints v as JSON or YAML where that is asked for, and else lets text print it.
func show(w io.Writer, o *options, v any, text func(w io.Writer, wide bool)) error {
	switch o.output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case "yaml":
		b, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	case "table", "wide":
		text(w, o.output == "wide")
		return nil
	}
	return usageError{fmt.Errorf("output %q: use table, wide, json or yaml", o.output)}
}

// table aligns rows under a heading.
func table(w io.Writer, heading []string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heading, "\t"))
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	t.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// age is a duration as kubectl prints it.
func age(since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	d := time.Since(since)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

const (
	pagePath     = "docs/conformance.md"
	templatePath = "docs/conformance.md.tmpl"
)

// A row is a part in the page's tables.
type row struct {
	Part
	Counts, Minutes, Commit, Date, Machine string // of the newest result
}

// page returns the text of docs/conformance.md.
func page(text string, parts []Part, results []Result) ([]byte, error) {
	t, err := template.New(templatePath).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, map[string]any{"Parts": rows(parts, results)}); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func rows(parts []Part, results []Result) (list []row) {
	for _, p := range parts {
		r := row{Part: p, Counts: "no result yet"}
		if last := newest(results, p.Name); last != nil {
			r.Counts = fmt.Sprintf("%d, %d, %d", last.Passed, last.Failed, last.Skipped)
			if !last.passed() {
				r.Counts = "**FAILED** " + r.Counts
			}
			if last.Seconds > 0 {
				r.Minutes = minutes(time.Duration(last.Seconds) * time.Second)
			}
			r.Commit, r.Date, r.Machine = short(last.Commit), last.Date.Format(time.DateOnly), last.Machine
		}
		list = append(list, r)
	}
	return list
}

// currentPage returns the text of the page for the repository at root.
func currentPage(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, templatePath))
	if err != nil {
		return nil, fmt.Errorf("read the page's template: %w", err)
	}
	parts, err := readTable(root)
	if err != nil {
		return nil, err
	}
	results, err := readResults(root)
	if err != nil {
		return nil, err
	}
	return page(string(text), parts, results)
}

func writePage(root string) error {
	text, err := currentPage(root)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(root, pagePath), text)
}

// checkPage returns an error if the page is not what its sources make.
func checkPage(root string) error {
	want, err := currentPage(root)
	if err != nil {
		return err
	}
	have, err := os.ReadFile(filepath.Join(root, pagePath))
	if err != nil {
		return err
	}
	if !bytes.Equal(have, want) {
		return fmt.Errorf("%s is not up to date with %s and %s: run make generate", pagePath, resultsPath, templatePath)
	}
	return nil
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// resultsPath is the path of the results on record.
const resultsPath = "docs/conformance.json"

// A Result is the outcome of one run of a part.
type Result struct {
	Part    string    `json:"part"`
	Commit  string    `json:"commit"`
	Date    time.Time `json:"date"`              // end of the run
	Seconds int       `json:"seconds,omitempty"` // 0: not recorded
	Machine string    `json:"machine"`
	Passed  int       `json:"passed"`
	Failed  int       `json:"failed"`
	Skipped int       `json:"skipped"`
}

// passed reports whether nothing failed.
func (r Result) passed() bool { return r.Failed == 0 }

func (r Result) counts() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", r.Passed, r.Failed, r.Skipped)
}

// readResults returns the results of the repository at root; none if there is no file.
func readResults(root string) ([]Result, error) {
	text, err := os.ReadFile(filepath.Join(root, resultsPath))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	var results []Result
	if err := json.Unmarshal(text, &results); err != nil {
		return nil, fmt.Errorf("%s: %w", resultsPath, err)
	}
	return results, nil
}

// marshalResults returns the text of the file of results: one line each, by part and date.
func marshalResults(results []Result) ([]byte, error) {
	sorted := slices.Clone(results)
	slices.SortStableFunc(sorted, func(a, b Result) int {
		if c := strings.Compare(a.Part, b.Part); c != 0 {
			return c
		}
		return a.Date.Compare(b.Date)
	})
	text := bytes.NewBufferString("[")
	for i, r := range sorted {
		line, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text.WriteString(",")
		}
		text.WriteString("\n  ")
		text.Write(line)
	}
	text.WriteString("\n]\n")
	return text.Bytes(), nil
}

// newestFirst returns the results of a part. Of two with one date the later in the file comes first.
func newestFirst(results []Result, part string) (list []Result) {
	for _, r := range slices.Backward(results) {
		if r.Part == part {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b Result) int { return b.Date.Compare(a.Date) })
	return list
}

// newest returns the newest result of a part, nil without one.
func newest(results []Result, part string) *Result {
	if list := newestFirst(results, part); len(list) > 0 {
		return &list[0]
	}
	return nil
}

// newestOf returns the newest result of a part for a commit, nil without one.
func newestOf(results []Result, part, commit string) *Result {
	for _, r := range newestFirst(results, part) {
		if r.Commit == commit {
			return &r
		}
	}
	return nil
}

// record adds a result to the file of results, and writes the page.
func record(root string, r Result) error {
	results, err := readResults(root)
	if err != nil {
		return err
	}
	text, err := marshalResults(append(results, r))
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(root, resultsPath), text); err != nil {
		return fmt.Errorf("record the result of %s: %w", r.Part, err)
	}
	return writePage(root)
}

// writeFile replaces a file by a rename, so that it is never half written.
func writeFile(path string, text []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, text, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

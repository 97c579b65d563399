package pipeline

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentedTables: docs/correctness.md lists the tables of the pipeline, in order.
func TestDocumentedTables(t *testing.T) {
	text, err := os.ReadFile("../../docs/correctness.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "## Tables that the independent reader covers")
	if !found {
		t.Fatal("docs/correctness.md has no list of tables")
	}
	list := regexp.MustCompile(`(?m)^0 input,(?s:.*?)\.$`).FindString(section)
	got := strings.Split(strings.Join(strings.Fields(strings.TrimSuffix(list, ".")), " "), ", ")
	var want []string
	for _, table := range slices.Sorted(maps.Keys(tableNames)) {
		want = append(want, fmt.Sprint(table, " ", TableName(table)))
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/correctness.md lists\n%q\nthe pipeline has\n%q", got, want)
	}
}

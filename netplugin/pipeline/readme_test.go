package pipeline

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheReadmeNamesEveryTable(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for number, name := range tableNames {
		if row := fmt.Sprintf("| %d | %s |", number, name); !strings.Contains(string(text), row) {
			t.Errorf("README.md has no row %q", row)
		}
	}
}

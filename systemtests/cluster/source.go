package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// module is the path in the go.mod of the repository's root. Modules below the root have other paths.
const module = "github.com/flowkeep/flowkeep"

// SourceRoot returns the root of the repository that contains the working directory. A program that was compiled with
// -trimpath has no path of its source file.
func SourceRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	return sourceRoot(dir)
}

// sourceRoot returns the closest directory at or above dir with the go.mod of module.
func sourceRoot(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		text, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && modulePath(string(text)) == module {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find the repository: no directory from %s up has the go.mod of %s; run this inside of it",
				dir, module)
		}
	}
}

// modulePath returns the path of a go.mod's module directive, empty if the file has none.
func modulePath(text string) string {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "module" {
			return fields[1]
		}
	}
	return ""
}

package main

import (
	"fmt"
	"slices"
	"strings"
)

// shapePrefix begins the names of the parts that boot a sandbox of a shape.
const shapePrefix = "shape-"

// shape prints the name of a part that boots a sandbox of a shape, and the flags with which it does. The gate tests this
// shape: each commit has the next one of those whose newest result is a passed one. A shape that failed stays due.
func (a *app) shape() error {
	n, err := a.repo.countCommits()
	if err != nil { // no git work tree: each day has the next one
		n = int(a.now().Unix() / (24 * 60 * 60))
	}
	name, flags, err := chooseShape(passedParts(a.parts, a.results), n)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.out, name, strings.Join(flags, " "))
	return nil
}

// passedParts returns the parts whose newest result is a passed one.
func passedParts(parts []Part, results []Result) []Part {
	return slices.DeleteFunc(slices.Clone(parts), func(p Part) bool {
		r := newest(results, p.Name)
		return r == nil || !r.passed()
	})
}

// chooseShape returns the name and the flags of part n of those that boot a sandbox of a shape; after the last one comes
// the first.
func chooseShape(parts []Part, n int) (name string, flags []string, err error) {
	shapes := slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return !strings.HasPrefix(p.Name, shapePrefix) })
	if len(shapes) == 0 {
		return "", nil, fmt.Errorf("%s has no part %s…", tablePath, shapePrefix)
	}
	chosen := shapes[n%len(shapes)]
	words := strings.Fields(chosen.Command)
	for i, word := range words[:len(words)-1] {
		if word == "-shape" || word == "-family" || word == "-traffic-mode" || word == "-services" {
			flags = append(flags, word, words[i+1])
		}
	}
	if len(flags) == 0 {
		return "", nil, fmt.Errorf("%s: the command of %s names no shape", tablePath, chosen.Name)
	}
	return chosen.Name, flags, nil
}

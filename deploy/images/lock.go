package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// A lock's lines are "go VERSION", the toolchain that builds the programs, and "deb ARCH NAME VERSION SHA256", a package of Debian's.
// Lines that begin with # say something to readers.
type lock struct {
	golang string
	debian map[string]locked // by "ARCH NAME"
}

type locked struct{ version, sum string }

var (
	debianName    = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	debianVersion = regexp.MustCompile(`^[A-Za-z0-9.+:~-]+$`)
	sha256Hex     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func readLock(name string) (*lock, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := parseLock(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

func parseLock(r io.Reader) (*lock, error) {
	l := &lock{debian: map[string]locked{}}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case words[0] == "go" && len(words) == 2 && l.golang == "":
			l.golang = words[1]
		case words[0] == "deb" && len(words) == 5 && debianName.MatchString(words[2]) && debianVersion.MatchString(words[3]) && sha256Hex.MatchString(words[4]):
			key := words[1] + " " + words[2]
			if _, twice := l.debian[key]; twice {
				return nil, fmt.Errorf("line %d: %s a second time", n, key)
			}
			l.debian[key] = locked{version: words[3], sum: words[4]}
		default:
			return nil, fmt.Errorf("line %d: want \"go VERSION\", once, or \"deb ARCH NAME VERSION SHA256\"", n)
		}
	}
	return l, lines.Err()
}

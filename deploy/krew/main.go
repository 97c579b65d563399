// Krew builds netctl as the kubectl plugin "kubectl flowkeep" for all platforms, packs an archive for each, and writes
// the manifest by which krew installs them. The archives depend on the sources and the version alone.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// platform is an operating system and an architecture, as Go and krew name them.
type platform struct{ os, arch string }

// platforms are all for which netctl is built.
var platforms = []platform{
	{"linux", "amd64"},
	{"linux", "arm64"},
	{"darwin", "amd64"},
	{"darwin", "arm64"},
	{"windows", "amd64"},
	{"windows", "arm64"},
}

func main() {
	var b build
	flag.StringVar(&b.version, "version", "", "version, such as v0.1.0")
	flag.StringVar(&b.url, "url", "", "https URL of the directory from which the archives will be downloaded")
	flag.StringVar(&b.out, "o", "dist/krew", "directory to write to")
	flag.Parse()
	if err := b.run(goBuild); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// build is one run.
type build struct{ version, url, out string }

// run writes the archives and the manifest. compile builds netctl for a platform into a file.
func (b *build) run(compile func(p platform, version, file string) error) error {
	if err := b.check(); err != nil {
		return err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return fmt.Errorf("create the output directory: %w", err)
	}
	work, err := os.MkdirTemp("", "krew")
	if err != nil {
		return fmt.Errorf("create a directory: %w", err)
	}
	defer os.RemoveAll(work)
	sums := map[platform]string{}
	for _, p := range platforms {
		file := filepath.Join(work, p.os+p.arch)
		if err := compile(p, b.version, file); err != nil {
			return fmt.Errorf("build netctl for %s/%s: %w", p.os, p.arch, err)
		}
		program, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read netctl: %w", err)
		}
		archive, err := p.pack(program, license)
		if err != nil {
			return fmt.Errorf("pack netctl: %w", err)
		}
		sums[p] = sumOf(archive)
		if err := os.WriteFile(filepath.Join(b.out, p.archive(b.version)), archive, 0o644); err != nil {
			return fmt.Errorf("write an archive: %w", err)
		}
	}
	text, err := manifestOf(b.version, b.url, sums)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.out, pluginName+".yaml"), text, 0o644); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return nil
}

func (b *build) check() error {
	if !semver.MatchString(b.version) {
		return fmt.Errorf("version %q: krew needs a semantic version, such as v0.1.0", b.version)
	}
	if !downloadURL.MatchString(b.url) {
		return errors.New("url: the https URL of the directory with the archives is needed; there is no default")
	}
	return nil
}

// goBuild builds netctl for a platform.
func goBuild(p platform, version, file string) error {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath",
		"-ldflags", "-s -w -X github.com/flowkeep/flowkeep/internal/process.Version="+version, "-o", file, "./netctl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

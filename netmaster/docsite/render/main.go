// Render writes the documentation as a static site into a directory, after it has checked the links.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/flowkeep/flowkeep"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/docsite"
)

func main() {
	directory := flag.String("o", "dist/docs", "directory to write to")
	flag.Parse()
	if err := run(*directory); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(directory string) error {
	site, err := docsite.Build(flowkeep.Documents, docsite.Options{Version: process.BuildVersion()})
	if err != nil {
		return err
	}
	if broken := site.BrokenLinks(); len(broken) > 0 {
		for _, b := range broken {
			fmt.Fprintln(os.Stderr, b)
		}
		return fmt.Errorf("%d links lead nowhere", len(broken))
	}
	if err := site.WriteFiles(directory); err != nil {
		return err
	}
	fmt.Printf("%s/index.html: %d files, %.1f MB\n", directory, len(site.Files), float64(site.Size())/(1<<20))
	return nil
}

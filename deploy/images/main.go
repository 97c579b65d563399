// Images makes the container images of Flowkeep: OCI archives that containerd imports, and what is in them as SPDX documents. It needs no
// container runtime and no registry: the programs are built by scripts/images, what comes from Debian is in packages named by the file lock.
// What comes out depends on these alone, not on the machine, the folder or the time (docs/decisions/019).
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run builds images, or runs a subcommand: "join DIR DIR…" writes archives for several architectures into the first
// directory, "sign KEY FILE…" signs archives.
func run(args []string) error {
	if len(args) > 2 {
		switch args[0] {
		case "join":
			return join(args[1], args[2:])
		case "sign":
			return signImages(args[1], args[2:])
		}
	}
	return buildImages(args)
}

func buildImages(args []string) error {
	var b build
	flag.StringVar(&b.programs, "programs", "", "directory of the static programs and of licenses.txt")
	flag.StringVar(&b.packages, "packages", "", "directory of Debian's packages, NAME.deb")
	flag.StringVar(&b.lock, "lock", "deploy/images/lock", "file that names the packages' versions and sums")
	flag.StringVar(&b.out, "out", "", "directory to write NAME.tar and NAME.spdx.json to")
	flag.StringVar(&b.version, "version", "", "version of Flowkeep; the images' tag")
	flag.StringVar(&b.revision, "revision", "", "the commit")
	flag.StringVar(&b.registry, "registry", "flowkeep.invalid", "registry and folder in the images' names")
	flag.StringVar(&b.arch, "arch", "", "architecture, as Go calls it")
	created := flag.Int64("created", 0, "time of the commit, in seconds since 1970")
	wanted := flag.Bool("list-packages", false, "only write the names of Debian's packages that are needed")
	if err := flag.CommandLine.Parse(args); err != nil {
		return err
	}
	b.created = time.Unix(*created, 0).UTC()
	if *wanted {
		for _, name := range packagesOf(recipes) {
			fmt.Println(name)
		}
		return nil
	}
	return b.run(recipes)
}

// build is one run.
type build struct {
	programs, packages, lock, out string
	version, revision, arch       string
	registry                      string
	created                       time.Time
	packed                        map[string]*packed // by the digest of what is in it
}

func (b *build) run(recipes []recipe) error {
	if b.programs == "" || b.packages == "" || b.out == "" || b.version == "" || b.arch == "" {
		return errors.New("-programs, -packages, -out, -version and -arch are needed")
	}
	if !isTag(b.version) {
		return fmt.Errorf("-version %q: cannot be the tag of an image", b.version)
	}
	debian, err := openPackages(b.lock, b.packages, b.arch, packagesOf(recipes))
	if err != nil {
		return err
	}
	for i := range recipes {
		if err := b.image(&recipes[i], debian); err != nil {
			return fmt.Errorf("image %s: %w", recipes[i].name, err)
		}
	}
	return nil
}

// image writes an image's archive and its SPDX document, and says the image's name and digest.
func (b *build) image(r *recipe, debian *packages) error {
	c, err := b.contents(r, debian)
	if err != nil {
		return err
	}
	img := image{name: r.reference(b.registry, b.version), arch: b.arch, created: b.created, config: r.config}
	img.labels = map[string]string{
		"org.opencontainers.image.title": r.title, "org.opencontainers.image.version": b.version, "org.opencontainers.image.revision": b.revision,
		"org.opencontainers.image.licenses": r.licenses,
	}
	for _, l := range c.layers {
		packed, err := b.pack(l)
		if err != nil {
			return err
		}
		img.layers = append(img.layers, packed)
	}
	digest, archive, err := img.archive()
	if err != nil {
		return err
	}
	document, err := b.document(r, c, digest)
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(b.out, r.name+".tar"), archive); err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(b.out, r.name+".spdx.json"), document); err != nil {
		return err
	}
	fmt.Printf("%s %s %s %d\n", r.name, img.name, digest, len(archive))
	return nil
}

func replaceFile(name string, data []byte) error {
	if err := os.WriteFile(name+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

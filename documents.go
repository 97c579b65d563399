// Package flowkeep holds the documents of the repository, as they were when a program was compiled.
package flowkeep

import "embed"

// Documents are the pages and their pictures, under their paths in the repository.
//
//go:embed ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md
//go:embed docs/*.md docs/*/*.md docs/images/*.png
//go:embed fleet/README.md macvtap/README.md netmaster/README.md netplugin/README.md netplugin/pipeline/README.md
//go:embed nodestate/README.md
var Documents embed.FS

//go:build tools

// Package crane pins the program that pushes images of a release and serves a registry to its check, in a module of its own.
package crane

import _ "github.com/google/go-containerregistry/cmd/crane"

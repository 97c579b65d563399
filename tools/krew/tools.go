//go:build tools

// Package krew pins the program that validates and installs kubectl's plugin, in a module of its own.
package krew

import (
	_ "sigs.k8s.io/krew/cmd/krew"
	_ "sigs.k8s.io/krew/cmd/validate-krew-manifest"
)

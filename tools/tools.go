//go:build tools

// Package tools pins the programs that check this repository; their modules stay out of the product's go.mod.
package tools

import (
	_ "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"
)

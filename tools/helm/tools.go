//go:build tools

// Package helm pins the program that renders and checks deploy/chart, in a module of its own: its Kubernetes is another than the product's.
package helm

import _ "helm.sh/helm/v4/cmd/helm"

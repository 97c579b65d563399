//go:build tools

// Package controllergen pins controller-gen, which writes deep copies and CustomResourceDefinitions, in a module of its
// own: its dependencies do not go together with those of tools/.
package controllergen

import _ "sigs.k8s.io/controller-tools/cmd/controller-gen"

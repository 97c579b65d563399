module github.com/flowkeep/flowkeep/systemtests/ocm/crds

go 1.26.0

require (
	github.com/kuadrant/kuadrant-operator v0.11.0
	sigs.k8s.io/gateway-api v1.4.0
)

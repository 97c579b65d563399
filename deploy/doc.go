// Package deploy is what a cluster is given: the chart, the manifests that it makes, and (images) the container images. It has no code; its
// tests hold the manifests to the programs and the documents.
package deploy

// Package wellknown has the names by which Flowkeep's programs and their users meet in Kubernetes: the reasons of Events, annotations and labels, and
// where the programs listen. The programs use them from here, so that docs/reference, which is written of the same tables, is true.
package wellknown

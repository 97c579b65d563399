// Package ca maintains Flowkeep's certificate authority in a Secret, keeps netmaster's own certificate in memory,
// and issues certificates to nodes that present a ServiceAccount token. Usage is described in docs/certificates.md,
// the reasons in docs/decisions/020.
//
// State and its steps are values that describe what should exist. Keeper reads and writes them. Several instances
// may run at a time, because the API server rejects a write if the object has changed since it was read. Door serves
// nodes.
package ca

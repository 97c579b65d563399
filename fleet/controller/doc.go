// Package controller is the edge of policy sync: it carries out what package fleet decides. On the hub of a fleet it
// watches gateways, policies and what decides about them, writes ManifestWorks for the spokes, and sums up the spokes'
// reports in the hub objects' statuses. It is the only importer of client-go on that way.
//
// # Invariants
//
//   - Nothing of a bundle is written or deleted while one of its inputs is absent, has not been listed yet, or is
//     refused by the API server. A list is never older than its request, so an object that only an old list lacks does
//     not count as gone.
//   - Nothing is removed from a spoke because a watch lags: all that decides about it is read before (confirm.go).
//   - A spoke's report leads to no write of a work. Works are made of specs, of the authors' metadata, and of the begin
//     of the grace period of a cluster that left (leave.go).
//   - No object is written in a version that was not read. The slower writer decides again.
//
// # Caveats
//
// All state is under one lock, which is held while a bundle is decided on, and not during writes. Objects are never
// changed after they were stored. Of a work the values of fleet.ReadExisting and fleet.Answers are kept, not its
// manifests.
package controller

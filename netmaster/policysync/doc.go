// Package policysync carries out what package fleet decides: on the hub of a fleet it watches gateways, policies and what decides about them,
// writes ManifestWorks for the spokes, and writes what spokes say into the hub objects' statuses. It is the only importer of client-go on
// that way.
//
// # What is never done
//
//   - Nothing of a bundle is written or deleted while one of its inputs is absent, has not been listed yet, or is refused by the API server.
//     A list is never older than its request, so nothing is taken for gone that an old list does not have.
//   - Nothing goes from a spoke because of what a watch has not brought yet: what decides about it is read anew before (confirm.go).
//   - A status leads to no write of a work: works are made of specs and of the metadata that authors wrote.
//   - No object is written in a version that was not looked at. Who was slower decides anew.
//
// # Caveats
//
// All that is known is under one lock, which is held while a bundle is decided on, not while anything is written. Objects that were taken in
// are never changed. What is kept of a work is what fleet.ReadExisting and fleet.Answers make of it, not its manifests.
package policysync

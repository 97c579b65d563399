// Package feed is the protocol between netmaster and the netplugins: feed.proto and what protoc makes of it. It knows nothing
// of policies; internal/wire turns its messages into them, and refuses those that make no sense. docs/feed.md tells the
// protocol in one page.
package feed

// Versions of the protocol that this build speaks. Version 1 was JSON.
const (
	MinVersion = 2
	MaxVersion = 4
	// DryRuns is the first in which rules can be of dry runs.
	DryRuns = 3
	// Beats is the first in which a node asks whether its leader still leads.
	Beats = 4
)

// Bounds of a message, in bytes.
const (
	MaxNodeMessage   = 2 << 20
	MaxMasterMessage = 4 << 20
)

//go:generate protoc --proto_path=../.. --go_out=../.. --go_opt=module=github.com/flowkeep/flowkeep --go-grpc_out=../.. --go-grpc_opt=module=github.com/flowkeep/flowkeep api/feed/feed.proto

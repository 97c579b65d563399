// Package feed is the protocol between netmaster and the netplugins: feed.proto and the code that protoc generates
// from it. It knows no policies; internal/wire converts its messages, and refuses inconsistent ones. docs/feed.md
// describes the protocol on one page.
package feed

// Versions of the protocol that this build speaks. Version 1 was JSON.
const (
	MinVersion = 2
	MaxVersion = 6
	// DryRuns is the first in which rules can be of dry runs.
	DryRuns = 3
	// Beats is the first in which a node asks whether its leader still leads.
	Beats = 4
	// KeyedSets is the first in which the list of nodes is a keyed set, sent as changes, and a leader can be fenced.
	KeyedSets = 5
	// AlikeGroups is the first in which an update of a group can be one of other groups with equal members too.
	AlikeGroups = 6
	// Services is the first in which nodes are sent Services.
	Services = 6
)

// Bounds of a message, in bytes.
const (
	MaxNodeMessage   = 2 << 20
	MaxMasterMessage = 4 << 20
)

//go:generate protoc --proto_path=../.. --go_out=../.. --go_opt=module=github.com/flowkeep/flowkeep --go-grpc_out=../.. --go-grpc_opt=module=github.com/flowkeep/flowkeep api/feed/feed.proto

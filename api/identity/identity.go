// Package identity is how a node asks netmaster for its certificate: identity.proto and what protoc makes of it.
package identity

const (
	// Audience is whom a node's token is for.
	Audience = "flowkeep"
	// MaxMessage bounds a request, in bytes.
	MaxMessage = 16 << 10
)

//go:generate protoc --proto_path=../.. --go_out=../.. --go_opt=module=github.com/flowkeep/flowkeep --go-grpc_out=../.. --go-grpc_opt=module=github.com/flowkeep/flowkeep api/identity/identity.proto

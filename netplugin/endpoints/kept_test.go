package endpoints

import (
	"testing"

	"github.com/flowkeep/flowkeep/internal/schema/schematest"
)

// TestWhatAFileOfAPodHolds is known to the version before, which passes over what it does not know and wires and enforces by the rest. So what is added
// must be such that nothing is open without it; then this text is changed (docs/decisions/021).
func TestWhatAFileOfAPodHolds(t *testing.T) {
	const want = "{namespace:string name:string uid:string containerID:string ifName:string netns:string hostIfName:string port:uint32 mac:[uint8] addresses:[text] bandwidth:{ingress:uint64 egress:uint64} hostPorts:[{hostPort:int containerPort:int protocol:string hostIP:string}] realised:bool order:uint64 superseded:bool}"
	if have := schematest.Shape(Endpoint{}); have != want {
		t.Errorf("a file holds\n%s\nwhere the version before has\n%s", have, want)
	}
}

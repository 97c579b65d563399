package inspect

import "time"

// AskCapture is a Question with ID (of a pod) and Capture, QueryCapture a NodeQuery with Capture. Both are answered by a stream of
// Captured.
const (
	AskCapture   = "capture"
	QueryCapture = "capture"
)

// Bounds of a capture.
const (
	// MaxSnap is the most bytes of a packet, more than any that segmentation offload makes.
	MaxSnap = 128 << 10
	// LongestCapture is after how long every capture ends.
	LongestCapture = time.Hour
)

// CaptureSpec selects packets to capture.
type CaptureSpec struct {
	// Filter chooses packets (internal/frames/filter); empty: all.
	Filter string `json:"filter,omitempty"`
	// Snap is how many bytes of a packet are wanted; 0: MaxSnap.
	Snap int `json:"snap,omitempty"`
	// Count and Duration end the capture; 0: LongestCapture does.
	Count    uint64        `json:"count,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
}

// CaptureQuery asks a node for the packets of one of its pods.
type CaptureQuery struct {
	Pod string `json:"pod"` // namespace/name
	CaptureSpec
}

// Captured is some packets in the order in which they came, and how it stands then. The first has none: it says that the capture has
// begun. One comes at least every second.
type Captured struct {
	Node      string  `json:"node"`
	Pod       string  `json:"pod"`
	Interface string  `json:"interface"` // the node's end of the pod's link
	Frames    []Frame `json:"frames,omitempty"`
	CaptureCounts
	// End is why there are no more; empty: there may be.
	End string `json:"end,omitempty"`
}

// CaptureCounts are of a capture since it began.
type CaptureCounts struct {
	Packets uint64 `json:"packets"`
	// Dropped are packets that the filter let through and that were lost, for they came faster than they could be passed on.
	Dropped uint64 `json:"dropped,omitempty"`
	// Limited is for how long the node's limit of what it captures has held the capture up.
	Limited time.Duration `json:"limited,omitempty"`
}

// Frame is a captured Ethernet frame.
type Frame struct {
	Time time.Time `json:"time"`
	// FromPod: the pod sent it; else it was sent to the pod.
	FromPod bool `json:"fromPod"`
	// Length is how long it was, in bytes; Data is as much of it as was wanted.
	Length int    `json:"length"`
	Data   []byte `json:"data"`
}

package inspect

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// At is an earlier state of the cluster: by revision, or by time; one of the fields is set.
type At struct {
	Revision uint64        `json:"revision,omitempty"`
	Ago      time.Duration `json:"ago,omitempty"`
	Time     *time.Time    `json:"time,omitempty"`
}

// ParseAt reads a revision, how long ago (5m or -5m), or a time (RFC 3339).
func ParseAt(text string) (*At, error) {
	if revision, err := strconv.ParseUint(text, 10, 64); err == nil && revision > 0 {
		return &At{Revision: revision}, nil
	}
	if ago, err := time.ParseDuration(strings.TrimPrefix(text, "-")); err == nil && ago > 0 {
		return &At{Ago: ago}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return &At{Time: &t}, nil
	}
	return nil, fmt.Errorf("%q: write a revision, how long ago (-5m), or a time (2026-01-31T12:00:00Z)", text)
}

// Past is a state that was in force.
type Past struct {
	Revision uint64    `json:"revision"`
	Since    time.Time `json:"since"`
	// Until is when the next change was; absent: it is in force now.
	Until *time.Time `json:"until,omitempty"`
}

// History is which earlier states netmaster keeps.
type History struct {
	Oldest  uint64    `json:"oldest"` // revision
	Since   time.Time `json:"since"`
	Changes int       `json:"changes"`
	Bytes   int       `json:"bytes"` // an estimate
}

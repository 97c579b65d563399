package agent

import (
	"strings"
	"testing"
)

// Only pods of the node are captured, and questions of a newer netmaster are told as such.
func TestStreamRefuses(t *testing.T) {
	a, _, _ := running(t)
	send := func([]byte) error { t.Error("an answer"); return nil }
	for question, says := range map[string]string{
		`{"kind":"capture","capture":{"pod":"shop/none"}}`: "shop/none is not wired on node",
		`{"kind":"capture"}`:   "no pod",
		`{"kind":"sightings"}`: "is not said",
		`{"kind":"sightings","sightings":{"from":["10.0.0.1"],"to":["10.0.0.2"]}}`: "cannot be looked for",
		`{"kind":"dance"}`: `knows no query "dance"`,
		`{`:                "query",
	} {
		if err := a.inspector.Stream(t.Context(), []byte(question), send); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", question, err)
		}
	}
}

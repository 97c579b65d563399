package systemtests

import (
	"crypto/rand"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak/live"
)

var (
	soakFor   = flag.Duration("for", 20*time.Second, "how long the soak plays")
	soakSteps = flag.Int("steps", 0, "how many rounds the soak plays; 0: as many as fit")
	soakSeed  = flag.Uint64("seed", 1, "the soak's seed; 0: a new one, which is printed")
	soakLog   = flag.Bool("rounds", false, "print every round of the soak")
)

// Random changes under random packets: what passes is what NetworkPolicy says, and connections live as long as they may.
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		var b [4]byte
		_, _ = rand.Read(b[:]) // it never fails
		seed = uint64(binary.BigEndian.Uint32(b[:]))
	}
	log := io.Discard
	if *soakLog {
		log = os.Stdout
	}
	fmt.Printf("soak: seed %d; again: make soak ARGS='-seed %[1]d'\n", seed)
	report, err := live.Play(t.Context(), live.Config{Cluster: theCluster, Seed: seed, For: cluster.Window(*soakFor), Steps: *soakSteps, Probes: 150, Streams: 16, Log: log})
	if err != nil {
		t.Error(err)
	}
	fmt.Printf("soak: seed %d: %v\n", seed, report)
}

package responder

import (
	"context"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flowkeep/flowkeep/ofctl"
)

const (
	// maxWaiting bounds the packets that wait for their answers.
	maxWaiting = 128
	// maxRate and maxBurst bound all answers of a node: by the second, and at once.
	maxRate  = 500
	maxBurst = 100
)

// Values of the label reason of suppressed answers.
const (
	byRule   = "rule"   // no answer is due: an error, a fragment, a malformed packet
	byMeter  = "meter"  // the switch's meter of the port
	byRate   = "rate"   // the limit of all ports
	byQueue  = "queue"  // too many packets waited
	bySwitch = "switch" // there was no way back, or no connection to the switch
)

// Config is a responder's configuration.
type Config struct {
	// Route returns the actions that lead an answer back to where the packet came from, which has the source to; false:
	// there is no way.
	Route func(p *ofctl.PacketIn, to netip.Addr) ([]ofctl.Action, bool)
	// Registerer may be nil.
	Registerer prometheus.Registerer
}

// Responder answers the packets that the switch hands on. Its methods are safe for concurrent use; none but Run waits.
type Responder struct {
	cfg        Config
	packets    chan *ofctl.PacketIn
	limit      bucket
	answered   prometheus.Counter
	suppressed *prometheus.CounterVec
	meters     map[uint32]ofctl.MeterCount // as last read; of the goroutine that calls Metered
}

// New returns a responder; it works while Run runs.
func New(cfg Config) *Responder {
	r := &Responder{
		cfg:     cfg,
		packets: make(chan *ofctl.PacketIn, maxWaiting),
		limit:   bucket{rate: maxRate, burst: maxBurst},
		answered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flowkeep_netplugin_answers_total",
			Help: "Packets to addresses without a pod that were answered with a TCP reset or an ICMP error.",
		}),
		suppressed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netplugin_answers_suppressed_total",
			Help: "Packets to addresses without a pod that were not answered, by reason: rule (no answer is due), " +
				"meter (too many from a port), rate (too many of the node), queue, switch.",
		}, []string{"reason"}),
		meters: map[uint32]ofctl.MeterCount{},
	}
	for _, reason := range []string{byRule, byMeter, byRate, byQueue, bySwitch} {
		r.suppressed.WithLabelValues(reason)
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(r.answered, r.suppressed)
	}
	return r
}

// Packet takes a packet, and drops it where too many wait.
func (r *Responder) Packet(p *ofctl.PacketIn) {
	select {
	case r.packets <- p:
	default:
		r.suppress(byQueue, 1)
	}
}

func (r *Responder) suppress(reason string, n uint64) {
	r.suppressed.WithLabelValues(reason).Add(float64(n))
}

// Run answers packets by send until ctx ends. One goroutine at a time may run it.
func (r *Responder) Run(ctx context.Context, send func(frame []byte, actions []ofctl.Action) error) {
	for {
		select {
		case p := <-r.packets:
			r.answer(p, send)
		case <-ctx.Done():
			return
		}
	}
}

func (r *Responder) answer(p *ofctl.PacketIn, send func([]byte, []ofctl.Action) error) {
	frame, to, ok := answerTo(p.Frame, p.Size)
	if !ok {
		r.suppress(byRule, 1)
		return
	}
	if !r.limit.take(time.Now()) {
		r.suppress(byRate, 1)
		return
	}
	actions, ok := r.cfg.Route(p, to)
	if !ok || send(frame, actions) != nil {
		r.suppress(bySwitch, 1)
		return
	}
	r.answered.Inc()
}

// Metered takes the counters of the meters in front of the packets, as the switch has them now. The first reading of a
// meter counts for nothing: it may count what an earlier run saw.
func (r *Responder) Metered(counts []ofctl.MeterCount) {
	for _, m := range counts {
		switch was, known := r.meters[m.ID]; {
		case known && m.Dropped >= was.Dropped:
			r.suppress(byMeter, m.Dropped-was.Dropped)
		case known: // the switch was restarted
			r.suppress(byMeter, m.Dropped)
		}
		r.meters[m.ID] = m
	}
}

// bucket is a token bucket: rate tokens a second, and burst at once.
type bucket struct {
	rate, burst float64
	tokens      float64
	last        time.Time // when tokens were counted; zero: never
}

// take takes a token, and reports whether there was one.
func (b *bucket) take(now time.Time) bool {
	if b.last.IsZero() {
		b.tokens = b.burst
	} else if passed := now.Sub(b.last).Seconds(); passed > 0 {
		b.tokens = min(b.burst, b.tokens+passed*b.rate)
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Times of a plugin.
const (
	registerLimit = 10 * time.Second // the kubelet calls back before it answers, and gives that 10 s
	followLimit   = 5 * time.Second  // from the registration until the kubelet follows the devices
	wellAfter     = 10 * time.Second // a kubelet that follows for so long and then hangs up had a reason
	firstPause    = 100 * time.Millisecond
	longestPause  = 2 * time.Second // so that a kubelet that comes late is not waited for much longer
	finishLimit   = 2 * time.Second // for the last list to reach the kubelet
)

// plugin offers one resource. Its goroutine alone touches what is not in offer and state.
type plugin struct {
	resource string
	cfg      Config
	offer    *offer
	log      *slog.Logger
	kicked   chan struct{}
	finished chan struct{} // closed: the resource is exposed no more
	done     chan struct{} // closed: nothing is left of it

	server     *grpc.Server
	own        identity  // of its socket
	registered identity  // the kubelet's socket of the last successful registration; none: registration is due
	at         time.Time // when
	streams    int       // how many there had been by then
	tried      identity  // the kubelet's socket that it was last tried with
	failures   int       // in a row, with that one
	next       time.Time // not before

	mu    sync.Mutex
	state State
}

// State is the state of a resource's registration.
type State struct {
	Registered bool   // and the kubelet follows its devices
	Why        string // if not
}

func newPlugin(resource string, cfg Config) *plugin {
	p := &plugin{
		resource: resource, cfg: cfg, log: cfg.Log.With("resource", resource),
		kicked: make(chan struct{}, 1), finished: make(chan struct{}), done: make(chan struct{}),
	}
	p.offer = newOffer(resource, cfg, p.kick)
	p.state.Why = "it begins"
	return p
}

// kick has the plugin look at how things are.
func (p *plugin) kick() {
	select {
	case p.kicked <- struct{}{}:
	default:
	}
}

// run goes on until the resource is exposed no more, or ctx ends. It begins after what was there before it under its name has ended.
func (p *plugin) run(ctx context.Context, before <-chan struct{}) {
	defer close(p.done)
	if before != nil {
		<-before
	}
	for {
		timer := time.NewTimer(p.step(ctx, time.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			p.stop()
			return
		case <-p.finished:
			timer.Stop()
			p.finish(ctx)
			return
		case <-p.kicked:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// idle is the time between two checks without a kick.
const idle = time.Minute

// step does what is due, and returns when to check again at the latest.
func (p *plugin) step(ctx context.Context, now time.Time) time.Duration {
	kubelet := identify(filepath.Join(p.cfg.Dir, kubeletSocket))
	live, begun := p.offer.followers()
	if p.registered != (identity{}) && p.registered == kubelet || kubelet == (identity{}) && live > 0 {
		if live > 0 {
			p.say(State{Registered: true})
			return idle
		}
		if wait := p.at.Add(cmp.Or(p.cfg.following, followLimit)).Sub(now); wait > 0 && begun == p.streams {
			p.say(State{Why: "the kubelet is registered with, and does not follow the devices yet"})
			return wait
		}
		p.lost(now)
	}
	switch {
	case kubelet == (identity{}):
		p.say(State{Why: fmt.Sprintf("there is no kubelet: no %s in %s", kubeletSocket, p.cfg.Dir)})
		return idle
	case kubelet == p.tried && now.Before(p.next):
		return p.next.Sub(now)
	}
	return p.try(ctx, kubelet)
}

// lost: the kubelet hung up, or never followed.
func (p *plugin) lost(now time.Time) {
	if now.Sub(p.at) > wellAfter {
		p.failures = 0
	}
	p.registered = identity{}
	p.failed(now, errors.New("the kubelet does not follow the devices, or hung up"))
}

// try serves, if it doesn't yet, and registers.
func (p *plugin) try(ctx context.Context, kubelet identity) time.Duration {
	if kubelet != p.tried {
		p.failures = 0
		p.stop() // its stream is to another kubelet than this one
	}
	p.tried = kubelet
	_, begun := p.offer.followers()
	err := p.serve()
	if err == nil {
		err = p.register(ctx)
	}
	now := time.Now()
	if err != nil {
		p.registered = identity{}
		p.failed(now, err)
		return p.next.Sub(now)
	}
	p.registered, p.at, p.streams = kubelet, now, begun
	p.cfg.Metrics.registrations.WithLabelValues(p.resource).Inc()
	p.log.Info("registered with the kubelet")
	p.kick() // it may follow already
	return cmp.Or(p.cfg.following, followLimit)
}

// failed says so, and has the next try wait.
func (p *plugin) failed(now time.Time, err error) {
	p.next = now.Add(pause(p.failures, rand.Float64()))
	p.failures++
	p.cfg.Metrics.refused.WithLabelValues(p.resource).Inc()
	if p.say(State{Why: err.Error()}) {
		p.log.Warn("registration with the kubelet failed; retrying", "err", err)
	}
}

// pause after so many failures: it doubles, and is drawn between half of that and all.
func pause(failures int, random float64) time.Duration {
	most := min(firstPause<<min(failures, 10), longestPause)
	return most/2 + time.Duration(random*float64(most/2))
}

// say keeps the state, and reports whether it is news.
func (p *plugin) say(s State) bool {
	p.mu.Lock()
	news := p.state != s
	p.state = s
	p.mu.Unlock()
	if news {
		p.cfg.Metrics.registered(p.resource, s.Registered)
		p.cfg.changed()
	}
	return news
}

func (p *plugin) stands() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

func (p *plugin) socket() string { return filepath.Join(p.cfg.Dir, socketName(p.cfg.Dir, p.resource)) }

// serve starts a server on the socket, also where the socket is gone or another's.
func (p *plugin) serve() error {
	if p.server != nil && p.own != (identity{}) && identify(p.socket()) == p.own {
		return nil
	}
	p.stop()
	l, own, err := listen(p.socket())
	if err != nil {
		return err
	}
	p.own, p.server = own, grpc.NewServer()
	api.RegisterDevicePluginServer(p.server, p.offer)
	go func(s *grpc.Server) { _ = s.Serve(l) }(p.server) // it ends with stop
	return nil
}

// register sends the kubelet the server's socket. The kubelet calls the server before it responds.
func (p *plugin) register(ctx context.Context) error {
	conn, err := dial(filepath.Join(p.cfg.Dir, kubeletSocket))
	if err != nil {
		return fmt.Errorf("reach the kubelet: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(p.socket()), ResourceName: macvtap.FullName(p.resource), Options: options(),
	})
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	return nil
}

// dial a unix socket; the connection is made by the first call.
func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
}

// stop ends all streams, and removes the socket.
func (p *plugin) stop() {
	if p.server != nil {
		p.server.Stop()
		removeOwn(p.socket(), p.own)
	}
	p.server, p.own = nil, identity{}
}

// finish sends all streams an empty list of devices, and stops.
func (p *plugin) finish(ctx context.Context) {
	p.offer.finish()
	if p.server != nil {
		told := make(chan struct{})
		go func(s *grpc.Server) {
			defer close(told)
			s.GracefulStop()
		}(p.server)
		timer := time.NewTimer(cmp.Or(p.cfg.finishing, finishLimit))
		defer timer.Stop()
		select {
		case <-told:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	p.stop()
	p.cfg.Metrics.forget(p.resource)
	p.log.Info("the resource is no longer exposed")
}

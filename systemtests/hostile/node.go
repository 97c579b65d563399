package hostile

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func nodeAttacks() []*Attack {
	return []*Attack{
		{Name: "64 unfinished hellos of 8 MB each", Short: true, run: unfinishedHellos},
		{Name: "hellos with 250,000 unknown keys, again and again", Short: true, run: largeHellos},
		{Name: "hellos with 2,048 pods that there are not", Short: true, run: unknownPods},
		{Name: "announcements of changing addresses, without pause", Short: true, run: flappingAnnouncements},
		{Name: "announcements of one name with ever new UIDs", run: newUIDs},
		{Name: "announcements of other nodes' pods, without pause", run: claims},
		{Name: "3,000 silent connections to both ports", Short: true, run: silentConnections},
		{Name: "acknowledgements with 256 errors each, without pause", run: errorAcks},
		{Name: "reports of drift, without pause", run: drifts},
		{Name: "beats, without pause", run: beats},
		{Name: "answers of 1 MB to no query, without pause", run: answers},
		{Name: "requests for all nodes and Services, without pause", run: resends},
	}
}

// dial returns a connection of the attacker's node.
func (a *Arena) dial() (*grpc.ClientConn, error) {
	config, err := a.certificate()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(a.FeedAddress(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
}

var issuing sync.Mutex

func (a *Arena) certificate() (*tls.Config, error) {
	name := a.NodeName(a.evil)
	return a.keys(name, func() error { return mtls.IssueNode(a.PKI(), name) })
}

// keys returns the configuration of a client of the feed's port, whose certificate is issued if there is none.
func (a *Arena) keys(name string, issue func() error) (*tls.Config, error) {
	issuing.Lock()
	defer issuing.Unlock()
	key := func(suffix string) string { return filepath.Join(a.PKI(), suffix) }
	files := mtls.Files{CA: key("ca.crt"), Cert: key(name + ".crt"), Key: key(name + ".key")}
	if config, err := files.ClientConfig(); err == nil {
		return config, nil
	}
	if err := issue(); err != nil {
		return nil, err
	}
	return files.ClientConfig()
}

// open opens a stream.
func (a *Arena) open(ctx context.Context) (feed.Feed_StreamClient, func(), error) {
	conn, err := a.dial()
	if err != nil {
		return nil, nil, err
	}
	stream, err := feed.NewFeedClient(conn).Stream(ctx)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return stream, func() { conn.Close() }, nil
}

// keysPerPart is how many keys fit into one message, and helloParts how many parts a hello may have.
const (
	keysPerPart = 40000
	helloParts  = 6
)

// unknownKeys are keys that netmaster does not know, for each part of a hello: made once, so that an attack takes no
// processor time from what is measured.
var unknownKeys = sync.OnceValue(func() (parts [helloParts][]byte) {
	for i := range parts {
		parts[i] = make([]byte, 32*keysPerPart)
		_, _ = rand.Read(parts[i])
	}
	return parts
})

// hello returns a part of the attacker's hello with rules that it holds.
func (a *Arena) hello(held []byte, more bool) *feed.NodeMessage {
	own := wire.Versions{}.OrOwn()
	return &feed.NodeMessage{Message: &feed.NodeMessage_Hello{Hello: &feed.Hello{
		Node:           a.NodeName(a.evil),
		ProgramVersion: "hostile",
		MinVersion:     own.Min,
		MaxVersion:     own.Max,
		HeldRules:      held,
		More:           more,
	}}}
}

// connect opens a stream and says hello. What netmaster sends is read and ignored until the stream ends.
func (a *Arena) connect(ctx context.Context) (feed.Feed_StreamClient, func(), error) {
	stream, closeStream, err := a.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := stream.Send(a.hello(nil, false)); err != nil {
		closeStream()
		return nil, nil, err
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	return stream, closeStream, nil
}

func unfinishedHellos(ctx context.Context, a *Arena) error {
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for ctx.Err() == nil { // netmaster ends such a stream
				stream, closeStream, err := a.open(ctx)
				if err != nil {
					continue
				}
				for i := 0; i < helloParts && err == nil; i++ {
					err = stream.Send(a.hello(unknownKeys()[i], true))
				}
				if err == nil {
					_, _ = stream.Recv() // until it ends
				}
				closeStream()
				pause(ctx, 100*time.Millisecond)
			}
		})
	}
	all.Wait()
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func largeHellos(ctx context.Context, a *Arena) error {
	for ctx.Err() == nil {
		stream, closeStream, err := a.open(ctx)
		if err != nil {
			return err
		}
		for i := 0; i < helloParts && err == nil; i++ {
			err = stream.Send(a.hello(unknownKeys()[i], i < helloParts-1))
		}
		if err == nil {
			_, _ = stream.Recv()
		}
		closeStream()
		pause(ctx, 10*time.Millisecond)
	}
	return nil
}

// flood sends messages without pause and connects again where netmaster ends the stream.
func flood(ctx context.Context, a *Arena, message func(n int) *feed.NodeMessage) error {
	n := 0
	for ctx.Err() == nil {
		stream, closeStream, err := a.connect(ctx)
		if err != nil { // netmaster bounds connections and hellos
			pause(ctx, 100*time.Millisecond)
			continue
		}
		for ; ctx.Err() == nil && err == nil; n++ {
			err = stream.Send(message(n))
		}
		closeStream()
		pause(ctx, 10*time.Millisecond)
	}
	return nil
}

func announcement(namespace, name, uid string, address uint32) *feed.NodeMessage {
	packed := binary.BigEndian.AppendUint32(nil, address)
	return &feed.NodeMessage{Message: &feed.NodeMessage_Announce{Announce: &feed.Announcement{
		Namespace: namespace,
		Name:      name,
		Uid:       uid,
		Addresses: &feed.Addresses{Ipv4: packed},
	}}}
}

// ownAddress returns an address of the attacker's pod CIDR (simnodes: 10.X.Y.0/24).
func (a *Arena) ownAddress(n int) uint32 { return 10<<24 | uint32(a.evil)<<8 | uint32(1+n%250) }

func flappingAnnouncements(ctx context.Context, a *Arena) error {
	pod, err := a.OwnPod(ctx, evilNamespace, a.evil)
	if err != nil {
		return err
	}
	return flood(ctx, a, func(n int) *feed.NodeMessage {
		return announcement(a.NamespaceName(evilNamespace), pod.Name, pod.UID, a.ownAddress(n))
	})
}

// unknownPods says hello again and again, each time with other pods that the API server does not have.
func unknownPods(ctx context.Context, a *Arena) error {
	for round := 0; ctx.Err() == nil; round++ {
		stream, closeStream, err := a.open(ctx)
		if err != nil {
			return err
		}
		hello := a.hello(nil, false)
		for i := range wire.MaxAnnounced {
			name, uid := fmt.Sprintf("none-%d", i), fmt.Sprintf("uid-%d-%d", round, i)
			pod := announcement(a.NamespaceName(evilNamespace), name, uid, a.ownAddress(i)).GetAnnounce()
			hello.GetHello().Announced = append(hello.GetHello().Announced, pod)
		}
		if err = stream.Send(hello); err == nil {
			pause(ctx, 2*time.Second)
		}
		closeStream()
	}
	return nil
}

func newUIDs(ctx context.Context, a *Arena) error {
	return flood(ctx, a, func(n int) *feed.NodeMessage {
		return announcement(a.NamespaceName(evilNamespace), "none", fmt.Sprintf("uid-%d", n), a.ownAddress(n))
	})
}

func claims(ctx context.Context, a *Arena) error {
	pods := a.PodsOf(victimNamespace)
	return flood(ctx, a, func(n int) *feed.NodeMessage {
		pod := pods[n%len(pods)]
		return announcement(a.NamespaceName(victimNamespace), pod.Name, pod.UID, a.ownAddress(n))
	})
}

func errorAcks(ctx context.Context, a *Arena) error {
	return flood(ctx, a, func(n int) *feed.NodeMessage {
		errs := make([]*feed.RuleError, 256)
		for i := range errs {
			errs[i] = &feed.RuleError{Message: fmt.Sprintf("hostile %d: %01000d", n, i)}
		}
		return &feed.NodeMessage{Message: &feed.NodeMessage_Ack{Ack: &feed.Ack{Errors: errs}}}
	})
}

func drifts(ctx context.Context, a *Arena) error {
	return flood(ctx, a, func(n int) *feed.NodeMessage {
		return &feed.NodeMessage{Message: &feed.NodeMessage_Drift{Drift: &feed.Drift{Missing: 1, Example: fmt.Sprintf("%01000d", n)}}}
	})
}

func beats(ctx context.Context, a *Arena) error {
	return flood(ctx, a, func(n int) *feed.NodeMessage { return wire.FromBeat(uint64(n)) })
}

func answers(ctx context.Context, a *Arena) error {
	body := make([]byte, 1<<20)
	return flood(ctx, a, func(n int) *feed.NodeMessage {
		return &feed.NodeMessage{Message: &feed.NodeMessage_Reply{Reply: &feed.Reply{Id: uint64(n), Body: body, More: true}}}
	})
}

func resends(ctx context.Context, a *Arena) error {
	sets := []feed.KeyedSet{feed.KeyedSet_KEYED_SET_NODES, feed.KeyedSet_KEYED_SET_SERVICES}
	return flood(ctx, a, func(n int) *feed.NodeMessage { return wire.FromResend(sets[n%len(sets)]) })
}

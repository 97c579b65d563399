package main

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestSCTP(t *testing.T) {
	l, err := listenSCTP(netip.MustParseAddrPort("[::]:0"))
	if errors.Is(err, errNoSCTP) {
		if attempt("sctp", "127.0.0.1:1", nil, time.Second) == nil {
			t.Error("an answer without SCTP")
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	go serveStreams(l)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, host := range []string{"127.0.0.1", "::1"} {
		r := streamFor(t, "sctp", net.JoinHostPort(host, port), 200*time.Millisecond)
		if r.Sent < 50 || r.Received != r.Sent || r.Broken != "" {
			t.Errorf("over %s: %+v", host, r)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if attempt("sctp", net.JoinHostPort("127.0.0.1", port), nil, time.Second) == nil {
		t.Error("an answer from nobody")
	}
}

package main

import (
	"bytes"
	"net"
	"testing"
)

func TestOnward(t *testing.T) {
	a, b, c := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}, net.HardwareAddr{2, 0, 0, 0, 0, 3}
	frame := func(to, from net.HardwareAddr, kind byte, left byte, rest ...[]byte) []byte {
		return bytes.Join(append([][]byte{to, from, {0x88, kind, left}}, rest...), nil)
	}
	first := frame(a, c, 0xb5, 2, b, c, []byte("token"))
	second := onward(first, a)
	if want := frame(b, a, 0xb5, 1, c, []byte("token")); !bytes.Equal(second, want) {
		t.Errorf("%x, not %x", second, want)
	}
	third := onward(second, b)
	if want := frame(c, b, 0xb5, 0, []byte("token")); !bytes.Equal(third, want) {
		t.Errorf("%x, not %x", third, want)
	}
	for _, over := range [][]byte{third, nil, first[:20], frame(a, c, 0xb6, 2, b, c)} {
		if got := onward(over, a); got != nil {
			t.Errorf("%x goes on as %x", over, got)
		}
	}
}

package nmstate

import "testing"

func parsed(t *testing.T, document string) State {
	t.Helper()
	s, err := ParseTemplate([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSeedExample(t *testing.T) {
	desired := parsed(t, "interfaces: [{name: dummy0, state: up, type: dummy, mtu: 1450}]")
	current := parsed(t, "interfaces: [{name: dummy0, state: up, type: dummy, mtu: 1500, mac-address: 'AA:bb:cc:00:11:22'}]")
	got := Diff(desired, current)
	if len(got) != 1 || got[0].String() != "interfaces[dummy0].mtu is 1500, not 1450" {
		t.Fatal(got)
	}
	if got := Diff(desired, Overlay(current, desired)); len(got) != 0 {
		t.Fatal(got)
	}
	if got := Subtract(Overlay(current, desired), desired); !Equal(got, parsed(t, "interfaces: [{name: dummy0, type: dummy, mac-address: 'AA:BB:cc:00:11:22'}]")) {
		t.Fatal(got)
	}
}

package ovsdb_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestEnsureBridgeSetsPrefixes: each table has the prefix trees that are wanted, also after another program changed
// them; rows that are right stay.
func TestEnsureBridgeSetsPrefixes(t *testing.T) {
	sw := ovstest.Start(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	db, err := ovsdb.Open(ctx, sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	spec := ovsdb.BridgeSpec{
		Name:         "fk0",
		DatapathType: "dummy",
		Prefixes:     map[int][]string{0: {"nw_src", "ipv6_src"}, 31: {"ct_nw_dst"}},
	}
	ensure := func() string {
		t.Helper()
		if _, err := db.EnsureBridge(ctx, spec); err != nil {
			t.Fatal(err)
		}
		return sw.VSCtl(t, "get", "bridge", "fk0", "flow_tables")
	}
	trees := func(table string) string {
		row := strings.TrimSpace(sw.VSCtl(t, "get", "bridge", "fk0", "flow_tables:"+table))
		return strings.TrimSpace(sw.VSCtl(t, "get", "Flow_Table", row, "prefixes"))
	}
	first := ensure()
	if zero, peers := trees("0"), trees("31"); zero != "[ipv6_src, nw_src]" || peers != "[ct_nw_dst]" {
		t.Errorf("prefixes of table 0 are %s, of table 31 %s", zero, peers)
	}
	for deadline := time.Now().Add(2 * time.Minute); ensure() != first; {
		if time.Now().After(deadline) {
			t.Fatal("rows that are right are replaced")
		}
		first = ensure()
	}
	sw.VSCtl(t, "clear", "bridge", "fk0", "flow_tables")
	for deadline := time.Now().Add(2 * time.Minute); strings.TrimSpace(ensure()) == "{}"; {
		if time.Now().After(deadline) {
			t.Fatal("cleared prefixes are not restored")
		}
	}
	spec.Prefixes[31] = []string{"ct_nw_dst", "ct_ipv6_dst"}
	ensure()
	if peers := trees("31"); peers != "[ct_ipv6_dst, ct_nw_dst]" {
		t.Errorf("prefixes of table 31 are %s after a change", peers)
	}
}

package inspect

import "testing"

// A trace is of one namespace only between two pods of it: what a Service, an address or a node leads to may be anywhere.
func TestNamespaceOfTraces(t *testing.T) {
	for ends, want := range map[[2]string]string{
		{"shop/web", "shop/db:5432/tcp"}: "shop", {"shop/web", "bank/db"}: "", {"shop/web", "svc/shop/db"}: "", {"shop/web", "db.shop.svc"}: "", {"shop/web", "10.0.0.1"}: "",
		{"10.0.0.1", "shop/db"}: "", {"node1", "shop/db"}: "", {"shop/web", "node1"}: "", {"shop/web", "shop.shop.svc:80"}: "",
	} {
		to, err := ParseTarget(ends[1])
		if err != nil {
			t.Fatal(err)
		}
		if got := NamespaceOf(&Question{Kind: AskTrace, ID: "bank/x", From: ends[0], To: &to}); got != want {
			t.Errorf("%v: %q", ends, got)
		}
	}
	if got := NamespaceOf(&Question{Kind: AskTrace, From: "shop/web"}); got != "" {
		t.Errorf("without another end: %q", got)
	}
}

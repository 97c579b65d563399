package webui

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/webui/webuitest"
	"github.com/flowkeep/flowkeep/systemtests/chrome"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// While netmaster is away, the page reports it and keeps its data. It recovers by itself.
func TestAway(t *testing.T) {
	n := webuitest.Shop()
	v := look(t, n, "#matrix")
	v.Expect("status of 503")
	v.Shows(".legend", "TCP 5432")
	n.SetAway(true)
	v.Shows("#away", "What is shown is of revision")
	v.Shows("#health", "netmaster does not answer")
	v.Shows(".legend", "TCP 5432")
	v.Run(`location.hash = "#matrix?from=outside/intruder&to=shop/db"`)
	v.Shows("#panel", "There is no explanation")
	n.SetAway(false)
	v.Until(`document.getElementById("away").hidden`)
	v.Shows("#panel", "isolated by shop/db")
}

// The page prompts for a token, and removes one from its address.
func TestLogin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	address := serve(t, webuitest.Shop(), file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	v := chrome.Look(t, browser, address)
	v.Expect("status of 401")
	v.Shows("#health", "a token is needed")
	v.Click("#token")
	v.Type("not it")
	v.Press(kb.Enter)
	v.Shows(".login", "this is not the token")
	v.Run(`document.querySelector("#token").value = ""`)
	v.Click("#token")
	v.Type(token)
	v.Press(kb.Enter)
	v.Shows("#health", "degraded")
	v.Run(`sessionStorage.clear()`)
	v.Go("about:blank")
	v.Go(address + "#token=" + token)
	v.Shows("#health", "degraded")
	v.Until(`location.hash === "#overview"`)
}

// Where netmaster refuses a matrix of all namespaces, the page prompts for one namespace and shows that.
func TestTooMany(t *testing.T) {
	n := webuitest.Shop()
	n.Refuse = func(q *inspect.Question) error {
		everything := q.Kind == inspect.AskMatrix && len(q.Matrix.Namespaces) == 0 ||
			q.Kind == inspect.AskPolicies && q.Namespace == "" && q.ID == ""
		if everything {
			return status.Error(codes.ResourceExhausted, "there are too many")
		}
		return nil
	}
	v := look(t, n, "#matrix")
	v.Expect("status of 429")
	v.Shows("#matrix-note", "there are too many. Type a namespace above.")
	v.Click("#filter-ns")
	v.Type("shop")
	v.Shows("#shown", "3 × 3 of 3 groups")
	v.Click(`#views a[href^="#policies"]`)
	v.Shows(".list", "shop/db")
}

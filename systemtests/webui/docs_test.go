package webui

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/flowkeep/flowkeep"
	"github.com/flowkeep/flowkeep/netmaster/docsite"
	"github.com/flowkeep/flowkeep/netmaster/webui/webuitest"
	"github.com/flowkeep/flowkeep/systemtests/chrome"
)

// A problem of the overview leads to its section of the documentation, and the documentation back to the web UI.
func TestDocs_FromTheWebUI(t *testing.T) {
	v := look(t, webuitest.Shop(), "#overview")
	v.Shows(".problems", "is refused and enforces what it last had")
	v.Click(`.problems a[href="docs/troubleshooting.html#a-node-has-no-netmaster"]`)
	v.Until(`location.pathname === "/docs/troubleshooting.html" && location.hash === "#a-node-has-no-netmaster"`)
	v.Until(`Math.abs(document.getElementById("a-node-has-no-netmaster").getBoundingClientRect().top) < 150`)
	v.Shows(`nav a[aria-current="page"]`, "troubleshooting")
	v.Click("header a:last-child")
	v.Until(`location.pathname === "/" && document.querySelector(".problems")`)
	v.Click("#docs")
	v.Until(`location.pathname === "/docs/"`)
	v.Until(`[...document.images].length > 0 && [...document.images].every((i) => i.complete && i.naturalWidth > 0)`)
}

// searches looks for sections from a page, and follows a result.
func searches(v *chrome.View) {
	v.Helper()
	v.Shows("main h1", "Install")
	v.Press("/")
	v.Until(`document.activeElement.id === "query"`)
	v.Type("ContainerCreating")
	v.Press(kb.Enter)
	v.Until(`location.pathname.endsWith("/search.html")`)
	v.Shows("#results li:first-child a", "Troubleshooting: Pods stay in ContainerCreating")
	v.Run(`document.getElementById("query").value = ""`)
	v.Click("#query")
	v.Type("ovs-vswitchd upcals") // a typing error
	v.Shows("#results", "ovs-vswitchd handles no upcalls after boot")
	v.Run(`document.getElementById("query").value = ""`)
	v.Click("#query")
	v.Type("--page-tok") // the beginning of a word
	v.Shows("#results mark", "page")
	v.Shows("#results a", "Web UI: Access")
	v.Run(`document.getElementById("query").value = ""`)
	v.Click("#query")
	v.Type("xyzzyplugh")
	v.Shows("#count", "0 sections")
	v.Run(`document.getElementById("query").value = ""`)
	v.Click("#query")
	v.Type("kube-proxy ipvs")
	v.Click(`#results a[href^="compatibility.html"]`)
	v.Until(`location.pathname.endsWith("/compatibility.html")`)
	v.Shows("main h1", "Compatibility")
}

func TestDocs_Search(t *testing.T) {
	searches(look(t, webuitest.Shop(), "docs/install.html"))
}

// The files that make docs writes need no server.
func TestDocs_SearchFromTheDisk(t *testing.T) {
	t.Parallel()
	site, err := docsite.Build(flowkeep.Documents, docsite.Options{Version: "v1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := site.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	searches(chrome.Look(t, browser, "file://"+dir+"/install.html"))
}
